"""What the command line can learn of an instance: from its daemon, and from its history when that is gone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters import control
from vllm_supervisor.adapters.history import History

if TYPE_CHECKING:
    from .locate import Place

_INTERNAL = frozenset({"id", "boot_id", "gaps"})


class AskError(Exception):
    """Nothing can be learnt; the message is one sentence with the remedy.

    Attributes:
        denied: Another user might learn it.
    """

    def __init__(self, sentence: str, *, denied: bool = False) -> None:
        super().__init__(sentence)
        self.denied = denied


def ask(place: Place) -> dict[str, Any]:
    """What /status says, with `running`; of a dead daemon the last start as `last`, and the configuration's `problems`.

    Raises:
        AskError: neither daemon nor history can be read by us.
    """
    try:
        return {**control.status(place.socket_path), "running": True}
    except control.ControlError as error:
        raise AskError(str(error), denied=isinstance(error, control.NotAllowedError)) from None
    except control.NotRunningError:
        rows = past(place, 1)
        last = {name: value for name, value in rows[-1].items() if name not in _INTERNAL} if rows else None
        return {"instance": place.name, "running": False, "ready": False, "phase": "", "last": last} | {
            "problems": _problems(place)
        }


def _problems(place: Place) -> list[str]:
    """What is wrong with the configuration that the next start would read; nothing where we may not read it."""
    from vllm_supervisor.config.load import holder_of

    from .instance import read_instance

    found = read_instance(holder_of(place.config_path) or place.config_path)
    if not isinstance(found, list) or any(problem.denied for problem in found):
        return []
    return [str(problem) for problem in found]


def past(place: Place, limit: int = 500) -> list[dict[str, Any]]:
    """The last starts as the history has them, oldest first; none when there is no history.

    Raises:
        AskError: there is a history that cannot be read.
    """
    try:
        there = place.history_path.parent.is_dir() and place.history_path.exists()
    except PermissionError:
        there = True
    if not there:
        return []
    history = History(place.history_path, read_only=True)
    try:
        rows = history.rows(limit) if not history.trouble else []
        if history.trouble:
            raise AskError(
                f"the history {place.history_path} cannot be read: run as root or as the service's user, "
                "and see whether the file is whole",
                denied=not os.access(place.history_path, os.R_OK),
            )
        return rows
    finally:
        history.close()
