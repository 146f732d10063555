"""Runs a command as systemd would run it for the unit, on a machine that has no systemd.

`confine.py [--user NAME] [--seccomp] -- COMMAND…`: an ordinary user without groups and capabilities, no new
privileges, no core files, many open files; with --seccomp the unit's list of system calls (SystemCallFilter=
@system-service without @privileged of systemd 252, SystemCallErrorNumber=EPERM) as a filter of our own.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pwd
import resource
import struct
import sys

PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38
SECCOMP_MODE_FILTER = 2
ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000
X86_64 = 0xC000003E
CAPABILITIES = 41

# Numbers on x86-64 of the calls that `systemd-analyze syscall-filter` (252) lists for the unit, as ranges.
CALLS = (
    (0, 26), (28, 91), (95, 100), (102, 102), (104, 104), (106, 112), (114, 115), (118, 121), (123, 125), (127, 133),
    (135, 135), (137, 138), (140, 152), (157, 158), (160, 160), (162, 162), (186, 211), (213, 226), (228, 235),
    (237, 245), (247, 259), (261, 297), (299, 299), (302, 303), (306, 312), (314, 316), (318, 319), (322, 328),
    (332, 334), (424, 427), (434, 437), (439, 441), (449, 450),
)  # fmt: skip


def program() -> bytes:
    """The filter: other architectures die, listed calls pass, everything else is EPERM."""
    load, equal, above, back = 0x20, 0x15, 0x35, 0x06
    steps = [(load, 0, 0, 4), (equal, 1, 0, X86_64), (back, 0, 0, KILL), (load, 0, 0, 0)]
    for first, last in CALLS:
        # At or above the first, and not above the last: allowed. Each range stands for itself.
        steps += [(above, 0, 2, first), (above, 1, 0, last + 1), (back, 0, 0, ALLOW)]
    steps.append((back, 0, 0, EPERM))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def main() -> int:
    """Confine, then become the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--user", default="nobody")
    parser.add_argument("--seccomp", action="store_true")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    libc = ctypes.CDLL(None, use_errno=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1048576, 1048576))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if os.geteuid() == 0:
        entry = pwd.getpwnam(args.user)
        for capability in range(CAPABILITIES):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        os.setgroups([])
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
        os.environ["USER"] = os.environ["LOGNAME"] = args.user
    os.umask(0o027)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        sys.exit("confine: no_new_privs was refused")
    if args.seccomp:
        code = program()
        text = ctypes.create_string_buffer(code, len(code))

        class Program(ctypes.Structure):
            _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

        given = Program(len(code) // 8, ctypes.cast(text, ctypes.c_void_p))
        if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(given), 0, 0):
            sys.exit(f"confine: the filter was refused: {os.strerror(ctypes.get_errno())}")
    os.execvp(args.command[0], args.command)
    return 1


if __name__ == "__main__":
    sys.exit(main())
