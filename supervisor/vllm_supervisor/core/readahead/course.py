"""Where the reading stands and what comes next: a window that runs ahead of the engine.

With room for all, the window is the whole checkpoint and nothing is ever given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a shard: its number from 0, and bytes."""

    shard: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Course:
    """How far engine and reading are.

    Attributes:
        sizes: Bytes of each shard, in load order.
        limit: Bytes that may lie in memory before the engine takes them.
        loaded: Shards that the engine has done with; it is at the shard of this number.
        shard: The next block to be read begins in this shard …
        offset: … at this byte.
        dropped: Shards below this number were given back.
    """

    sizes: tuple[int, ...]
    limit: int
    loaded: int = 0
    shard: int = 0
    offset: int = 0
    dropped: int = 0

    @property
    def total(self) -> int:
        """Bytes of the whole checkpoint."""
        return sum(self.sizes)

    @property
    def ahead(self) -> int:
        """Bytes between the shard that the engine is at and the next block."""
        return max(sum(self.sizes[self.loaded : self.shard]) + self.offset, 0) if self.shard >= self.loaded else 0

    @property
    def whole(self) -> bool:
        """Whether everything that has not been given back fits."""
        return sum(self.sizes[self.dropped :]) <= self.limit

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to read."""
        return self.shard >= len(self.sizes)


def next_block(course: Course, most: int) -> tuple[Course, Block | None]:
    """The next block of at most `most` bytes; None while the window is full, or at the end.

    A reading that the engine has overtaken goes on where the engine is.
    """
    if course.shard < course.loaded:
        course = replace(course, shard=course.loaded, offset=0)
    while course.shard < len(course.sizes) and course.offset >= course.sizes[course.shard]:
        course = replace(course, shard=course.shard + 1, offset=0)
    if course.finished:
        return course, None
    size = min(most, course.sizes[course.shard] - course.offset)
    if course.ahead + size > course.limit:
        return course, None
    block = Block(course.shard, course.offset, size)
    return replace(course, offset=course.offset + size), block


def engine_at(course: Course, done: float, total: float) -> Course:
    """The course after the engine's bar said `done` of `total`; it never goes back.

    A bar over another number of shards (the engine skips some, or counts tensors) is taken in
    proportion, and rounded down.
    """
    count = len(course.sizes)
    if total <= 0 or done < 0 or done > total:
        return course
    loaded = int(done) if total == count else int(done * count / total)
    return replace(course, loaded=max(min(loaded, count), course.loaded))


def behind(course: Course, mapped: frozenset[int]) -> range:
    """The shards to give back: loaded by everybody, and only where memory is needed for others.

    The bar is the first worker's. Another one may be behind it, so that the last shard stays, and
    nothing from the first shard on that any process has mapped.

    Args:
        course: The course.
        mapped: Shards that some process has mapped.
    """
    if course.whole:
        return range(0)
    end = min([course.loaded - 1, *mapped])
    return range(course.dropped, max(end, course.dropped))


def given_back(course: Course, shards: range) -> Course:
    """The course after these shards were given back."""
    return replace(course, dropped=max(course.dropped, shards.stop))
