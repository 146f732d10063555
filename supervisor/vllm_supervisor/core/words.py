"""Numbers in words, the same way everywhere: durations, sizes, counts. ASCII only (STATUS is)."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """`4 min 40 s`, `1 h 2 min`, `8 s`; fractions below ten seconds only."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def size(count: float) -> str:
    """Bytes as `70.8 GiB`, `512 MiB`, `900 B`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def ascii_only(text: str) -> str:
    """The text with everything outside printable ASCII replaced by `?`, on one line."""
    return "".join(char if " " <= char <= "~" else "?" for char in text.replace("\n", " "))
