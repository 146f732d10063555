"""The overlay as a directory: links to a checkpoint, with a few documents of our own among them.

The checkpoint is only read. A new overlay is built beside its place and put there by one rename, so
that an engine sees the old one or the new one. A directory without our marker is never touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.core import overlay as core
from vllm_supervisor.core.checkpoint import MAX_CONFIG_BYTES, CheckpointError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class OverlayError(Exception):
    """An overlay that cannot be made or removed; the text is one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """An overlay as it should be: its checkpoint, its entries, and what they change.

    Attributes:
        source: The checkpoint's directory, absolute, links not resolved.
        links: By name where each link leads.
        documents: By name the content of each file of our own, the marker included.
        diff: The documents' changes as a unified diff.
    """

    source: str
    links: dict[str, str]
    documents: dict[str, bytes]
    diff: str


def describe(model: Path) -> Overlay:
    """The overlay of this checkpoint, without writing anything.

    Raises:
        CheckpointError: The directory or one of its documents cannot be used.
    """
    source = Path(os.path.abspath(model))  # noqa: PTH100 - resolve() would turn a hub's names into blobs
    try:
        names = sorted(name for name in os.listdir(source) if not name.startswith("."))
    except OSError as problem:
        raise CheckpointError("model-not-found", f"{source} cannot be read: {problem.strerror}") from None
    if "config.json" not in names:
        raise CheckpointError("model-not-found", f"{source} holds no config.json, so it is no model directory")
    documents: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    diffs: list[str] = []
    for name in core.DOCUMENTS:
        if name not in names:
            continue
        before = _read_document(source / name)
        after = core.rewritten(before, name)
        if after is not None:
            documents[name] = after
            digests[name] = hashlib.sha256(before).hexdigest()
            diffs += _diff(name, before, after)
    links = {name: str(source / name) for name in names if name not in documents}
    documents[core.MARKER] = core.marker(str(source), digests)
    return Overlay(str(source), links, documents, "".join(diffs))


def build(model: Path, output: Path) -> tuple[Overlay, bool]:
    """Make the overlay, or leave it alone when it is as it should be.

    Returns:
        The overlay, and whether anything was written.

    Raises:
        CheckpointError: The checkpoint cannot be used.
        OverlayError: The target is foreign or cannot be written.
    """
    overlay = describe(model)
    target = Path(os.path.abspath(output))  # noqa: PTH100 - a link at the target itself must be seen
    _refuse_inside(Path(overlay.source), target)
    state = _state(target)
    if state == "foreign":
        raise OverlayError(f"{target} is no overlay of ours; choose another --output or remove it yourself")
    if state == "ours" and _is_current(target, overlay):
        return overlay, False
    _refuse_strangers(target, state)
    draft = target.with_name(f".{target.name}.draft-{os.getpid()}")
    try:
        _sweep_drafts(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(draft, overlay)
        if state == "ours":
            _exchange(draft, target)
            _delete(draft)
        else:
            draft.rename(target)
        _sync(target.parent)
    except OSError as problem:
        with contextlib.suppress(OSError):
            _delete(draft)
        raise OverlayError(f"{target} cannot be written: {problem.strerror}; choose another --output") from None
    return overlay, True


def remove(output: Path) -> None:
    """Remove an overlay of ours; the checkpoint that it leads to stays.

    Raises:
        OverlayError: There is none, it is foreign, or it holds files that we did not make.
    """
    target = Path(os.path.abspath(output))  # noqa: PTH100 - see build
    if (state := _state(target)) == "absent":
        raise OverlayError(f"{target} does not exist; there is nothing to remove")
    if state != "ours":
        raise OverlayError(f"{target} is no overlay of ours; remove it yourself if you mean it")
    _refuse_strangers(target, state)
    draft = target.with_name(f".{target.name}.draft-{os.getpid()}")
    try:
        target.rename(draft)
        _delete(draft)
    except OSError as problem:
        raise OverlayError(f"{target} cannot be removed: {problem.strerror}") from None


def _read_document(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > MAX_CONFIG_BYTES:
            raise CheckpointError("checkpoint-corrupt", f"{path} is no document of a sensible size; download it again")
        return path.read_bytes()
    except OSError as problem:
        raise CheckpointError("checkpoint-corrupt", f"{path} cannot be read: {problem.strerror}") from None


def _diff(name: str, before: bytes, after: bytes) -> list[str]:
    old, new = (text.decode("utf-8", "replace").splitlines() for text in (before, after))
    lines = difflib.unified_diff(old, new, f"checkpoint/{name}", f"overlay/{name}", lineterm="")
    return [line + "\n" for line in lines]


def _refuse_inside(source: Path, target: Path) -> None:
    """A target inside the checkpoint, or inside the hub cache's folder of it, would write to them."""
    real = Path(os.path.realpath(source))
    guarded = [real, *(parent for parent in real.parents if parent.name.startswith("models--"))]
    place = Path(os.path.realpath(target.parent)) / target.name
    for folder in guarded:
        if place == folder or folder in place.parents:
            raise OverlayError(f"{target} lies inside the checkpoint {folder}, which is never written; choose another")
        if place in folder.parents:
            raise OverlayError(f"{target} contains the checkpoint {folder}; choose another --output")


def _state(target: Path) -> str:
    """`absent`, `empty`, `ours` or `foreign`."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return "absent"
    except OSError as problem:
        raise OverlayError(f"{target} cannot be looked at: {problem.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        return "foreign"
    with contextlib.suppress(OSError):
        if core.marked_source((target / core.MARKER).read_bytes()) is not None:
            return "ours"
    with contextlib.suppress(OSError):
        if not os.listdir(target):
            return "empty"
    return "foreign"


def _is_current(target: Path, overlay: Overlay) -> bool:
    try:
        if set(os.listdir(target)) != overlay.links.keys() | overlay.documents.keys():
            return False
        return all(str((target / name).readlink()) == where for name, where in overlay.links.items()) and all(
            not (target / name).is_symlink() and (target / name).read_bytes() == content
            for name, content in overlay.documents.items()
        )
    except OSError:
        return False


def _refuse_strangers(target: Path, state: str) -> None:
    known = {core.MARKER, *core.DOCUMENTS}
    for entry in list(os.scandir(target)) if state == "ours" else ():
        if not entry.is_symlink() and entry.name not in known:
            raise OverlayError(f"{target} holds {entry.name}, which is not of ours; take it out first")


def _write(draft: Path, overlay: Overlay) -> None:
    draft.mkdir(mode=0o755)
    draft.chmod(0o755)
    for name, where in overlay.links.items():
        (draft / name).symlink_to(where)
    for name, content in overlay.documents.items():
        path = draft / name
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.chmod(0o644)
    _sync(draft)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(draft: Path, target: Path) -> None:
    """Swap two directories in one step; where the file system cannot, in renames."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        done = renameat2(_AT_FDCWD, os.fsencode(draft), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE)
        if done == 0:
            return
        number = ctypes.get_errno()
        if number not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise OSError(number, os.strerror(number))
    aside = draft.with_name(draft.name + ".old")
    target.rename(aside)
    draft.rename(target)
    aside.rename(draft)


def _sweep_drafts(target: Path) -> None:
    """Remove what a process that was killed half-way left behind."""
    for path in target.parent.glob(f".{target.name}.draft-*"):
        pid = path.name.rpartition("-")[2].partition(".")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and not path.is_symlink():
            _delete(path)


def _delete(directory: Path) -> None:
    """Unlink a directory's entries and itself; links are never followed."""
    for entry in list(os.scandir(directory)) if os.path.lexists(directory) else ():
        Path(entry.path).unlink()
    with contextlib.suppress(FileNotFoundError):
        directory.rmdir()
