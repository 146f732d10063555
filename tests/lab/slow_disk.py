"""A slow disk: a directory, mounted over itself, from which chosen files are read at so many bytes a second.

A file system in user space by the kernel's own protocol (/dev/fuse, linux/fuse.h, version 7.31), read-only, with
nothing but the standard library. The kernel keeps pages of it as of any disk, and none are there after the mount.

usage: slow_disk.py DIRECTORY PATTERN RATE-FILE

RATE-FILE holds the bytes a second for files whose names match PATTERN (as a shell's); 0 is without limit. It is looked
at all the time, so that a change counts for a read that waits. Prints `mounted` when it is.
"""

from __future__ import annotations

import ctypes
import errno
import fnmatch
import os
import queue
import struct
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 27, 28, 29, 34, 36, 38, 42
UNANSWERED = {FORGET, INTERRUPT, BATCH_FORGET}
ALLOWED = {RELEASE, FLUSH, RELEASEDIR, ACCESS, DESTROY}
KEEP_CACHE = 2
MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
DEVICE = 10 << 8 | 229
ROOT = 1
VALID_S = 3600
PAGE = 4096
"""The most that the kernel reads at once: whoever reads is let go after each."""
LOOK_S = 0.05


class Request(NamedTuple):
    """What the kernel asks."""

    opcode: int
    unique: int
    node: int
    body: bytes


class Disk:
    """The files below a directory.

    Args:
        folder: An open descriptor of it, from before the mount.
        pattern: Which files are slow.
        rate: The file with their bytes a second.
    """

    def __init__(self, folder: int, pattern: str, rate: Path) -> None:
        self.folder, self.pattern, self.rate = folder, pattern, rate
        self.paths = {ROOT: "."}
        self.nodes = {".": ROOT}

    def answer(self, request: Request) -> bytes:
        """The answer without its header.

        Raises:
            OSError: The errno is the answer.
        """
        if request.opcode == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, PAGE, 0, 12, 9, 4096, 1, 0, 0, 0)
        path = self.paths.get(request.node, ".")
        if request.opcode == LOOKUP:
            return self._entry(os.path.normpath(f"{path}/{request.body.rstrip(bytes(1)).decode()}"))
        if request.opcode == GETATTR:
            return struct.pack("<QII", VALID_S, 0, 0) + self._attributes(request.node)
        if request.opcode == OPEN:
            return struct.pack("<QII", os.open(path, os.O_RDONLY, dir_fd=self.folder), KEEP_CACHE, 0)
        if request.opcode == OPENDIR:
            return struct.pack("<QII", 0, 0, 0)
        if request.opcode == RELEASE:
            os.close(struct.unpack_from("<Q", request.body)[0])
        if request.opcode == READ:
            handle, offset, size = struct.unpack_from("<QQI", request.body)
            return self._read(path, os.pread(handle, size, offset))
        if request.opcode == READDIR:
            return self._names(path, *struct.unpack_from("<QI", request.body, 8))
        if request.opcode == STATFS:
            return struct.pack("<QQQQQIIII24x", 1 << 20, 0, 0, 1 << 10, 0, 4096, 255, 4096, 0)
        if request.opcode in ALLOWED:
            return b""
        raise OSError(errno.ENOSYS, "not there")

    def _read(self, path: str, data: bytes) -> bytes:
        began = time.monotonic()
        while fnmatch.fnmatch(Path(path).name, self.pattern):
            rate = int(self.rate.read_text() or 0)
            if not rate or time.monotonic() - began >= len(data) / rate:
                break
            time.sleep(LOOK_S)
        return data

    def _entry(self, path: str) -> bytes:
        os.stat(path, dir_fd=self.folder, follow_symlinks=False)
        node = self.nodes.setdefault(path, len(self.nodes) + ROOT)
        self.paths[node] = path
        return struct.pack("<QQQQII", node, 0, VALID_S, VALID_S, 0, 0) + self._attributes(node)

    def _attributes(self, node: int) -> bytes:
        it = os.stat(self.paths[node], dir_fd=self.folder, follow_symlinks=False)
        at = int(it.st_mtime)
        sizes = (node, it.st_size, it.st_blocks, at, at, at)
        return struct.pack("<6Q10I", *sizes, 0, 0, 0, it.st_mode, it.st_nlink, it.st_uid, it.st_gid, 0, 4096, 0)

    def _names(self, path: str, offset: int, size: int) -> bytes:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.folder)
        try:
            names = sorted(os.listdir(folder))
        finally:
            os.close(folder)
        given = b""
        for number, name in enumerate(names[offset:], offset + 1):
            encoded = name.encode()
            entry = struct.pack("<QQII", number, number, len(encoded), 0) + encoded
            entry += bytes(-len(entry) % 8)
            if len(given) + len(entry) > size:
                break
            given += entry
        return given


def main() -> int:
    """Mounts and serves until it is unmounted."""
    place, pattern, rate = sys.argv[1:]
    if not Path("/dev/fuse").exists():
        os.mknod("/dev/fuse", 0o600 | 0o020000, DEVICE)
    device = os.open("/dev/fuse", os.O_RDWR)
    disk = Disk(os.open(place, os.O_RDONLY | os.O_DIRECTORY), pattern, Path(rate))
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"slow", place.encode(), b"fuse", MS_RDONLY | MS_NOSUID | MS_NODEV, options.encode()):
        print(f"slow_disk: {place}: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 1
    print("mounted", flush=True)
    reads: queue.Queue[Request] = queue.Queue()
    threading.Thread(target=_reads, args=(device, disk, reads), daemon=True).start()
    while True:
        try:
            data = os.read(device, 1 << 20)
        except OSError as error:
            return 0 if error.errno == errno.ENODEV else 1
        _, opcode, unique, node = struct.unpack_from("<IIQQ", data)
        request = Request(opcode, unique, node, data[40:])
        if opcode == READ:
            reads.put(request)
        elif opcode not in UNANSWERED:
            _answer(device, disk, request)


def _reads(device: int, disk: Disk, reads: queue.Queue[Request]) -> None:
    """One after the other, as a disk does it; whoever asks for a name meanwhile does not wait."""
    while True:
        _answer(device, disk, reads.get())


def _answer(device: int, disk: Disk, request: Request) -> None:
    try:
        body, code = disk.answer(request), 0
    except OSError as error:
        body, code = b"", -(error.errno or errno.EIO)
    try:
        os.write(device, struct.pack("<IiQ", 16 + len(body), code, request.unique) + body)
    except OSError:
        # Whoever asked was killed.
        return


if __name__ == "__main__":
    sys.exit(main())
