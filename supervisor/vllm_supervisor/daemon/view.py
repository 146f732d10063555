"""What the pages show: one value for people and programs, one snapshot for the exposition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm_supervisor import __version__
from vllm_supervisor.core.eta import launched_at, ratio, start_left
from vllm_supervisor.core.facts import FigureName
from vllm_supervisor.core.gpu_rows import gpu_rows
from vllm_supervisor.core.metrics import WINDOWS, Snapshot
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.plan.sizes import GIB
from vllm_supervisor.core.redact import clean
from vllm_supervisor.core.several import table
from vllm_supervisor.core.smoke import VERDICTS
from vllm_supervisor.core.status import sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_supervisor.core.events import SmokeDone
    from vllm_supervisor.core.state import State

    from .perform import Parts


def snapshot(parts: Parts, state: State, now: float) -> Snapshot:
    """Everything that /metrics shows."""
    watch = parts.watch
    totals = parts.history.totals("failures")
    failures = {(key.partition("/")[0], key.partition("/")[2]): count for key, count in totals.items()}
    roles: dict[str, int] = {}
    for role, _ in watch.roles.values():
        roles[role.value] = roles.get(role.value, 0) + 1
    serving = state.ready_at is not None
    life = state.life
    lines = dict(parts.run.lines)
    return Snapshot(
        phase=state.phase.value,
        ready=state.phase is Phase.READY,
        engine_up=state.engine_alive,
        engine_metrics_expected=parts.instance.expects_engine_metrics,
        version=__version__,
        engine_version=str(state.figures.get(FigureName.ENGINE_VERSION, "")),
        start_time_seconds=parts.began_wall,
        phase_seconds={phase.value: seconds for phase, seconds in state.phase_seconds(now).items()},
        load_progress_ratio=ratio(state, now),
        load_shards=_shards(state),
        load_eta_seconds=start_left(state, now),
        last_load_seconds=parts.last_load_s if state.ready_at is None else state.ready_at - launched_at(state),
        starts_total=parts.history.totals("starts"),
        failures_total=failures,
        engine_processes=roles,
        liveness_last_proof_seconds=now - life.proof_at if life is not None else None,
        liveness_engine_last_proof_seconds={label: now - one.proof_at for label, one in state.engines.items()},
        liveness_engine_hung={label: int(one.hung) for label, one in state.engines.items()},
        probe_seconds=parts.last_probe_s,
        canary_seconds=life.canary_seconds if life is not None else None,
        canary_failures_total=life.canary_failures if life is not None else 0,
        output_lines_total=lines,
        output_dropped_total=parts.dropped(),
        notify_errors_total=parts.notifier.errors,
        generation_tokens_per_second=_rates(watch.generation.rate, now) if serving else {},
        prompt_tokens_per_second=_rates(watch.prompt.rate, now) if serving else {},
        kv_cache_tokens=watch.counters.kv_cache_tokens or _number(state.figures.get(FigureName.KV_CACHE_TOKENS)),
        kv_cache_bytes_per_token=_bytes_per_token(state.figures),
        **_smoke_figures(state.smoke_test),
        **_readahead(parts),
        **_weights(parts, state),
        **parts.cluster.figures(),
        gpu=parts.gpu_table(),
        engine_pids=watch.pids(),
    )


def _smoke_figures(test: SmokeDone | None) -> dict[str, Any]:
    if test is None:
        return {}
    return {
        "smoke_success": test.passed,
        "smoke_seconds": test.seconds,
        "smoke_first_token_seconds": test.first_token_s,
        "smoke_tokens_per_second": test.tokens_per_s,
        "smoke_verdict": {kind: float(kind == test.kind) for kind in VERDICTS} if test.kind else {},
    }


def _readahead(parts: Parts) -> dict[str, Any]:
    report = parts.reading.report
    if not report.total_bytes:
        return {}
    return {
        "checkpoint_bytes": report.total_bytes,
        "readahead_ahead_bytes": report.ahead_bytes if parts.reading.active else 0,
        "readahead_bytes_total": {"disk": report.read_bytes, "memory": report.cached_bytes},
        "readahead_hit_ratio": report.hit_ratio,
        "readahead_disk_bytes_per_second": report.disk_rate,
    }


def _weights(parts: Parts, state: State) -> dict[str, Any]:
    """Of the process that serves the engine and of the one that holds its weights, where there are two."""
    if parts.instance.holds_weights:
        return {"weights_held": {"holder": int(state.phase is Phase.READY)}}
    held = parts.neighbours.held()
    if held is None:
        return {}
    return {"weights_held": {"engine": int(held.ready)}, "weights_fit": not held.differing if held.ready else None}


def _weights_shown(parts: Parts) -> dict[str, Any] | None:
    held = parts.neighbours.held()
    if held is None:
        return None
    return {"holder": held.name, "held": held.ready, "differing": list(held.differing)}


def _rates(rate: Any, now: float) -> dict[str, float | None]:
    return {label: rate(seconds, now) for label, seconds in WINDOWS.items()}


def _shards(state: State) -> dict[str, float] | None:
    bar = state.shards
    return {"loaded": bar.done, "total": bar.total} if bar is not None else None


def _number(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _bytes_per_token(figures: Mapping[FigureName, float | str]) -> float | None:
    gib, tokens = _number(figures.get(FigureName.KV_CACHE_GIB)), _number(figures.get(FigureName.KV_CACHE_TOKENS))
    return gib * GIB / tokens if gib and tokens else None


def status(parts: Parts, state: State, now: float, note: str) -> dict[str, Any]:
    """Everything that /status says, as plain JSON."""
    policy, watch, settings = state.policy, parts.watch, parts.instance.settings
    left = start_left(state, now)
    note = "; ".join(filter(None, (note, parts.reading.words(state, now))))
    shown = {
        "instance": parts.instance.name,
        "version": __version__,
        "phase": state.phase.value,
        "ready": state.phase is Phase.READY,
        "status": sentence(state, now, rates=rates(watch, now), note=note),
        "since_seconds": round(now - state.since, 3),
        "running_seconds": round(now - state.started, 3),
        "began_at": parts.began_wall,
        "reloads": parts.reloads,
        "attempt": policy.attempt,
        "max_attempts": policy.max_attempts,
        "model": settings.engine.served_model_name,
        "url": parts.http.endpoint.url,
        "progress": ratio(state, now),
        "shards": _shards(state),
        "eta_seconds": round(left, 1) if left is not None else None,
        "phases": {phase.value: round(seconds, 3) for phase, seconds in state.phase_seconds(now).items()},
        "expected": {phase.value: round(seconds, 3) for phase, seconds in policy.expected.items()},
        "weights": _weights_shown(parts),
        "cluster": parts.cluster.table(),
        "readahead": parts.reading.view(),
        "account": parts.reading.account(state, now),
        "figures": {name.value: value for name, value in state.figures.items()},
        "engine": {
            "pid": state.engine_pid,
            "alive": state.engine_alive,
            "processes": {str(pid): role.value for pid, (role, _) in watch.roles.items()},
        },
        "rates": rates(watch, now),
        "requests": requests(state),
        "liveness": _liveness(state, now),
        "smoke": _smoke(state),
        "fault": _fault(state),
        "incident": parts.incident,
        "last_failure": policy.last_reason,
        "warnings": list(state.warnings),
        "gpus": _gpus(parts),
        "at": time.time(),
    }
    cleaned: dict[str, Any] = clean(shown, parts.redact)
    return cleaned


def rates(watch: Any, now: float) -> dict[str, float]:
    """Tokens a second, `generation` and `prompt`, as far as they are known."""
    return {name: round(value, 2) for name, value in watch.rates(now).items()}


def requests(state: State) -> dict[str, float | None]:
    """Requests `running` and `waiting`, and the KV cache's use; empty before the first reading."""
    counted = state.life.counted if state.life is not None else None
    if counted is None:
        return {}
    return {"running": counted.running, "waiting": counted.waiting, "kv_usage": counted.kv_usage}


def _liveness(state: State, now: float) -> dict[str, Any]:
    life = state.life
    if life is None:
        return {}
    return {
        "last_proof_seconds": round(now - life.proof_at, 3),
        "proof": life.proof,
        "hung": life.hung,
        "canary_failures": life.canary_failures,
        "engines": table(state.engines, now),
    }


def _smoke(state: State) -> dict[str, Any] | None:
    test = state.smoke_test
    if test is None:
        return None
    return {
        "passed": test.passed,
        "verdict": test.verdict,
        "seconds": round(test.seconds, 3),
        "pace": test.beside,
    }


def _fault(state: State) -> dict[str, str] | None:
    cause = state.fault
    if cause is None:
        return None
    return {
        "reason": cause.reason,
        "class": cause.cause_class.value,
        "phase": cause.phase,
        "summary": cause.summary,
        "evidence": cause.evidence,
        "advice": cause.advice,
    }


def _gpus(parts: Parts) -> list[dict[str, Any]]:
    table = parts.gpu_table()
    return gpu_rows(table, parts.watch.pids()) if table is not None else []
