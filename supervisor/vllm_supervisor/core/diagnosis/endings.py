"""Lines that say that something ended and not why: follow-on errors, stops on request, exits.

They are never a cause. They tell a failed start from one that is still going on, and a stop that was
asked for from a death.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from vllm_supervisor.core.lines import Line, Source


class Ending(Enum):
    """What kind of end a line tells of."""

    DEATH = auto()
    """The engine failed, for a reason that stands elsewhere."""
    STOP = auto()
    """Somebody asked for the end."""
    EXIT = auto()
    """The engine is gone, in whichever way."""


_WRAPPER = re.compile(
    r"(?:[\w.]{1,120}: )?(?:"
    r"Engine core initialization failed\. See root cause above"
    r"|Frontend process failed during engine core initialization"
    r"|WorkerProc initialization failed due to an exception in a background process"
    r"|WorkerProc (?:failed to start|failed)\."
    r"|EngineCore (?:failed to start|encountered a fatal error|encountered an issue)\b"
    r"|Executor failed\."
    r"|AsyncLLM output_handler failed"
    r"|Application startup failed\. Exiting\."
    r"|(?:Failed core proc|Engine process failed to start)"
    r")",
)
_DEATHS = re.compile(
    r"(?:[\w.]{1,120}: )?(?:Worker proc \S{1,40} died unexpectedly|Engine core proc(?:ess)? \S{1,40} died unexpectedly"
    r"|MPClient: engine core exited unexpectedly"
    r"|Process ApiServer_\d+ \(PID: \d+\) died)",
)
_MAYBE_WRAPPER = re.compile(r"(?:[\w.]{1,120}: )?(?:WorkerProc hit an exception\.|EngineCore hit an exception)")
"""A request of the engine to its workers failed; whether the engine dies of it, other lines say."""
_HARMLESS = re.compile(
    r"(?:[\w.]{1,120}\.)?(?:SystemExit|KeyboardInterrupt|CancelledError|GeneratorExit|BrokenPipeError"
    r"|ConnectionResetError"
    r"|ConnectionRefusedError|EOFError|RuntimeError: cancelled|Cancelled)\b"
    r"|(?:[\w.]{1,120}: )?(?:failed to recv, got \d+ bytes|.{0,200}Connection (?:closed by peer|reset by peer)"
    r"|cancelled$)",
)
_STOP = re.compile(
    r"(?:\[shutdown\] API server: shutdown triggered|Shutting down$|KeyboardInterrupt: terminated|KeyboardInterrupt$"
    r"|(?:Stopping|Stopped) \S.*|.{0,120}: Sent signal SIG(?:TERM|KILL) to main process|Received signal \d+|Got "
    r"signal SIG(?:TERM|INT))",
)
_UNIT_END = re.compile(r".{0,120}: Main process exited, code=(?P<how>\w+), status=(?P<status>\S+)")
_RC = re.compile(r"(?:rc|exit(?: code| status)?)[ =:]{1,3}(?P<code>-?\d{1,3})$")


def is_wrapper(message: str) -> bool:
    """Whether a message only points to an error that stands elsewhere (F4.0)."""
    return _WRAPPER.match(message) is not None or _MAYBE_WRAPPER.match(message) is not None


def is_harmless(message: str) -> bool:
    """Whether an exception line is a consequence that proves nothing, such as a peer's closed socket."""
    return _HARMLESS.match(message) is not None


def ending(line: Line) -> Ending | None:
    """What a line says about the end of the engine.

    Args:
        line: A peeled line.

    Returns:
        The kind of end, or None for all other lines.
    """
    message = line.message
    if line.source is Source.SYSTEMD:
        if unit := _UNIT_END.match(message):
            asked = unit["status"].startswith(("15", "0/"))
            return Ending.STOP if asked else Ending.EXIT
        return Ending.STOP if message.startswith(("Stopping ", "Stopped ")) else None
    if line.source is Source.BARE:
        return _bare(message)
    if line.level in ("ERROR", "CRITICAL"):
        if _WRAPPER.match(message) or _DEATHS.match(message):
            return Ending.DEATH
    elif message.startswith("MPClient: engine core exited"):
        return Ending.DEATH
    elif line.source in (Source.UVICORN, Source.JSON) or message.startswith("[shutdown] API server: shutdown"):
        return Ending.STOP if _STOP.match(message) else None
    return None


def _bare(message: str) -> Ending | None:
    if message.startswith("KeyboardInterrupt") and _STOP.match(message):
        return Ending.STOP
    if ("Engine" in message or "Worker" in message) and (_WRAPPER.match(message) or _DEATHS.match(message)):
        return Ending.DEATH
    if "resource_tracker: There appear to be" in message:
        return Ending.EXIT
    if rc := _RC.match(message):
        return Ending.STOP if rc["code"] == "0" else Ending.EXIT
    return None
