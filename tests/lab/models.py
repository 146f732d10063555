"""The small models, made once for each state of their recipe and kept beside the engine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.paths import LabError, engine_python, models_dir

RECIPE = Path(__file__).with_name("tiny_model.py")


def main() -> int:
    """Makes the model that most tests use and prints where it lies."""
    try:
        print(tiny_model())
    except LabError as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    return 0


def tiny_model(*options: str) -> Path:
    """The directory of a small reasoning model.

    Args:
        options: Options of tiny_model.py, such as "--shards", "3".

    Raises:
        LabError: It cannot be made.
    """
    if not engine_python().exists():
        raise LabError(f"{engine_python()} is missing: run `make engine-dev`")
    key = hashlib.sha256(RECIPE.read_bytes() + "\0".join(options).encode()).hexdigest()[:12]
    directory = models_dir() / f"tiny-{key}"
    os.umask(0o022)
    try:
        models_dir().mkdir(exist_ok=True)
        with (models_dir() / "lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not directory.exists():
                _make(directory, options)
    except OSError as error:
        if not directory.exists():
            raise LabError(
                f"the model cannot be written to {directory} ({error.strerror}): set VSUP_DEV_HOME to a directory of yours"
            ) from None
    return directory


def _make(directory: Path, options: tuple[str, ...]) -> None:
    command = [engine_python(), RECIPE, directory, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise LabError(f"the small model cannot be made: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")


if __name__ == "__main__":
    sys.exit(main())
