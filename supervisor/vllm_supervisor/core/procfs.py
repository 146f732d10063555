"""What the kernel's files about one process say: text in, figures out (proc(5), sched-stats)."""

from __future__ import annotations


def used(stat: str, ticks_per_s: int) -> tuple[float, int]:
    """CPU seconds and resident pages of a process by its `stat` file; `ticks_per_s` is the kernel's SC_CLK_TCK."""
    # The name of the program stands in parentheses and may hold any of them, and blanks.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / ticks_per_s, int(fields[21])


def waited_s(schedstat: str) -> float:
    """Seconds in which a process's main thread was runnable and did not run, by its `schedstat` file.

    The thread in which vLLM's workers compute is that one. 0 where the kernel keeps no such figure.
    """
    fields = schedstat.split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def read_bytes(io: str) -> int:
    """What a process has read by its `io` file: from disks or also from the page cache, whichever is more."""
    figures = dict(line.split(": ", 1) for line in io.splitlines() if ": " in line)
    return max((int(figures[name]) for name in ("rchar", "read_bytes") if name in figures), default=0)
