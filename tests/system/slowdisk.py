"""A slow disk on a machine: see lab/slow_disk.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from lab.machine import Machine

SOURCE = Path(__file__).parents[1] / "lab/slow_disk.py"
RATE = "/srv/slow-disk.rate"
TRICKLE = 10_000
"""Bytes a second: the header of a shard is there soon, its 200 kB take twenty seconds."""


class SlowDisk:
    """A directory of the machine whose files of one pattern are slow; use it as a context manager.

    Args:
        machine: Where.
        place: The directory; read-only meanwhile.
        pattern: Which files are slow.
    """

    def __init__(self, machine: Machine, place: str, pattern: str) -> None:
        self.machine, self.place, self.pattern = machine, place, pattern

    def __enter__(self) -> Self:
        self.machine.put(SOURCE, "/srv/slow_disk.py")
        self.rate(TRICKLE)
        command = ["systemd-run", "--quiet", "--collect", "--unit", "slow-disk", "/usr/bin/python3"]
        self.machine.run([*command, "/srv/slow_disk.py", self.place, self.pattern, RATE])
        self.machine.wait(f"mountpoint -q {self.place}", 30, "slow-disk")
        return self

    def __exit__(self, *_: object) -> None:
        self.rate(0)
        self.machine.run(f"umount -l {self.place}; systemctl stop slow-disk", check=False)

    def rate(self, wanted: int) -> None:
        """Bytes a second from now on; 0 is without limit."""
        self.machine.put(str(wanted), f"{RATE}.new")
        self.machine.run(["mv", f"{RATE}.new", RATE])
