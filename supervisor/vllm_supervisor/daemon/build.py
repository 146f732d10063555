"""Putting the parts of a daemon together: everything that one start, or its continuation, works with."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor import __version__
from vllm_supervisor.adapters import log as logs
from vllm_supervisor.adapters import notify
from vllm_supervisor.adapters.cgroup import of_our_unit
from vllm_supervisor.adapters.engine_http import EngineHttp
from vllm_supervisor.adapters.history import History
from vllm_supervisor.adapters.kernel_log import KernelLog
from vllm_supervisor.adapters.output import Forwarder
from vllm_supervisor.adapters.processes import Processes
from vllm_supervisor.adapters.sockets import holder
from vllm_supervisor.core.account import known_rate
from vllm_supervisor.core.eta import last_load
from vllm_supervisor.core.redact import redactor
from vllm_supervisor.core.slower import compared

from .cluster import Cluster
from .display import Display, display_for
from .engine_run import EngineRun
from .gpus import Gpus
from .instance import cache_dirs
from .node import facts_of, secret_path
from .perform import Parts
from .policy import arguments_of_ours, build_policy
from .readahead import Reading
from .smoke import ask
from .supervisor import Supervisor
from .watch import Watch
from .witness import Witness

if TYPE_CHECKING:
    import structlog

    from vllm_supervisor.core.policy import Policy
    from vllm_supervisor.core.retry import PastStart

    from .carry import Carried
    from .checker import Checker
    from .instance import Instance
    from .recorder import Recorder


@dataclass(slots=True)
class Outlets:
    """Where we speak: systemd, the journal, the log.

    Attributes:
        variables: What systemd gave to its main process; a re-execution puts it back.
        redact: Takes the secrets out of a text.
    """

    notifier: notify.Notifier
    watchdog_s: float | None
    variables: dict[str, str]
    forwarder: Forwarder
    journal: bool
    log: structlog.typing.FilteringBoundLogger
    display: Display
    redact: Callable[[str], str]

    def close(self, within_s: float) -> None:
        """Write what waits, for at most `within_s` seconds, and take the display away."""
        self.forwarder.close(within_s)
        self.display.close()


def open_outlets(log_level: str, secret_values: Iterable[str] = ()) -> Outlets:
    """Take systemd's variables out of the environment and open our own log.

    Args:
        log_level: The least level that is written.
        secret_values: What is replaced in everything that we write.
    """
    redact = redactor(secret_values)
    display = display_for(sys.stderr.fileno(), os.environ)
    notifier, watchdog, variables = notify.from_environment()
    journal = logs.is_journal()
    forwarder = Forwarder(display.fileno())

    def write(line: bytes, lines: int) -> None:
        forwarder.put(redact(line.decode(errors="replace")).encode(), lines)

    log = logs.logger(write, journal=journal, level=log_level)
    return Outlets(notifier, watchdog, variables, forwarder, journal, log, display, redact)


@dataclass(slots=True)
class Built:
    """A daemon that can run."""

    supervisor: Supervisor
    parts: Parts
    gpus: Gpus
    witness: Witness
    past: list[PastStart]


def build(
    instance: Instance,
    outlets: Outlets,
    checker: Checker,
    history: History,
    *,
    record: Recorder,
    carried: Carried | None = None,
) -> Built:
    """Everything for one start; with `carried`, for going on with a start that another image began."""
    past = history.past()
    version = checker.engine_version()
    policy = _policy(instance, outlets, past, version)
    supervisor = Supervisor(policy, record=record, state=carried.resumed(policy) if carried else None)
    supervisor.compared = compared(past, instance.config_hash())
    start_id = carried.start_id if carried else secrets.token_hex(8)
    processes = Processes(start_id, holds_weights=instance.holds_weights, elsewhere=instance.on_ray)
    gpus = Gpus(instance, processes)
    endpoint = instance.endpoint()
    http = EngineHttp(
        endpoint,
        task=carried.task if carried else "health" if instance.holds_weights else instance.settings.readiness.probe,
        stranger=lambda: holder(endpoint.port, watch.living()) if endpoint.port else "",
        answer_timeout_s=instance.settings.readiness.answer_timeout_s,
    )
    environment = instance.engine_environment(os.environ, start_id)
    witness = Witness(
        supervisor.put,
        kernel=lambda heard: KernelLog(heard, helpers=processes.helpers),
        counter=of_our_unit(os.environ),
        gpu_table=gpus.table,
        machine_gpus=gpus.machine,
        alive=lambda: supervisor.state.engine_alive,
        helpers=processes.helpers,
        helpers_killed=lambda: parts.reading.killed,
        log=outlets.log,
    )
    watch = Watch(
        witness.put,
        processes,
        http,
        port=endpoint.port,
        cache_dirs=cache_dirs(environment),
        gpu_table=gpus.table,
    )
    cluster = Cluster(
        instance.settings.cluster,
        supervisor.put,
        outlets.log,
        secret=secret_path(instance.name, os.environ),
        look=lambda: facts_of(instance, checker.model, version, environment),
        redact=outlets.redact,
    )
    run = EngineRun(
        asyncio.get_running_loop(),
        witness.put,
        outlets.forwarder,
        journal=outlets.journal,
        redact=outlets.redact,
    )
    parts = Parts(
        instance=instance,
        put=supervisor.put,
        log=outlets.log,
        notifier=outlets.notifier,
        history=history,
        processes=processes,
        http=http,
        watch=watch,
        reading=Reading(
            instance,
            processes.helpers,
            environment=environment,
            version=version,
            log=outlets.log,
            rate=known_rate(history.rows()),
        ),
        run=run,
        start_id=start_id,
        model=lambda: checker.model,
        command=lambda: instance.command(checker.model, arguments_of_ours(instance, version)),
        environment=environment,
        devices=lambda: {**cluster.environment, **checker.devices},
        neighbours=checker.neighbours,
        cluster=cluster,
        preflight=checker.run,
        smoke=lambda: ask(http, instance.settings, history.rows),
        gpu_table=gpus.table,
        dropped=lambda: outlets.forwarder.dropped,
        last_load_s=last_load(past),
        witness=witness,
        redact=outlets.redact,
    )
    if carried is None:
        history.begin(
            began_at=parts.began_wall,
            boot_id=boot_id(),
            config_hash=instance.config_hash(),
            version=__version__,
            attempt=policy.attempt,
        )
    else:
        carried.restore(parts, outlets)
    return Built(supervisor, parts, gpus, witness, past)


def _policy(instance: Instance, outlets: Outlets, past: list[PastStart], version: str) -> Policy:
    return build_policy(
        instance,
        past,
        watchdog_s=outlets.watchdog_s,
        boot_id=boot_id(),
        now=time.time(),
        engine_version=version,
    )


def boot_id() -> str:
    """Which boot of the machine this is."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
