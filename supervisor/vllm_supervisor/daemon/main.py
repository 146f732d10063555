"""Putting the daemon together: from an instance to an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vllm_supervisor import __version__
from vllm_supervisor.adapters import log as logs
from vllm_supervisor.adapters import notify
from vllm_supervisor.adapters.engine_http import EngineHttp
from vllm_supervisor.adapters.gpu_stream import GpuStream
from vllm_supervisor.adapters.history import History
from vllm_supervisor.adapters.http_server import HttpServer
from vllm_supervisor.adapters.launcher import unblock_signals
from vllm_supervisor.adapters.lock import InstanceLock, acquire
from vllm_supervisor.adapters.output import Forwarder
from vllm_supervisor.adapters.processes import Processes, become_subreaper
from vllm_supervisor.adapters.sockets import holder
from vllm_supervisor.core.exits import ExitCode

from .checker import Checker, Refusal
from .engine_run import EngineRun
from .instance import cache_dirs
from .pages import Pages
from .perform import Parts, Performer
from .policy import arguments_of_ours, build_policy
from .smoke import ask
from .supervisor import Supervisor, open_record
from .watch import Watch

if TYPE_CHECKING:
    from vllm_supervisor.core.gpu import GpuTable

    from .instance import Instance

NOTE_EVERY_S = 1.0


async def supervise(instance: Instance, *, record_path: Path | None, log_level: str) -> ExitCode:
    """Run one start of an instance to its end.

    Returns:
        The exit code; everything that goes wrong is said on stderr before.
    """
    loop = asyncio.get_running_loop()
    unblock_signals()
    become_subreaper()
    notifier, watchdog, _ = notify.from_environment()
    journal = logs.is_journal()
    forwarder = Forwarder(sys.stderr.fileno())
    log = logs.logger(forwarder.put, journal=journal, level=log_level)
    checker = Checker(instance)
    lock = checker.before_anything() or _take_directories(instance)
    if isinstance(lock, Refusal):
        # Nothing has been written so far, and nothing will be.
        log.error(lock.sentence)
        notifier.send(status=lock.sentence)
        forwarder.close(1.0)
        return lock.code
    history = History(instance.history_path, keep=instance.settings.history.keep)
    if history.trouble:
        log.warning(history.trouble)
    record = _record(record_path, log)
    past = history.past()
    version = checker.engine_version()
    policy = build_policy(
        instance,
        past,
        watchdog_s=watchdog,
        boot_id=boot_id(),
        now=time.time(),
        engine_version=version,
    )
    supervisor = Supervisor(policy, record=record)
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: _bug(failures, supervisor, context))
    start_id = secrets.token_hex(8)
    gpu, gpu_task = _gpus(instance)
    processes = Processes(start_id)
    endpoint = instance.endpoint()
    http = EngineHttp(
        endpoint,
        task=instance.settings.readiness.probe,
        stranger=lambda: holder(endpoint.port, watch.living()) if endpoint.port else "",
        answer_timeout_s=instance.settings.readiness.answer_timeout_s,
    )

    def gpu_table() -> GpuTable | None:
        if gpu is None:
            return None
        if gpu.pid is not None:
            processes.helpers.add(gpu.pid)
        return gpu.current()

    environment = instance.engine_environment(os.environ, start_id)
    watch = Watch(
        supervisor.put,
        processes,
        http,
        port=endpoint.port,
        cache_dirs=cache_dirs(environment),
        gpu_table=gpu_table,
    )
    run = EngineRun(loop, supervisor.put, forwarder, journal=journal, secrets=instance.secrets())
    parts = Parts(
        instance=instance,
        put=supervisor.put,
        log=log,
        notifier=notifier,
        history=history,
        processes=processes,
        http=http,
        watch=watch,
        run=run,
        start_id=start_id,
        command=instance.command(instance.settings.engine.model, arguments_of_ours(instance, version)),
        environment=environment,
        preflight=lambda: checker.run(gpu_table()),
        smoke=lambda: ask(http, instance.settings.smoke),
        gpu_table=gpu_table,
        dropped=lambda: forwarder.dropped,
        last_load_s=_last_load(past),
    )
    history.begin(
        began_at=parts.began_wall,
        boot_id=boot_id(),
        config_hash=instance.config_hash(),
        version=__version__,
        attempt=policy.attempt,
    )
    pages = Pages(parts, supervisor)
    server = HttpServer(instance.settings.metrics.listen, instance.socket_path, pages.gets())
    supervisor.handle_signals()
    await server.start()
    noting = loop.create_task(_note(server, supervisor, history, log))
    log.info(
        f"vllm-supervisor {__version__} starts {instance.name} (attempt {policy.attempt} of {policy.max_attempts})"
    )
    gc.collect()
    gc.freeze()
    try:
        ended = await supervisor.run(Performer(parts))
        code = ended.code
    except Exception as error:  # noqa: BLE001 - a bug of ours must not leave an engine behind
        failures.append({"message": "the loop failed", "exception": error})
        code = ExitCode.BUG
    if failures:
        code = await _after_bug(parts, failures)
    noting.cancel()
    watch.close()
    if gpu_task is not None:
        gpu_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gpu_task
    await http.close()
    await server.close()
    history.close()
    if record is not None:
        record.close()
    forwarder.close(2.0)
    lock.release()
    return code


def _take_directories(instance: Instance) -> InstanceLock | Refusal:
    """Make the directories and take the lock, or say why that is not possible."""
    try:
        instance.state_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        instance.runtime_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        lock = acquire(instance.runtime_dir / "lock")
    except OSError as error:
        place = error.filename or instance.runtime_dir
        return Refusal(
            ExitCode.PERMANENT,
            f"{place} cannot be used: {error.strerror}; make it a directory that this user may write, or name "
            "others with --state-dir and --runtime-dir",
        )
    if isinstance(lock, int):
        who = f"pid {lock}" if lock else "another process"
        return Refusal(ExitCode.TRANSIENT, f"{instance.name} is already supervised by {who}; stop that one first")
    return lock


def _record(path: Path | None, log: Any) -> TextIO | None:
    if path is None:
        return None
    try:
        return open_record(path)
    except OSError as error:
        log.warning(f"no recording: {path}: {error.strerror}")
        return None


def _gpus(instance: Instance) -> tuple[GpuStream | None, asyncio.Task[None] | None]:
    if instance.settings.engine.device != "cuda":
        return None, None
    stream = GpuStream(lambda _: None)
    return stream, asyncio.get_running_loop().create_task(stream.run())


def _bug(failures: list[dict[str, Any]], supervisor: Supervisor, context: dict[str, Any]) -> None:
    """An exception that nobody caught is a bug of ours: the start ends in order, with exit 70."""
    if isinstance(context.get("exception"), (Exception, type(None))):
        failures.append(context)
        supervisor.ask_to_stop()


async def _after_bug(parts: Parts, failures: list[dict[str, Any]]) -> ExitCode:
    """Leave no engine behind, and one line that can be reported."""
    for context in failures:
        error = context.get("exception")
        place = ""
        trace = getattr(error, "__traceback__", None)
        while trace is not None:
            place = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
            trace = trace.tb_next
        parts.log.error(f"a bug of vllm-supervisor {__version__}{place}: {context.get('message')}: {error!r}")
    await asyncio.to_thread(parts.processes.kill)
    parts.history.update(ended_at=time.time(), outcome="failed", exit_code=int(ExitCode.BUG), reason="bug")
    return ExitCode.BUG


async def _note(server: HttpServer, supervisor: Supervisor, history: History, log: Any) -> None:
    """Keep the operator told of what is wrong with ourselves."""
    said = ""
    while True:
        trouble = server.trouble
        supervisor.note = trouble
        if trouble and trouble != said:
            log.warning(trouble)
        elif said and not trouble:
            log.info(f"the metrics port is served now (port {server.port})")
        said = trouble
        if history.trouble:
            log.warning(history.trouble)
            history.trouble = ""
        await asyncio.sleep(NOTE_EVERY_S)


def _last_load(past: list[Any]) -> float | None:
    ready = [start.ready_at - start.began_at for start in past if start.ready_at is not None]
    return ready[-1] if ready else None


def boot_id() -> str:
    """Which boot of the machine this is."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
