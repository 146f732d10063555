"""Where a model's files are: a directory as it is, or a hub name's snapshot in the local cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?")

_LONGEST = 96
"""The hub allows no longer name."""


def is_hub_name(model: str) -> bool:
    """Whether this can be a name of the hub (`owner/name`) and nothing on the disk."""
    return len(model) <= _LONGEST and _HUB_NAME.fullmatch(model) is not None and not Path(model).exists()


def locate(model: str, env: Mapping[str, str], revision: str = "main") -> Path:
    """The directory of a model; for a hub name its newest cached snapshot.

    A name that is not in the cache comes back as the path that it would have, so that the caller's
    reading names what is missing.

    Args:
        model: A directory, or `owner/name`.
        env: The engine's environment; HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME count.
        revision: Branch, tag or commit.
    """
    path = Path(model)
    if not is_hub_name(model) or path.is_absolute():
        return path
    home = Path(env.get("HOME") or Path("/root"))
    hf_home = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "huggingface")
    cache = Path(env.get("HF_HUB_CACHE") or hf_home / "hub")
    folder = cache / ("models--" + model.replace("/", "--"))
    try:
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else path
