"""The last minutes of serving, for the page's charts: tokens a second and requests."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import dataclass

EVERY_S = 2.0
KEPT_S = 600.0


@dataclass(frozen=True, slots=True)
class Point:
    """One sample; what was not known is None.

    Attributes:
        at: Monotonic seconds.
        generation: Tokens generated a second.
        running: Requests that are being answered.
        waiting: Requests in the queue.
    """

    at: float
    generation: float | None
    running: float | None
    waiting: float | None


class Trend:
    """Samples of the last ten minutes."""

    def __init__(self) -> None:
        self._points: collections.deque[Point] = collections.deque(maxlen=int(KEPT_S / EVERY_S))

    def add(self, now: float, *, ready: bool, rates: Mapping[str, float], requests: Mapping[str, float | None]) -> None:
        """A sample of the figures that /status gives under these names; nothing before the engine serves."""
        if ready and (rates or requests):
            point = Point(now, rates.get("generation"), requests.get("running"), requests.get("waiting"))
            self._points.append(point)

    def points(self) -> list[Point]:
        """The samples, oldest first."""
        return list(self._points)
