"""The file of `run --record`: every event as it was decided on, for `replay`."""

from __future__ import annotations

import contextlib
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.core.recording import to_line

if TYPE_CHECKING:
    import structlog


class Recorder:
    """Writes events line by line; a file that cannot be written ends the recording, never the start.

    Args:
        path: The file, which is begun anew; None records nothing.
        log: Told once when there is nothing more to be recorded.
    """

    def __init__(self, path: Path | None, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log
        self._file: FileIO | None = None
        if path is None:
            return
        try:
            self._file = FileIO(path, "w")
        except OSError as error:
            log.warning(f"no recording: {path}: {error.strerror}")

    def write(self, value: object, at: float) -> None:
        """Record a value of the core at its time, in monotonic seconds."""
        if self._file is None:
            return
        try:
            self._file.write(to_line(value, at).encode() + b"\n")
        except OSError as error:
            self._log.warning(f"the recording ends here: {error.strerror}")
            self.close()

    def close(self) -> None:
        """Record nothing more."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
