"""A checkpoint's directory: its files' sizes, headers and JSON documents. No tensor data is read.

Everything that is wrong is collected as a `CheckpointError` value, so that a check can name all of
it; nothing is raised for the state of the files.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_supervisor.core import checkpoint as core
from vllm_supervisor.core.checkpoint import CheckpointError, Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json", "tiktoken.model")
_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """What a checkpoint's directory holds.

    Attributes:
        path: The directory as it was given.
        config: config.json, None when it could not be read.
        quant_config: hf_quant_config.json, None without one.
        tensors: Every tensor of every shard that is used.
        shards: How many shard files were read.
        file_bytes: Their sizes together.
        tokenizer: Whether there is any tokenizer file.
        problems: All that is wrong, in the order in which it was found.
        strays: safetensors files that the index does not name.
        complete: Whether all shards were read, or the caller ended it.
    """

    path: str
    config: dict[str, Any] | None
    quant_config: dict[str, Any] | None
    tensors: tuple[Tensor, ...]
    shards: int
    file_bytes: int
    tokenizer: bool
    problems: tuple[CheckpointError, ...]
    strays: tuple[str, ...] = ()
    complete: bool = True


def read_checkpoint(path: str | Path, go_on: Callable[[], bool] = lambda: True) -> CheckpointSeen:
    """Read a checkpoint's headers and documents.

    Args:
        path: Its directory.
        go_on: Asked before each shard; a caller under a deadline may end the reading here.
    """
    with _no_collection():
        return _read_checkpoint(path, go_on)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Half of the time for 277,000 tensors went into collections that had nothing to find."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_checkpoint(path: str | Path, go_on: Callable[[], bool]) -> CheckpointSeen:
    root = Path(path)
    problems: list[CheckpointError] = []
    try:
        names = sorted(os.listdir(root))
    except (OSError, ValueError) as problem:
        wrong = CheckpointError("model-not-found", _cannot("the model directory", root, problem))
        return CheckpointSeen(str(path), None, None, (), 0, 0, tokenizer=False, problems=(wrong,))
    config = _document(root, "config.json", core.MAX_CONFIG_BYTES, problems)
    if config is None and not problems:
        problems.append(CheckpointError("model-not-found", f"{root} holds no config.json, so it is no model directory"))
    quant = _document(root, "hf_quant_config.json", core.MAX_CONFIG_BYTES, problems)
    present = [name for name in names if name.endswith(".safetensors")]
    expected, strays = _expected(root, present, problems)
    tensors: list[Tensor] = []
    read = size = 0
    complete = True
    for name, promised in expected.items():
        if not go_on():
            complete = False
            break
        try:
            found, file_bytes = _read_shard(root / name, name)
            if promised is not None:
                _check_named({tensor[0] for tensor in found}, promised, name)
        except CheckpointError as problem:
            if len(problems) < _MOST_PROBLEMS:
                problems.append(problem)
            continue
        tensors.extend(found)
        read += 1
        size += file_bytes
    tokenizer = any(name in names for name in TOKENIZERS)
    return CheckpointSeen(
        str(path), config, quant, tuple(tensors), read, size, tokenizer, tuple(problems), tuple(strays), complete
    )


def _expected(
    root: Path, present: list[str], problems: list[CheckpointError]
) -> tuple[dict[str, list[str] | None], list[str]]:
    """The shards to read with the tensors that each must hold, and files that no index names."""
    before = len(problems)
    index_text = _read(root, INDEX, core.MAX_INDEX_BYTES, problems)
    if index_text is None:
        if len(problems) > before:
            return {}, []
        if SINGLE in present:
            return {SINGLE: None}, [name for name in present if name != SINGLE and _is_shard(name)]
        if present and not any("-of-" in name for name in present):
            return dict.fromkeys(present), []
        missing = f"holds shards but no {INDEX}" if present else "holds no *.safetensors file"
        problems.append(
            CheckpointError("checkpoint-incomplete", f"{root} {missing}; the download is incomplete, run it again")
        )
        return {}, []
    try:
        index = core.parse_index(index_text)
    except CheckpointError as problem:
        problems.append(problem)
        return {}, []
    here = set(present)
    absent = sorted(shard for shard in index.shards if shard not in here and not (root / shard).exists())
    if absent:
        shown = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        problems.append(
            CheckpointError(
                "checkpoint-incomplete",
                f"{len(absent)} of {len(index.shards)} shards that {INDEX} names are missing: {shown}; "
                "finish the download",
            )
        )
    strays = [name for name in present if name not in index.shards and _is_shard(name)]
    gone = set(absent)
    return {shard: names for shard, names in sorted(index.shards.items()) if shard not in gone}, strays


def _is_shard(name: str) -> bool:
    # Mistral's repositories carry the same weights a second time under this name; adapters are extras.
    return not name.startswith(("consolidated", "adapter"))


def _read_shard(path: Path, name: str) -> tuple[list[Tensor], int]:
    try:
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError("checkpoint-corrupt", f"{name} is no regular file")
            size = status.st_size
            length = core.header_length(file.read(core.PREFIX_BYTES), size, name)
            text = file.read(length)
    except OSError as problem:
        raise CheckpointError("checkpoint-incomplete", _cannot("the shard", path, problem)) from None
    return core.parse_header(text, size, name), size


def _check_named(found: set[str], promised: list[str], name: str) -> None:
    if found.issuperset(promised):
        return
    lost = sorted(set(promised) - found)
    raise CheckpointError(
        "checkpoint-mismatch",
        f"{name} lacks {len(lost)} tensors that {INDEX} promises ({lost[0]:.80}); the files belong to different "
        "revisions, download them again",
    )


def _document(root: Path, name: str, limit: int, problems: list[CheckpointError]) -> dict[str, Any] | None:
    text = _read(root, name, limit, problems)
    if text is None:
        return None
    try:
        return core.parse_config(text, name)
    except CheckpointError as problem:
        problems.append(problem)
        return None


def _read(root: Path, name: str, limit: int, problems: list[CheckpointError]) -> bytes | None:
    """A small file's bytes; None when it is not there or cannot be used, with the problem noted."""
    path = root / name
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            wrong = _unlike_a_document(path, status, limit)
            if wrong is None:
                return file.read(limit)
            problems.append(wrong)
    except FileNotFoundError as problem:
        if path.is_symlink():
            problems.append(CheckpointError("checkpoint-incomplete", _cannot("the file", path, problem)))
    except OSError as problem:
        problems.append(CheckpointError("checkpoint-corrupt", _cannot("the file", path, problem)))
    return None


def _unlike_a_document(path: Path, status: os.stat_result, limit: int) -> CheckpointError | None:
    if not stat.S_ISREG(status.st_mode):
        return CheckpointError("checkpoint-corrupt", f"{path} is no regular file")
    if status.st_size > limit:
        sentence = f"{path} has {status.st_size} bytes, far more than such a file can have ({limit}); download it again"
        return CheckpointError("checkpoint-corrupt", sentence)
    return None


def _cannot(what: str, path: Path, problem: OSError | ValueError) -> str:
    number = problem.errno if isinstance(problem, OSError) else None
    if number == errno.ELOOP:
        return f"{what} {path} cannot be opened: its symbolic links form a loop; make the link anew"
    if number == errno.ENOENT and path.is_symlink():
        return f"{what} {path} is a link to a file that is gone; finish the download or make the link anew"
    if number == errno.ENOENT:
        return f"{what} {path} does not exist; correct engine.model or mount the disk"
    if number == errno.ENOTDIR:
        return f"{what} {path} is no directory"
    if number in {errno.EACCES, errno.EPERM}:
        return f"{what} {path} cannot be read: permission denied; give the service user access to it"
    if number == errno.EISDIR:
        return f"{what} {path} is a directory, not a file"
    detail = os.strerror(number) if number else str(problem)
    return f"{what} {path} cannot be read: {detail}"
