"""The other instances of this machine, as files show them: claims in runtime directories, links of systemd.

Every supervisor writes one small file, NAME/claim.json, that everybody may read; it counts as long
as the process that wrote it lives. So nothing is shared that one user could keep from another, and
a supervisor that was killed claims nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from vllm_supervisor.core.neighbours import Claim, from_document, to_document
from vllm_supervisor.core.readahead.memory import read_meminfo

CLAIM = "claim.json"
WANTS = (Path("/etc/systemd/system"), Path("/run/systemd/system"))
_TICKS_FIELD = 19
"""Start time in /proc/PID/stat, counted after the name (proc(5), field 22)."""


def born(pid: int, proc: Path = Path("/proc")) -> int:
    """The start time of a process in ticks since boot; 0 when there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_text()
        fields = text.rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[_TICKS_FIELD])
    except (OSError, ValueError, IndexError):
        return 0


def write_claim(directory: Path, claim: Claim) -> None:
    """Say what this instance is doing; a directory that cannot be written is no reason to stop.

    Written whole and readable by all, whatever the umask of the unit is.
    """
    with contextlib.suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=f".{CLAIM}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(to_document(claim), file)
                os.fchmod(file.fileno(), 0o644)
            Path(temporary).replace(directory / CLAIM)
        except (OSError, ValueError):
            Path(temporary).unlink(missing_ok=True)
            raise


def withdraw_claim(directory: Path) -> None:
    """Claim nothing any more."""
    with contextlib.suppress(OSError):
        (directory / CLAIM).unlink()


def read_claims(roots: Iterable[Path], *, but: str = "") -> list[Claim]:
    """What the running instances say of themselves, sorted by name.

    Args:
        roots: Directories that hold one runtime directory an instance, such as /run/vllm-supervisor.
        but: The name of an instance that does not count: the one that asks.
    """
    found: dict[str, Claim] = {}
    for root in dict.fromkeys(roots):
        for path in sorted(root.glob(f"*/{CLAIM}")) if _is_directory(root) else ():
            with contextlib.suppress(OSError, ValueError):
                claim = from_document(json.loads(path.read_bytes()))
                if claim is not None and claim.needs.name != but and claim.born and born(claim.pid) == claim.born:
                    found.setdefault(claim.needs.name, claim)
    return [found[name] for name in sorted(found)]


def is_enabled(name: str, places: Iterable[Path] = WANTS) -> bool:
    """Whether systemd starts an instance at boot: a link in a .wants or .requires directory."""
    units = (f"{name}.service", f"vllm@{name}.service")
    for place in places:
        for kind in ("wants", "requires"):
            for directory in place.glob(f"*.{kind}") if _is_directory(place) else ():
                if any(os.path.lexists(directory / unit) for unit in units):
                    return True
    return False


def cacheable_bytes(proc: Path = Path("/proc")) -> int | None:
    """Memory that can hold file pages: what the kernel calls available; None when it does not say."""
    with contextlib.suppress(OSError):
        memory = read_meminfo((proc / "meminfo").read_text())
        return memory.available if memory is not None else None
    return None


def weights_bytes(checkpoint: Path) -> int:
    """Bytes of the weight files of a checkpoint's directory; 0 when there is none."""
    total = 0
    with contextlib.suppress(OSError):
        for path in checkpoint.iterdir():
            if path.suffix in {".safetensors", ".bin", ".pt", ".gguf"}:
                total += path.stat().st_size
    return total


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
