"""Tables for docs/gpu/README.md from the results of the proofs: `report.py DIR…` prints Markdown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import loading

GIB = 2**30


def main() -> int:
    rows: list[dict[str, Any]] = []
    for folder in map(Path, sys.argv[1:]):
        for line in (folder / "results.jsonl").read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue  # the last line of a call that was cut off
    of = lambda kind: [row for row in rows if row["kind"] == kind]  # noqa: E731
    for kind in ("step-failed", "serve-failed", "skipped", "fault-not-ready", "plan-failed", "nvitop-missing"):
        for row in of(kind):
            print(
                f"- **{kind}** at {row['t']} s: {_cell({k: v for k, v in row.items() if k not in {'t', 'kind'}})[:400]}"
            )
    for row in of("ready"):
        print(f"\n### Start, TP={row['tp']}, seccomp {row['seccomp']}: READY after {row['seconds']} s\n")
        table(("phase", "s"), [(name, f"{value:.2f}") for name, value in (row["phases"] or {}).items()])
        table(("figure", "value"), list((row["figures"] or {}).items()))
        table(("at s", "pid", "told"), [(n["s"], n["from"], n.get("STATUS") or _cell(n)) for n in row["told"]])
    for row in of("chat"):
        print(f"\nChat: HTTP {row['status']} in {row['seconds']} s: {row['content']!r} (thought: {row['reasoning']!r})")
    table(
        ("at s", "GPU", "nvidia-smi used MiB", "ours before", "ours after", "smi engine MiB", "ours engine"),
        [
            (
                row["t"], row["gpu"], row["smi_used_mib"], _mib(row["ours_before"], "memory_used_mib"),
                _mib(row["ours_after"], "memory_used_mib"), row["smi_engine_mib"],
                _mib(row["ours_after"], "engine_mib"),
            )
            for row in of("memory") if "gpu" in row
        ],
        "GPU memory",
    )  # fmt: skip
    for row in of("rates"):
        table(
            ("at s", "engine's line", "ours, 10 s"),
            [(p["s"], p["engine"], p["ours_10s"]) for p in row["pairs"]],
            "Tokens per second",
        )
        print(f"\nThe clients counted {row['clients_tokens_per_second']} tokens/s; GPUs: {_cell(row['gpus'])}")
    table(
        ("exit", "s", "tokens before / in / after", "finish", "longest gap s", "same pid", "same engine", "version", "STOPPING"),
        [
            (
                row["exit"], row["seconds"],
                f"{row['tokens_before']} / {row['tokens_at_end_of_reload']} / {row['tokens_total']}", row["finish"],
                row["longest_gap_s"], row["same_pid"], row["same_engine"], row["version"], row["stopping_told"],
            )
            for row in of("reload")
        ],
        "Upgrade in place while generating",
    )  # fmt: skip
    table(loading.COLUMNS, loading.table(of("readahead")), "Reading ahead")
    endings = [
        (
            "SIGTERM, idle",
            "-",
            row["exit_code"],
            row["seconds"],
            row["gpu_free_seconds"],
            row["processes_left"],
            row["shm_left"],
        )
        for row in of("stop")
    ]
    endings += [
        (f"{row['fault']} ({row['role']})", _cell(row["noticed"]), row["exit_code"], row["exit_seconds"], row["gpu_free_seconds"], row["processes_left"], row["shm_left"])
        for row in of("fault")
    ]  # fmt: skip
    table(
        ("what", "noticed after s", "exit", "gone after s", "GPU free after s", "processes left", "segments left"),
        endings,
        "Endings",
    )
    for row in of("fault"):
        print(f"- {row['fault']}: {row['history'].get('reason')}: {row['history'].get('sentence')}")
        if row["gpus_still"]:
            print(f"  - while nothing moved: {_cell(row['gpus_still'])}; before: {_cell(row['gpus_before'])}")
    table(
        (
            "model",
            "cache",
            "TP",
            "weights GiB: plan",
            "engine",
            "beside: plan",
            "engine",
            "tokens: plan",
            "engine",
            "off %",
            "backend",
            "s",
        ),
        [_truth(row) for row in of("plan-truth") if row["engine"].get("kv_cache_tokens")],
        "Plan beside the engine",
    )
    for row in of("plan-truth"):
        if not row["engine"].get("kv_cache_tokens"):
            print(
                f"- {row['model']} {row['cache']} TP={row['tp']} ({row['method']}) ended with {row['ended']}: {_cell(row['cause'])}"
            )
    for kind in ("check", "explain", "refused-start"):
        for row in of(kind):
            body = row.get("said") or _cell(row.get("status"))
            print(
                f"\n#### {kind}: {row['case']} (exit {row.get('exit', row.get('exit_code', row.get('engine_exit')))}, {row.get('seconds', '-')} s)\n\n```\n{body.strip()}\n```"
            )
    table(
        ("when", "who", "CPU % of a core", "MiB", "scrape ms, one a second", "in a row", "series", "watts"),
        [
            (
                row["condition"], name, row["cpu_percent_of_a_core"].get(name), row["resident_mib"].get(name),
                _cell(row["once_a_second_ms"].get(name)), _cell(row["in_a_row_ms"].get(name)),
                (row["page"].get(name) or {}).get("series"), _cell([gpu["watts"] for gpu in row["gpus"]]),
            )
            for row in of("cost") for name in row["cpu_percent_of_a_core"]
        ],
        "Cost of watching",
    )  # fmt: skip
    for row in of("cost"):
        print(f"- one round of all boards, {row['condition']}: {row['sampling']}")
    return 0


def _truth(row: dict[str, Any]) -> tuple[Any, ...]:
    engine, plan = row["engine"], row["plan"]
    budget = (row["total"] or 0) * 0.9 / GIB
    weights, cache = engine.get("weights_gib"), engine.get("kv_cache_gib")
    beside = budget - weights - cache if budget and weights is not None and cache is not None else None
    tokens, planned = engine["kv_cache_tokens"], plan.get("max_tokens")
    off = f"{(planned / tokens - 1) * 100:+.1f}" if planned else "-"
    return (
        row["model"], row["cache"], row["tp"], _gib(plan.get("weights_bytes_per_gpu")), weights,
        _gib(plan.get("overhead_bytes_per_gpu")), f"{beside:.2f}" if beside is not None else "-", planned, f"{tokens:.0f}",
        off, engine.get("attention_backend"), row["seconds"],
    )  # fmt: skip


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f}"


def _mib(values: dict[str, float] | None, key: str) -> str:
    value = (values or {}).get(key)
    return "-" if value is None else f"{value:.0f}"


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]], title: str = "") -> None:
    """A Markdown table; nothing when there are no rows."""
    if not rows:
        return
    print(f"\n### {title}\n" if title else "")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print(
            "| "
            + " | ".join("-" if cell is None else str(cell).replace("|", "/").replace("\n", " ") for cell in row)
            + " |"
        )


if __name__ == "__main__":
    sys.exit(main())
