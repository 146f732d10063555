"""systemd's notify socket, by way of sdnotify.

sdnotify swallows every error unless `debug` is set, encodes latin-1 and leaves NOTIFY_SOCKET in
the environment, where the engine would inherit it. So it is constructed with `debug`, is given
ASCII only, and the variables are taken out of our own environment at once. Failures are counted.
"""

from __future__ import annotations

import os
from typing import Protocol

import sdnotify

from vllm_supervisor.core.words import ascii_only

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
"""What systemd sets for the main process alone; the engine must never see it."""


class Notifier(Protocol):
    """Tells the service manager how things stand."""

    errors: int

    def send(self, **fields: str) -> bool:
        """Send the fields in one datagram; False when it could not be delivered."""


class NullNotifier:
    """Nobody listens: a foreground run."""

    errors = 0

    def send(self, **fields: str) -> bool:
        """Nothing is sent."""
        return bool(fields)


class SystemdNotifier:
    """A service manager listens on NOTIFY_SOCKET."""

    def __init__(self, socket_path: str) -> None:
        self.errors = 0
        self.path = socket_path
        # sdnotify reads the variable only while it is constructed.
        before = os.environ.get("NOTIFY_SOCKET")
        os.environ["NOTIFY_SOCKET"] = socket_path
        try:
            self._notifier = sdnotify.SystemdNotifier(debug=True)
        finally:
            if before is None:
                del os.environ["NOTIFY_SOCKET"]
            else:
                os.environ["NOTIFY_SOCKET"] = before
        # A full socket must not block the loop (sdnotify's is blocking).
        self._notifier.socket.setblocking(False)

    def send(self, **fields: str) -> bool:
        """Send the fields in one datagram; a failure is counted, never raised."""
        text = "\n".join(f"{name.upper()}={ascii_only(value)}" for name, value in fields.items())
        try:
            self._notifier.notify(text)
        except OSError:
            self.errors += 1
            return False
        return True


def from_environment() -> tuple[Notifier, float | None, dict[str, str]]:
    """The notifier, the watchdog's period in seconds, and the variables that were taken out.

    The variables leave our environment here, so that no child can inherit them; a re-execution
    puts them back from the returned mapping.
    """
    taken = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    watchdog: float | None = None
    usec = taken.get("WATCHDOG_USEC", "")
    if usec.isdigit() and int(usec) > 0 and taken.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        watchdog = int(usec) / 1e6
    path = taken.get("NOTIFY_SOCKET", "")
    if not path:
        return NullNotifier(), None, taken
    try:
        return SystemdNotifier(path), watchdog, taken
    except OSError:
        broken = NullNotifier()
        broken.errors = 1
        return broken, watchdog, taken
