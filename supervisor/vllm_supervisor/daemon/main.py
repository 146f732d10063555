"""The daemon's life: from an instance to an exit code, or to its own next image."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_supervisor import __version__
from vllm_supervisor.adapters.allocator import give_back, one_arena
from vllm_supervisor.adapters.history import History
from vllm_supervisor.adapters.http_server import HttpServer, Page
from vllm_supervisor.adapters.launcher import unblock_signals
from vllm_supervisor.adapters.lock import InstanceLock, acquire
from vllm_supervisor.adapters.processes import become_subreaper
from vllm_supervisor.core.events import Tick
from vllm_supervisor.core.exits import ExitCode

from .build import Built, Outlets, build, open_outlets
from .checker import Checker, Refusal
from .pages import Pages
from .perform import Parts, Performer
from .recorder import Recorder
from .reload import RESUME, Reloader
from .supervisor import Supervisor

if TYPE_CHECKING:
    from vllm_supervisor.core.policy import Policy

    from .carry import Carried
    from .instance import Instance

NOTE_EVERY_S = 1.0


async def supervise(
    instance: Instance,
    *,
    record_path: Path | None,
    log_level: str,
    carried: Carried | None = None,
) -> ExitCode:
    """Run one start of an instance to its end, or go on with the one that is carried.

    Returns:
        The exit code; everything that goes wrong is said on stderr before.
    """
    one_arena()
    become_subreaper()
    outlets = open_outlets(log_level, instance.secrets(os.environ))
    checker = Checker(instance)
    lock: InstanceLock | Refusal
    if carried is not None:
        lock = InstanceLock(carried.lock)
    else:
        lock = checker.before_anything() or _take_directories(instance)
    if isinstance(lock, Refusal):
        # Nothing has been written so far, and nothing will be.
        outlets.log.error(lock.sentence)
        outlets.notifier.send(status=lock.sentence)
        outlets.close(1.0)
        return lock.code
    history = History(instance.history_path, keep=instance.settings.history.keep, redact=outlets.redact)
    if history.trouble:
        outlets.log.warning(history.trouble)
    record = Recorder(record_path, outlets.log)
    failures: list[dict[str, Any]] = []
    built = build(instance, outlets, checker, history, record=record, carried=carried)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: _bug(failures, built.supervisor, outlets.log, context)
    )
    checker.neighbours.tell(built.supervisor.state, "Starting", {})
    code = await _live(built, outlets, lock, failures, resumed=carried is not None)
    checker.neighbours.withdraw()
    history.close()
    record.close()
    outlets.close(2.0)
    lock.release()
    return code


async def _live(
    built: Built, outlets: Outlets, lock: InstanceLock, failures: list[dict[str, Any]], *, resumed: bool
) -> ExitCode:
    """Serve, run the loop to its end, and put everything away."""
    supervisor, parts = built.supervisor, built.parts
    pages = Pages(parts, supervisor)

    async def put_away(*, away: bool = True) -> None:
        noting.cancel()
        showing.cancel()
        parts.watch.close()
        await parts.reading.close()
        await parts.cluster.close(away=away)
        await built.witness.close()
        await built.gpus.close()
        await parts.http.close()
        await server.close()

    reloader = Reloader(supervisor, parts, outlets, argv=own_arguments(), lock=lock.descriptor, before_exec=put_away)
    parts.reload = reloader.reload

    async def reload_page(_: Any) -> Page:
        return await pages.reload(reloader)

    instance = parts.instance
    posts = {"/reload": reload_page}
    server = HttpServer(instance.settings.metrics.listen, instance.socket_path, pages.gets(), posts)
    supervisor.handle_signals()
    unblock_signals()
    await server.start()
    noting = asyncio.get_running_loop().create_task(_note(server, supervisor, parts.history, outlets.log))
    showing = asyncio.get_running_loop().create_task(outlets.display.keep_showing(pages.now))
    _say_hello(built, resumed=resumed)
    gc.collect()
    gc.freeze()
    give_back()
    try:
        ended = await supervisor.run(Performer(parts), Tick() if resumed else None)
        code = ended.code
    except Exception as error:  # noqa: BLE001 - a bug of ours must not leave an engine behind
        failures.append({"message": "the loop failed", "exception": error})
        code = ExitCode.BUG
    if failures:
        code = await _after_bug(parts, supervisor.state.policy, failures)
    await put_away(away=False)
    with contextlib.suppress(asyncio.CancelledError):
        await noting
    return code


def _say_hello(built: Built, *, resumed: bool) -> None:
    parts, policy = built.parts, built.supervisor.state.policy
    name = parts.instance.name
    if resumed:
        parts.log.info(f"vllm-supervisor {__version__} goes on with {name} (reload {parts.reloads})")
    else:
        attempt = f"attempt {policy.attempt} of {policy.max_attempts}"
        parts.log.info(f"vllm-supervisor {__version__} starts {name} ({attempt})")


def own_arguments() -> list[str]:
    """The arguments of this process, without those of an earlier re-execution."""
    arguments = sys.argv[1:]
    if RESUME in arguments:
        place = arguments.index(RESUME)
        del arguments[place : place + 2]
    return arguments


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


def _bug(failures: list[dict[str, Any]], supervisor: Supervisor, log: Any, context: dict[str, Any]) -> None:
    """An exception that nobody caught is a bug of ours: the start ends in order, with exit 70.

    Not when only a connection or a pipe broke that nobody listens to any more: an engine that took nine minutes to load
    is worth more than the answer to a client that is gone.
    """
    if not isinstance(context.get("exception"), (Exception, type(None))):
        return
    if is_only_a_lost_peer(context):
        log.warning(f"{context.get('message')}: {context['exception']!r}")
        return
    failures.append(context)
    supervisor.ask_to_stop()


def is_only_a_lost_peer(context: dict[str, Any]) -> bool:
    """Whether asyncio's report is of a transport's own future, not of a task of ours, and of a broken connection."""
    future = context.get("future")
    ours = future is None or isinstance(future, asyncio.Task)
    return not ours and isinstance(context.get("exception"), ConnectionError)


async def _after_bug(parts: Parts, policy: Policy, failures: list[dict[str, Any]]) -> ExitCode:
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
    # A bug that repeats at every start must have an end, too.
    code = ExitCode.GAVE_UP if policy.attempt >= policy.max_attempts else ExitCode.BUG
    parts.history.update(ended_at=time.time(), outcome="failed", exit_code=int(code), reason="bug")
    return code


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
