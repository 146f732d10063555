"""Saving an incident: collecting what is known of a failure, within a deadline, whatever the disk does.

The engine waits for this before it is killed, so nothing here may hang or raise: what blocks runs in
threads that nobody waits for at the end, and what cannot be had is left out.
"""

from __future__ import annotations

import asyncio
import os
import platform
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_supervisor import __version__
from vllm_supervisor.adapters.engine_info import find_program, interpreter_of, read_version
from vllm_supervisor.adapters.incidents import Incidents
from vllm_supervisor.adapters.process_detail import detail, driver_version
from vllm_supervisor.adapters.processes import title
from vllm_supervisor.adapters.stacks import as_text, by_abort, by_py_spy, find_py_spy
from vllm_supervisor.core.events import Role
from vllm_supervisor.core.facts import FigureName
from vllm_supervisor.core.incident import Facts, files, process_tree
from vllm_supervisor.core.recording import encode
from vllm_supervisor.core.several import table

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_supervisor.core.effects import SaveIncident
    from vllm_supervisor.core.state import State

    from .perform import Parts

T = TypeVar("T")

STACKS_S = 16.0
"""For the stacks of all processes of a hung engine; half of it for each of the two ways."""
WRITE_S = 6.0
"""For collecting and writing. Both together stay below the core's own deadline of 25 s."""
OUTPUT_LINES = 500
"""Of all processes together, in the order in which they were printed."""
KERNEL_BEFORE_S = 60.0
"""Lines of the kernel from shortly before the start belong to it."""

_FIRST = (Role.WORKER, Role.ENGINE_CORE, Role.API_SERVER)


async def save_incident(parts: Parts, effect: SaveIncident, state: State) -> str:
    """Write what is known of the failure into a directory of its own; its path, or empty."""
    at, stacks = time.time(), ""
    try:
        if effect.stacks:
            stacks = await _within(STACKS_S, lambda: _stacks(parts), "")
        settings = parts.instance.settings.incident
        incidents = Incidents(parts.instance.state_dir / "incidents", keep=settings.keep, max_mib=settings.max_mib)

        def write() -> tuple[Path | None, str]:
            facts = _facts(parts, effect, state, at, stacks)
            done = incidents.write(at, effect.cause.reason, files(facts, parts.redact, incidents.characters))
            return done.path, done.trouble

        late = "the incident cannot be saved: the disk does not answer"
        nothing: tuple[Path | None, str] = (None, late)
        path, trouble = await _within(WRITE_S, write, nothing)
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine must be ended now
        parts.log.warning(f"the incident cannot be saved: {type(error).__name__}: {error}")
        return ""
    if trouble:
        parts.log.warning(trouble)
    if path is not None:
        parts.log.info(f"incident saved in {path}; `vllm-supervisor incident show {parts.instance.name}` shows it")
    return str(path) if path is not None else ""


async def _within(seconds: float, work: Callable[[], T], otherwise: T) -> T:
    """What `work` gives, from a thread that does not keep the process alive; `otherwise` when it takes longer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as problem:  # noqa: BLE001 - it is raised where the result is awaited
            error = problem
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop has ended; nobody waits for this any more

    threading.Thread(target=run, name="incident", daemon=True).start()
    try:
        return await asyncio.wait_for(done, seconds)
    except TimeoutError:
        return otherwise


def _stacks(parts: Parts) -> str:
    """The stacks of every interpreter of the engine, the workers first."""
    roles = sorted(parts.watch.roles.items(), key=lambda item: (_rank(item[1][0]), item[0]))
    pids = [pid for pid, (role, _) in roles if role is not Role.COMPILER]
    names = {pid: name for pid, (_, name) in roles}
    command = parts.run.command or parts.instance.settings.engine.command
    program = find_program(command, parts.environment)
    tool = find_py_spy(str(program or ""), parts.environment.get("PATH", ""))
    found = by_py_spy(tool, pids, STACKS_S / 2 - 1.0) if tool else {}
    if not found:
        parts.log.info("asking the hung engine for its stacks with SIGABRT")
        found = by_abort(pids, parts.run.listen, STACKS_S / 2 - 1.0)
    return as_text(found, names)


def _rank(role: Role) -> int:
    return _FIRST.index(role) if role in _FIRST else len(_FIRST)


def _facts(parts: Parts, effect: SaveIncident, state: State, at: float, stacks: str) -> Facts:
    cause, witness = effect.cause, parts.witness
    evidence = [("output", cause.evidence)] if cause.evidence else []
    if state.suspect is not None and state.suspect.evidence not in {"", cause.evidence}:
        evidence.append((f"output ({state.suspect.reason})", state.suspect.evidence))
    kernel: list[str] | None = None
    if witness is not None:
        evidence += witness.evidence
        if witness.kernel.pid is not None or witness.kernel.lines:
            lines = witness.kernel.since(parts.began_wall - KERNEL_BEFORE_S)
            kernel = [f"{_utc(line.at)} {line.message}" for line in lines]
    table = parts.gpu_table()
    return Facts(
        cause=cause,
        began_at=parts.began_wall,
        at=at,
        timeline=[(phase.value, when - state.started) for phase, when in state.timeline],
        state=_state(parts, state),
        evidence=evidence,
        output=parts.run.last_lines(OUTPUT_LINES),
        lines=parts.run.tail.by_process(),
        configuration=parts.instance.settings.model_dump(mode="json"),
        command=parts.run.command,
        environment=parts.environment,
        gpus=encode(table) if table is not None else None,
        processes=_processes(parts),
        kernel=kernel,
        versions=_versions(parts, state),
        stacks=stacks,
    )


def _state(parts: Parts, state: State) -> dict[str, Any]:
    life = state.life
    return {
        "phases": {phase.value: round(value, 3) for phase, value in state.phase_seconds(state.since).items()},
        "figures": {name.value: value for name, value in state.figures.items()},
        "activity": encode(state.activity),
        "last_evidence": state.evidence.what,
        "counters": encode(life.counted) if life is not None and life.counted is not None else None,
        "engines": table(state.engines, time.monotonic()),
        "last_proof_of_life": life.proof if life is not None else None,
        "exit_status": state.exit_status,
        "attempt": state.policy.attempt,
        "warnings": list(state.warnings),
        "processes": {str(pid): [role.value, name] for pid, (role, name) in parts.watch.roles.items()},
    }


def _processes(parts: Parts) -> list[str]:
    there = parts.processes.ours()
    rows = process_tree([(one.pid, one.ppid, f"{title(one)}  {detail(one.pid)}") for one in there])
    pids = {one.pid for one in there}
    gone = [f"{pid} {name}  gone" for pid, (_, name) in parts.watch.roles.items() if pid not in pids]
    return [*rows, *gone]


def _versions(parts: Parts, state: State) -> dict[str, str]:
    command = parts.run.command or parts.instance.settings.engine.command
    program = find_program(command, parts.environment)
    interpreter = interpreter_of(program) if program is not None else None
    engine = str(state.figures.get(FigureName.ENGINE_VERSION, "")) or read_version(command, parts.environment)
    return {
        "vllm-supervisor": __version__,
        "engine": engine or "unknown",
        "engine's interpreter": os.path.realpath(interpreter) if interpreter is not None else "unknown",
        "python of the supervisor": platform.python_version(),
        "NVIDIA driver": driver_version() or "none",
        "NCCL": str(state.figures.get(FigureName.NCCL_VERSION, "unknown")),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
