"""The state of an instance and its history as plain lines: for pipes, and where there is no terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import several
from .overview import PhaseRow, Standing, load_seconds, mood, pace, phase_rows, slower
from .words import duration, size

_MARKS = {Standing.DONE: " ", Standing.NOW: ">", Standing.FAILED: "x", Standing.TODO: "."}


def status_lines(status: Mapping[str, Any], now: float) -> list[str]:
    """What /status says, for people; of a dead daemon how the last start ended.

    Args:
        status: As `daemon.ask` gives it.
        now: Wall-clock seconds.
    """
    if not status.get("running", True):
        return ended_lines(status, now)
    lines = [f"{status['instance']}: {mood(status)[1]}{'' if status['ready'] else ', not ready'}"]
    lines += [f"{name:<10} {text}" for name, text in facts(status)]
    rows = phase_rows(status)
    if rows:
        lines += ["", *table([("", "phase", "took", "usual"), *(phase_cells(row) for row in rows)])]
    engines = several.rows(status)
    if engines:
        lines += ["", *table([several.COLUMNS, *engines])]
    nodes = node_rows(status)
    if nodes:
        lines += ["", *table([NODE_COLUMNS, *nodes])]
    gpus = status.get("gpus") or []
    if gpus:
        lines += ["", *table([GPU_COLUMNS, *(gpu_cells(gpu) for gpu in gpus)])]
    return lines


def facts(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What there is to say of a running instance, as pairs of a short name and a text."""
    found = [("status", str(status["status"]))]
    cluster = _mapping(status.get("cluster"))
    where = f"answered by node 1 of {cluster['nnodes']}" if cluster.get("rank") else f"at {status.get('url', '')}"
    found.append(("engine", f"{status.get('model', '')} {where}"))
    found.append(("running", f"for {duration(status.get('running_seconds') or 0.0)}"))
    if (status.get("attempt") or 1) > 1:
        found.append(("attempt", f"{status['attempt']} of {status['max_attempts']}"))
    eta = status.get("eta_seconds")
    if eta is not None and not status["ready"]:
        found.append(("ready in", f"about {duration(eta)}"))
    late = slower(_mapping(status.get("phases")), _mapping(status.get("expected")), 5)
    if late:
        found.append(("pace", late))
    if status.get("account"):
        found.append(("start", " ".join(str(said) for said in status["account"])))
    served = serving(status)
    if served:
        found.append(("serving", served))
    smoke = status.get("smoke")
    if smoke:
        found.append(("smoke test", f"{smoke['verdict']} ({duration(smoke['seconds'])})"))
        if smoke.get("pace"):
            found.append(("speed", str(smoke["pace"])))
    fault = status.get("fault")
    if fault:
        found.append(("fault", f"{fault['reason']}: {fault['summary'] or fault['evidence']}"))
        if fault["advice"]:
            found.append(("advice", fault["advice"]))
    elif status.get("last_failure"):
        found.append(("last time", str(status["last_failure"])))
    found += [("warning", str(warning)) for warning in status.get("warnings") or []]
    found += [(f"GPU {gpu['index']}", f"cannot be read: {gpu['trouble']}") for gpu in lost_gpus(status)]
    return found


def lost_gpus(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The GPUs of ours that cannot be read, with the reason as `trouble`."""
    return [gpu for gpu in status.get("gpus") or [] if gpu.get("trouble")]


def serving(status: Mapping[str, Any]) -> str:
    """Tokens a second and requests, as far as they are known."""
    rates, requests = _mapping(status.get("rates")), _mapping(status.get("requests"))
    parts = []
    if "generation" in rates:
        parts.append(f"{rates['generation']:.1f} tokens/s generated, {rates.get('prompt', 0.0):.1f} read")
    if requests.get("running") is not None:
        parts.append(f"{requests['running']:.0f} requests running, {requests.get('waiting') or 0:.0f} waiting")
    if requests.get("kv_usage") is not None:
        parts.append(f"KV cache {requests['kv_usage']:.0%} used".replace("%", " %"))
    return "; ".join(parts)


def ended_lines(status: Mapping[str, Any], now: float) -> list[str]:
    """How the last start of an instance ended whose daemon is gone."""
    last = status.get("last")
    head = f"{status['instance']}: not running"
    found = [*(ended_facts(last, now) if last else ()), *configuration_facts(status)]
    return [head if last else f"{head}, never started", *(f"{name:<10} {text}" for name, text in found)]


def configuration_facts(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with the configuration of an instance that does not run; few of many, each as a pair."""
    problems = list(status.get("problems") or ())
    more = [f"and {len(problems) - SHOWN} more: `vllm-supervisor check` names all"] if len(problems) > SHOWN else []
    return [("fault", str(problem)) for problem in (*problems[:SHOWN], *more)]


def ended_facts(row: Mapping[str, Any], now: float) -> list[tuple[str, str]]:
    """The end of a start of the history, as pairs of a short name and a text."""
    ended = row.get("ended_at")
    found = [("started", f"{ago(row['began_at'], now)} ago")]
    load = load_seconds(row)
    if load is not None:
        found.append(("was ready", f"after {duration(load)}"))
    if ended is None:
        found.append(("outcome", "cut off: its end was never written (a kill, or the machine went down)"))
    else:
        code = f" (exit {row['exit_code']})" if row.get("exit_code") is not None else ""
        found.append(("outcome", f"{row.get('outcome') or 'unknown'}{code}, {ago(ended, now)} ago"))
    if row.get("sentence"):
        found.append(("cause" if row.get("reason") else "why", str(row["sentence"])))
    if row.get("incident"):
        found.append(("incident", str(row["incident"])))
    return found


SHOWN = 5
"""Problems of a configuration that a status has room for."""
HISTORY_COLUMNS = ("started", "outcome", "ready after", "longest phases", "exit", "cause")
GPU_COLUMNS = ("GPU", "memory", "of", "engine", "busy", "power", "temp")


NODE_COLUMNS = ("node", "machine", "phase", "heard")


def node_rows(status: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The lines of the nodes' table; none without a cluster."""
    rows = _mapping(status.get("cluster")).get("nodes") or []
    return [
        (
            f"{row['rank'] + 1} of {len(rows)}",
            printable(str(row["host"])) or "-",
            printable(str(row["phase"])),
            "here" if row["here"] else f"{duration(row['quiet_seconds'])} ago" if row["host"] else "never",
        )
        for row in rows
    ]


def history_cells(row: Mapping[str, Any], when: str) -> tuple[str, ...]:
    """A line of the history's table; `when` is its begin as it is to be shown."""
    load = load_seconds(row)
    phases = {name: seconds for name, seconds in _mapping(row.get("phases")).items() if _is_starting(name)}
    longest = sorted(phases.items(), key=lambda item: -item[1])[:3]
    outcome = str(row.get("outcome") or "") or ("cut off" if row.get("exit_code") is None else "unknown")
    return (
        when,
        outcome,
        duration(load) if load is not None else "-",
        ", ".join(f"{name} {duration(seconds)}" for name, seconds in longest) or "-",
        str(row["exit_code"]) if row.get("exit_code") is not None else "-",
        str(row.get("reason") or "-"),
    )


def remarks(rows: Sequence[Mapping[str, Any]], shown: int) -> list[str]:
    """What stands out among the last `shown` starts."""
    found = []
    for index in range(max(len(rows) - shown, 0), len(rows)):
        said = pace(rows, index)
        if said:
            newest = (
                "This start" if index == len(rows) - 1 else f"Start {index + 1 - len(rows)} (counted from the last)"
            )
            found.append(f"{newest} took {said}.")
    return found


def phase_cells(row: PhaseRow) -> tuple[str, str, str, str]:
    """Mark, name, time taken and usual time of a phase."""
    took = duration(row.seconds) if row.seconds is not None else ""
    return (
        _MARKS[row.standing],
        row.phase.value,
        f"{took} (slow)" if row.slow else took,
        duration(row.usual) if row.usual is not None else "",
    )


def gpu_cells(gpu: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of the GPUs' table; what is not known is a dash."""
    return (
        str(gpu["index"]),
        _or_dash(gpu.get("memory_used_bytes"), size),
        _or_dash(gpu.get("memory_total_bytes"), size),
        _or_dash(gpu.get("engine_bytes"), size),
        _or_dash(gpu.get("utilization_ratio"), lambda value: f"{value * 100:.0f} %"),
        _or_dash(gpu.get("power_watts"), lambda value: f"{value:.0f} W"),
        _or_dash(gpu.get("temperature_celsius"), lambda value: f"{value:.0f} C"),
    )


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be, two blanks apart; without blanks at the end."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def ago(at: float, now: float) -> str:
    """How long ago, coarsely: `5 min`, `3 h`, `12 days`."""
    seconds = max(now - at, 0.0)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def printable(text: str) -> str:
    """Text of a model or a log without control characters, which could repaint a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "?", text)


def _is_starting(name: str) -> bool:
    return name not in {"ready", "draining", "stopping", "stopped", "failed"}


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _or_dash(value: Any, shown: Any) -> str:
    return str(shown(value)) if value is not None else "-"
