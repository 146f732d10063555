"""What a snapshot was made of, as one value, and what differs from it now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .words import duration

FORMAT = 1
LONGER_S = 10.0
"""A start that took no more than this longer took as long as before."""
_SECTIONS = ("versions", "packages", "configuration", "units", "checkpoint", "gpus")
_FIGURES = ("weights_gib", "kv_cache_gib", "kv_cache_tokens", "kv_cache_dtype", "attention_backend")


class ManifestError(Exception):
    """It is no manifest of ours; the message is one sentence."""


def manifest(instance: str, at: str, *, stopped: bool, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The whole manifest.

    Args:
        instance: Its name.
        at: When, in UTC.
        stopped: Whether the service was stopped for it; otherwise it is crash-consistent only.
        parts: `versions`, `packages`, `configuration`, `units`, `checkpoint`, `gpus`, `last_start`.
    """
    return {"format": FORMAT, "instance": instance, "at": at, "consistent": stopped, **parts}


def read_manifest(found: Any) -> dict[str, Any]:
    """The manifest in a JSON value.

    Raises:
        ManifestError: it is none.
    """
    if not isinstance(found, dict) or "instance" not in found or not isinstance(found.get("format"), int):
        raise ManifestError("it is no manifest of a snapshot")
    if found["format"] > FORMAT:
        raise ManifestError(f"it has format {found['format']}, and only {FORMAT} is known here: use a newer version")
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, a sentence each; empty when nothing does.

    Args:
        before: The manifest.
        now: The same parts as they are now.
    """
    found: list[str] = []
    for section in _SECTIONS:
        found += [f"{section}: {line}" for line in _between(before.get(section) or {}, now.get(section) or {})]
    return found + _figures(before.get("last_start") or {}, now.get("last_start") or {})


def _between(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name not in before:
            lines.append(f"{name} is new ({_short(new)})")
        elif name not in now:
            lines.append(f"{name} is gone (it was {_short(old)})")
        else:
            lines.append(f"{name} is {_short(new)}, it was {_short(old)}")
    return lines


def _figures(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Figures of the last starts; the length of a load counts from half as much again, seconds do not."""
    lines = []
    old, new = before.get("ready_after_s"), now.get("ready_after_s")
    if old and new and new > max(1.5 * old, old + LONGER_S):
        lines.append(f"last_start: it took {duration(new)}, it was {duration(old)}")
    a, b = before.get("figures") or {}, now.get("figures") or {}
    lines += [
        f"last_start: {name} is {b[name]}, it was {a[name]}"
        for name in _FIGURES
        if name in a and name in b and a[name] != b[name]
    ]
    return lines


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} {_short(part)}" for key, part in value.items())
        return f"[{inner}]"
    text = str(value)
    # A hash says nothing; the name of a card does.
    return text if len(text) <= 60 or " " in text else f"{text[:12]}... ({len(text)} characters)"
