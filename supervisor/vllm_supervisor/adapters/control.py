"""A client of the control socket: what a running daemon answers, over a unix socket, by http.client.

Whether a daemon runs is seen from here: nobody listens on the socket of a dead one.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 5.0
"""The daemon answers /status from memory; a longer silence means that its loop does not turn."""


class NotRunningError(Exception):
    """Nobody listens on the socket."""


class ControlError(Exception):
    """A daemon may be there and cannot be asked; the message is one sentence with the remedy."""


class NotAllowedError(ControlError):
    """The daemon may not be asked by us."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the daemon answered."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ControlError: it is none.
        """
        try:
            return json.loads(self.body)
        except ValueError:
            raise ControlError("the supervisor's answer is no JSON; is it of another version?") from None


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of to an address."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def request(path: Path, target: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> Reply:
    """One request to the daemon behind the socket `path`.

    Args:
        path: The control socket.
        target: Path of the page, such as `/status`.
        method: GET, or POST for what changes something.
        timeout_s: Seconds until the daemon counts as stuck.

    Raises:
        NotRunningError: no daemon listens there.
        ControlError: it may not be asked, or it does not answer.
    """
    connection = _Connection(path, timeout_s)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        return Reply(answer.status, answer.getheader("Content-Type", ""), answer.read())
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NotRunningError(str(path)) from None
    except PermissionError:
        raise NotAllowedError(f"{path} may not be used by you: run as root or as the service's user") from None
    except TimeoutError:
        raise ControlError(f"the supervisor behind {path} has not answered for {timeout_s:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)):
            # It ended while it was asked.
            raise NotRunningError(str(path)) from None
        raise ControlError(f"{path} cannot be asked: {error}") from None
    finally:
        connection.close()


def status(path: Path) -> dict[str, Any]:
    """What /status says.

    Raises:
        NotRunningError, ControlError: as `request`.
    """
    found = request(path, "/status").json()
    if not isinstance(found, dict):
        raise ControlError("the supervisor's status is no object; is it of another version?")
    return found
