"""What a test may ask of the page cache.

The kernel takes pages back when it likes: under heavy writing, files that were read a second before with plain
read(2) and gigabytes of free memory missed a few of theirs (seen with mincore(2) in 3 of 80 readings). So no test
wants all of a file there, or none of it read again.
"""

from __future__ import annotations

MOST = 0.7
"""Share of what was read that lies in memory afterwards, at the least."""


def mostly(shares: list[float | None]) -> bool:
    """Whether of each file at least `MOST` is in memory; each share is 0 to 1."""
    return bool(shares) and all(share is not None and share >= MOST for share in shares)
