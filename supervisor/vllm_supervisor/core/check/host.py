"""The machine: port, limits, shared memory, disk."""

from __future__ import annotations

from vllm_supervisor.core.plan.sizes import GIB, MIB, gib

from .finding import Finding, refuse, warn
from .observed import EngineView, ObservedHost
from .settings import Options

_RING = 176 * MIB
_RING_OF_WORKER = 240 * MIB
"""vLLM's message rings: one for calls, one for the answers of every worker (0.32, nominal sizes)."""
_COMFORT_OF_WORKER = 512 * MIB
"""Rings and NCCL together: 4 GiB at TP=8."""
_NOFILE = 65535
_SHM = "/dev/shm"  # noqa: S108 - the kernel's place, only named
_CACHE_LITTLE, _CACHE_NONE = 10 * GIB, 512 * MIB


def check_ports(view: EngineView, options: Options, host: ObservedHost) -> list[Finding]:
    """An address that can be bound, nobody else on it; our own page's is told, it keeps nobody down."""
    # Of several nodes only the first one, of rank 0, opens the port (F8.1).
    opens = not options.has("uds") and not options.number("node-rank")
    found = _check_binding(view, host) if opens else []
    if host.port_holder is not None and opens:
        found.append(
            refuse(
                "port",
                "port-in-use",
                f"port {view.port} of {view.host} is held by {host.port_holder}",
                f"stop it ({_stop(host.port_holder.unit, host.port_holder.pid)}), or set engine.port to another",
            )
        )
    if host.metrics_unbindable:
        found.append(
            warn(
                "metrics-port",
                f"the metrics address {view.metrics_listen} cannot be bound: {host.metrics_unbindable}",
                "set metrics.listen to an address of this machine; the engine is started all the same",
            )
        )
    if host.metrics_holder is not None:
        found.append(
            warn(
                "metrics-port",
                f"the metrics port {view.metrics_listen} is held by {host.metrics_holder}",
                "set metrics.listen to another; the engine is started all the same",
            )
        )
    return found


def _check_binding(view: EngineView, host: ObservedHost) -> list[Finding]:
    """The engine's address and port as such, whoever else may be there."""
    found = []
    if host.unbindable:
        found.append(
            refuse(
                "host",
                "configuration-invalid",
                f"engine.host {view.host} cannot be bound: {host.unbindable}",
                "set engine.host to an address of this machine, such as 127.0.0.1, or to 0.0.0.0 for all of them",
            )
        )
    seen = f"port {view.port} is one of those that need the right CAP_NET_BIND_SERVICE"
    remedy = "set engine.port to 1024 or more, or give the unit AmbientCapabilities=CAP_NET_BIND_SERVICE"
    if host.port_denied:
        found.append(refuse("port", "configuration-invalid", f"{seen}, which is not there", remedy))
    elif host.port_needs_right:
        found.append(warn("port", f"{seen}, which the service has not by default", remedy))
    return found


def check_limits(options: Options, host: ObservedHost) -> list[Finding]:
    """Open files and locked memory."""
    found = []
    files = host.limits.get("nofile")
    if files is not None and 0 <= files < _NOFILE:
        found.append(warn("ulimits", f"only {files} files may be open", "set LimitNOFILE=1048576 in the unit"))
    locked = host.limits.get("memlock")
    if locked is not None and locked >= 0 and options.parallel().gpus > 1:
        found.append(
            warn(
                "ulimits", f"only {locked // MIB} MiB of memory may be locked", "set LimitMEMLOCK=infinity in the unit"
            )
        )
    return found


def check_shm(options: Options, host: ObservedHost) -> list[Finding]:
    """The shared memory holds the rings between the engine and its workers, and NCCL's buffers."""
    workers = options.workers_here()
    if workers < 2 or host.shm_bytes is None:
        return []
    free = host.shm_bytes if host.shm_free_bytes is None else host.shm_free_bytes
    least, comfort = _RING + workers * _RING_OF_WORKER, workers * _COMFORT_OF_WORKER
    size = max(4, -(-comfort // GIB))
    remedy = f"set TemporaryFileSystem={_SHM}:mode=1777,size={size}G in the unit, or remount {_SHM}"
    if free < least // 2:
        seen = f"{_SHM} has {free // MIB} MiB free and {workers} workers need about {least // MIB} MiB"
        return [refuse("shm", "shm-too-small", seen, remedy)]
    if host.shm_bytes < comfort:
        seen = f"{_SHM} has {gib(host.shm_bytes)}, less than the {gib(comfort)} advised for {workers} workers"
        return [warn("shm", seen, remedy)]
    return []


def check_caches(host: ObservedHost) -> list[Finding]:
    """Caches that cannot be written make every start a cold one."""
    found = []
    for path, free in host.caches.items():
        if free is None:
            found.append(
                warn(
                    "caches",
                    f"the service user cannot write the cache directory {path}",
                    f"chown it, or set {_variables(path)}",
                )
            )
        elif free < _CACHE_NONE:
            found.append(
                refuse(
                    "caches",
                    "disk-full",
                    f"{free // MIB} MiB are free for the cache directory {path}",
                    "free some disk space",
                )
            )
        elif free < _CACHE_LITTLE:
            found.append(
                warn("caches", f"only {gib(free)} are free for the cache directory {path}", "free some disk space")
            )
    return found


def _variables(path: str) -> str:
    return "TMPDIR" if path.startswith("/tmp") else "VLLM_CACHE_ROOT and HOME in NAME.env"  # noqa: S108 - only a name


def _stop(unit: str, pid: int) -> str:
    if unit.endswith(".service"):
        return f"systemctl stop {unit}"
    return f"kill {pid}" if pid else "see: ss -ltnp"
