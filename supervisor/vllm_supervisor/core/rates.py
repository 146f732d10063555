"""Tokens per second from a counter that may start again from zero."""

from __future__ import annotations

from dataclasses import dataclass

from .metrics import WINDOWS

KEPT = max(WINDOWS.values())
"""Seconds of samples that are kept: the longest window."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """The last samples of one counter, as its growth without the resets.

    Attributes:
        samples: (monotonic seconds, growth since the first sample), oldest first.
        last: The counter's own last value.
        created: When the counter began, as the engine says, None if it does not.
    """

    samples: tuple[tuple[float, float], ...] = ()
    last: float = 0.0
    created: float | None = None

    def add(self, at: float, value: float, created: float | None = None) -> RateWindow:
        """The window with one more sample.

        Args:
            at: Monotonic seconds; a sample that is not later than the last one is left out.
            value: The counter. Less than before means that it began again from zero.
            created: The counter's own begin; another one than before means the same.
        """
        if not self.samples:
            return RateWindow(((at, 0.0),), value, created)
        before, grown = self.samples[-1]
        if at <= before:
            return self
        began_again = value < self.last or (self.created is not None and created not in {None, self.created})
        grown += value if began_again else value - self.last
        # The newest sample that is as old as the window stays: the window's growth is counted from it.
        first = max((i for i, (when, _) in enumerate(self.samples) if when <= at - KEPT), default=0)
        return RateWindow((*self.samples[first:], (at, grown)), value, created if created is not None else self.created)

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
