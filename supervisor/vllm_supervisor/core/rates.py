"""Tokens per second from counters that may start again from zero, of engines that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .metrics import WINDOWS

KEPT = max(WINDOWS.values())
"""Seconds of samples that are kept: the longest window."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One engine's counter: its value, and when it began as the engine says (Unix seconds), None if it does not."""

    value: float
    created: float | None = None

    def growth(self, before: Counter) -> float:
        """How much was counted since `before`: less than before, or another begin, means that it began again."""
        known = self.created is not None and before.created is not None
        began_again = self.value < before.value or (known and self.created != before.created)
        return self.value if began_again else self.value - before.value


@dataclass(frozen=True, slots=True)
class RateWindow:
    """The last samples of a counter that several engines may have, as its growth without the resets.

    Attributes:
        samples: (monotonic seconds, growth since the first sample), oldest first.
        counters: The last value of each engine that was ever seen, by its label.
    """

    samples: tuple[tuple[float, float], ...] = ()
    counters: Mapping[str, Counter] = field(default_factory=dict)

    def add(self, at: float, counters: Mapping[str, Counter]) -> RateWindow:
        """The window with one more sample.

        Args:
            at: Monotonic seconds; a sample that is not later than the last one is left out.
            counters: By the engine's label. An engine that is seen for the first time has counted nothing
                yet; one that is missing for a while goes on where it was.
        """
        if not self.samples:
            return RateWindow(((at, 0.0),), dict(counters))
        before, grown = self.samples[-1]
        if at <= before:
            return self
        grown += sum(now.growth(self.counters[label]) for label, now in counters.items() if label in self.counters)
        kept = {
            label: Counter(now.value, now.created if now.created is not None else self._created(label))
            for label, now in counters.items()
        }
        # The newest sample that is as old as the window stays: the window's growth is counted from it.
        first = max((i for i, (when, _) in enumerate(self.samples) if when <= at - KEPT), default=0)
        return RateWindow((*self.samples[first:], (at, grown)), {**self.counters, **kept})

    def _created(self, label: str) -> float | None:
        known = self.counters.get(label)
        return known.created if known is not None else None

    def rate(self, seconds: float, now: float) -> float | None:
        """Growth a second.

        Args:
            seconds: The window.
            now: Monotonic seconds.

        Returns:
            The mean over the window, or over what is known of it while it is young: 0 when nothing
            grew and 0 after a single sample; None when no sample is younger than the window.
        """
        if not self.samples or now - self.samples[-1][0] > seconds:
            return None
        end, grown = self.samples[-1]
        begin, base = self.samples[0]
        for when, value in self.samples:
            if when <= end - seconds:
                begin, base = when, value
        return (grown - base) / (end - begin) if end > begin else 0.0

    def rates(self, now: float) -> dict[str, float | None]:
        """The rate over each window of the metrics, by its label."""
        return {label: self.rate(seconds, now) for label, seconds in WINDOWS.items()}
