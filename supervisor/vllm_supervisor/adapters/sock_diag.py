"""How many connections a TCP port has, asked of the kernel itself: sock_diag(7), linux/inet_diag.h.

/proc/net/tcp tells the same, but walks the kernel's whole table once for each family, and writes down
every connection of the machine, those in TIME_WAIT too, to be read and thrown away here.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

WAIT_S = 1.0
"""The kernel answers at once; without an answer the question counts as refused."""

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_GETSOCK = 18  # TCPDIAG_GETSOCK: the question of old, which is answered for IPv4 and IPv6 in one walk
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_ESTABLISHED = 1
_BYTECODE = 1  # INET_DIAG_REQ_BYTECODE
_PORT_AT_LEAST, _PORT_AT_MOST = 2, 3  # INET_DIAG_BC_S_GE, INET_DIAG_BC_S_LE

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, pid
_REQUEST = struct.Struct("=4B48xII")  # inet_diag_req: family, 3 unused, a socket's identity, states, 0
_TEST = struct.Struct("=BBHHH")  # two inet_diag_bc_op: code, step when true, step when false; 0, the port
_STATE_AND_PORT = struct.Struct("!xBxxH")  # the begin of inet_diag_msg: family, state, timer, retrans, source port


def connections(port: int) -> int:
    """How many connections to `port` are established, seen from the server's side.

    Raises:
        OSError: the kernel does not answer such questions, or not to us.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(WAIT_S)
        kernel.send(_question(port))
        return sum(1 for state, source in _answers(kernel) if (state, source) == (_ESTABLISHED, port))


def _question(port: int) -> bytes:
    # A test that is not passed leads 4 bytes behind the end, which means that the socket is not wanted.
    tests = _TEST.pack(_PORT_AT_LEAST, 8, 20, 0, port) + _TEST.pack(_PORT_AT_MOST, 8, 12, 0, port)
    attribute = struct.pack("=HH", 4 + len(tests), _BYTECODE) + tests
    body = _REQUEST.pack(socket.AF_INET, 0, 0, 0, 1 << _ESTABLISHED, 0) + attribute
    return _HEADER.pack(_HEADER.size + len(body), _GETSOCK, _DUMP, 1, 0) + body


def _answers(kernel: socket.socket) -> Iterator[tuple[int, int]]:
    """State and own port of each socket in the kernel's answer."""
    while True:
        data, at = kernel.recv(1 << 16), 0
        while at + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, at)
            if kind == _DONE:
                return
            if kind == _ERROR or length < _HEADER.size:
                code = struct.unpack_from("=i", data, at + _HEADER.size)[0] if kind == _ERROR else 0
                raise OSError(-code, "the kernel does not tell of sockets")
            yield _STATE_AND_PORT.unpack_from(data, at + _HEADER.size)
            at += (length + 3) & ~3
