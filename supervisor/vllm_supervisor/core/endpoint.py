"""Where and how the engine is asked: host, port, socket, TLS, prefix and key, from its own arguments (F2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Scalar = bool | int | float | str
Args = Mapping[str, Scalar | list[Scalar]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach the engine's HTTP server.

    Attributes:
        url: Scheme, address, port and root path, without a trailing slash.
        uds: Path of its unix socket; empty when it listens on TCP.
        port: The TCP port; 0 with a unix socket.
        model: The name to ask for.
        api_key: Sent as a bearer token; empty when the engine asks for none. Never printed.
        tls: The engine speaks HTTPS only.
        ca_file: Certificate to trust: its CA's, else its own.
    """

    url: str
    model: str
    uds: str = ""
    port: int = 0
    api_key: str = ""
    tls: bool = False
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r}, uds={self.uds!r}, model={self.model!r})"


def argument(args: Args, name: str) -> Scalar | list[Scalar] | None:
    """An argument by its long name, written with dashes or underscores; false counts as absent."""
    for key in (name, name.replace("-", "_")):
        if key in args and args[key] is not False:
            return args[key]
    return None


def endpoint(host: str, port: int, model: str, args: Args, env: Mapping[str, str]) -> Endpoint:
    """The way to an engine that was started with these settings.

    Args:
        host: Address that it binds; wildcard addresses are asked on the loopback.
        port: Port that it binds.
        model: Served model name.
        args: Its further arguments.
        env: Its environment, for VLLM_API_KEY; `--api-key` wins.
    """
    key = argument(args, "api-key")
    if isinstance(key, list):
        key = key[0] if key else None
    api_key = str(key) if isinstance(key, (str, int, float)) else env.get("VLLM_API_KEY", "")
    tls = argument(args, "ssl-keyfile") is not None and argument(args, "ssl-certfile") is not None
    ca_file = str(argument(args, "ssl-ca-certs") or argument(args, "ssl-certfile") or "") if tls else ""
    prefix = str(argument(args, "root-path") or "").rstrip("/")
    uds = str(argument(args, "uds") or "")
    if uds:
        return Endpoint(f"http://localhost{prefix}", model, uds=uds, api_key=api_key)
    address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound
    shown = f"[{address}]" if ":" in address else address
    scheme = "https" if tls else "http"
    return Endpoint(f"{scheme}://{shown}:{port}{prefix}", model, "", port, api_key, tls, ca_file)


_APPENDING = frozenset({"middleware"})
"""Arguments that take one value each time; all other lists of `vllm serve` take several at once, and
a second flag would replace the first (F9.11)."""


def command_line(
    command: list[str],
    model: str,
    *,
    served_model_name: str,
    host: str,
    port: int,
    args: Args,
) -> list[str]:
    """The engine's whole command: `--key value`, bare flags for true, repeated values for lists.

    Names are written with dashes, but a dotted name (`--compilation-config.cudagraph_mode`) only up to
    its first dot: what follows is a field's name.
    """
    line = [*command, model]
    if argument(args, "uds") is None:
        line += ["--host", host, "--port", str(port)]
    line += ["--served-model-name", served_model_name]
    for key, value in args.items():
        name, dot, field = key.partition(".")
        flag = f"--{name.replace('_', '-')}{dot}{field}"
        if value is False:
            continue
        if value is True:
            line.append(flag)
        elif isinstance(value, list) and name in _APPENDING:
            line += [part for item in value for part in (flag, str(item))]
        elif isinstance(value, list):
            line += [flag, *(str(item) for item in value)]
        else:
            line += [flag, str(value)]
    return line


DROPPED = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "SYSTEMD_EXEC_PID",
    "CREDENTIALS_DIRECTORY",
    "STATE_DIRECTORY",
    "RUNTIME_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "PROMETHEUS_MULTIPROC_DIR",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "FORCE_COLOR",
    "VLLM_LOGGING_PREFIX",
    "VLLM_LOGGING_COLOR",
    "LOG_LEVEL",
)
"""What the engine does not inherit from us (F1.3, F9.7, F9.9); NAME.env and engine.env may set it."""


def child_environment(
    own: Mapping[str, str],
    file_env: Mapping[str, str],
    settings_env: Mapping[str, str],
    marks: Mapping[str, str],
) -> dict[str, str]:
    """The engine's environment: the unit's, then NAME.env, then engine.env, then what must be so.

    Args:
        own: Our own environment, as the unit or the shell gave it.
        file_env: NAME.env.
        settings_env: [engine.env].
        marks: Our start id and what keeps it readable.
    """
    env = {name: value for name, value in own.items() if name not in DROPPED and not name.startswith("VSUP_")}
    # No colour codes in the journal, lines when they are printed, stacks when we have to abort.
    env |= {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    env |= dict(file_env) | dict(settings_env)
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        env.pop(name, None)
    return env | dict(marks)
