"""The page for people at `/`: what /status says, readable at a glance.

One rendering serves everybody: without scripts the page is fetched again as a whole, with scripts
only the parts that changed are put in place. Nothing comes from elsewhere and nothing is inline.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from vllm_supervisor.core.overview import COMPARED, PhaseRow, Standing, mood, phase_rows, slower
from vllm_supervisor.core.plain import ago, serving
from vllm_supervisor.core.words import duration

from .page_cluster import nodes
from .page_engines import engines
from .page_gpus import gpus
from .page_neighbours import neighbours
from .page_svg import bar, chart
from .trend import KEPT_S, Point

_ASSETS = files("vllm_supervisor.daemon") / "assets"
CSS, SCRIPT = ((_ASSETS / name).read_bytes() for name in ("app.css", "app.js"))

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

REFRESH_S = 5
_FIGURES = {
    "weights_gib": "weights a GPU (GiB)",
    "load_seconds": "loading took (s)",
    "kv_cache_gib": "KV cache a GPU (GiB)",
    "kv_cache_tokens": "KV cache (tokens)",
    "kv_cache_dtype": "KV cache type",
    "max_model_len": "longest context (tokens)",
    "max_concurrency": "requests of that length at once",
    "attention_backend": "attention backend",
    "quantization": "quantisation",
    "architecture": "architecture",
    "tensor_parallel_size": "tensor parallel",
    "engine_version": "engine version",
    "nccl_version": "NCCL version",
}


def page(status: Mapping[str, Any], points: Sequence[Point], failure: Mapping[str, Any] | None, now: float) -> bytes:
    """The whole page.

    Args:
        status: What /status says.
        points: The last minutes of serving.
        failure: The newest failed start of the history, as the history has it.
        now: Monotonic seconds, as the points are.
    """
    tone, word = mood(status)
    name = _text(status["instance"])
    cards = [
        _start(status),
        _serving(status, points, now),
        _failure(status, failure),
        engines(status),
        nodes(status),
        gpus(status),
        neighbours(status),
        _details(status),
    ]
    body = "".join(_card(*card) for card in cards)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>'
        f"<title>{name}: {_text(word)}</title>"
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/app.css">'
        '<script src="/app.js" defer></script></head><body>'
        '<a class="skip" href="#main">Skip to the state</a>'
        f'<header><h1>{name} <span id="badge" class="badge {tone}" role="status" data-live>{_text(word)}</span></h1>'
        f'<p id="sentence" class="sentence" data-live>{_text(status["status"])}</p>'
        '<p id="stale" class="stale" role="alert" hidden>The supervisor does not answer; what you see is old.</p>'
        f'</header><main id="main" tabindex="-1">{body}</main>'
        '<footer><nav aria-label="For programs"><a href="/metrics">metrics</a> <a href="/status">status as JSON</a> '
        f'<a href="/readyz">readiness</a></nav><p>vllm-supervisor {_text(status["version"])}</p></footer>'
        "</body></html>\n"
    ).encode()


def _card(card_id: str, title: str, text: str) -> str:
    """A part of the page, and a landmark by its title; without one it has nothing to show, and is only a place."""
    inside = f'<h2 id="{card_id}-title">{title}</h2>{text}' if title else ""
    return f'<section id="{card_id}" class="card" aria-labelledby="{card_id}-title" data-live>{inside}</section>'


def _start(status: Mapping[str, Any]) -> tuple[str, str, str]:
    rows = phase_rows(status)
    scale = max((max(row.seconds or 0.0, row.usual or 0.0) for row in rows), default=0.0) or 1.0
    late = slower(status.get("phases") or {}, status.get("expected") or {}, COMPARED)
    lines = "".join(_phase(row, scale) for row in rows)
    attempt = ""
    if (status.get("attempt") or 1) > 1:
        attempt = f"<p>Attempt {status['attempt']} of {status['max_attempts']}.</p>"
    return (
        "start",
        "Start",
        (
            f"{_progress(status)}{attempt}"
            + (f'<p class="note">So far {_text(late)}.</p>' if late else "")
            + "".join(f'<p class="figures">{_text(said)}</p>' for said in status.get("account") or [])
            + '<table class="phases" aria-label="phases of the start"><thead><tr><th scope="col">phase</th>'
            '<th scope="col">took</th>'
            f'<th scope="col">usual</th><th scope="col">the line: usual</th></tr></thead><tbody>{lines}</tbody></table>'
        ),
    )


def _progress(status: Mapping[str, Any]) -> str:
    ratio = status.get("progress")
    if ratio is None or status["ready"]:
        return ""
    # With a history it is that of the whole start, and beside the shards it would look like theirs.
    whole = " of the start" if status.get("eta_seconds") is not None else ""
    parts = [f"{ratio:.0%}".replace("%", " %") + whole]
    shards = status.get("shards")
    if shards and status["phase"] == "loading-weights":
        parts.append(f"shard {shards['loaded']:.0f} of {shards['total']:.0f}")
    if status.get("eta_seconds") is not None:
        parts.append(f"about {duration(status['eta_seconds'])} left")
    parts.append(f"{duration(status.get('running_seconds') or 0.0)} so far")
    return (
        f'<progress value="{ratio:.4f}" max="1" aria-label="progress of the start">{parts[0]}</progress>'
        f'<p class="figures">{_text(", ".join(parts))}</p>'
    )


def _phase(row: PhaseRow, scale: float) -> str:
    took = duration(row.seconds) if row.seconds is not None else ""
    usual = duration(row.usual) if row.usual is not None else ""
    words = {Standing.DONE: "", Standing.NOW: "now", Standing.FAILED: "failed here", Standing.TODO: "to come"}
    label = f"{row.phase}: {took or 'not yet'}" + (f", usually {usual}" if usual else "")
    tone = "slow" if row.slow else row.standing.name.lower()
    mark = row.usual / scale if row.usual is not None else None
    drawn = bar(label, [(tone, (row.seconds or 0.0) / scale)], mark)
    note = words[row.standing] or ("slow" if row.slow else "")
    if row.slow and row.standing is Standing.NOW:
        note = "now, slow"
    current = ' aria-current="step"' if row.standing is Standing.NOW else ""
    shown = f' <span class="tag {tone}">{note}</span>' if note else ""
    return (
        f'<tr class="{row.standing.name.lower()}"{current}><th scope="row">{row.phase}{shown}</th>'
        f"<td>{took}</td><td>{usual}</td><td>{drawn}</td></tr>"
    )


def _serving(status: Mapping[str, Any], points: Sequence[Point], now: float) -> tuple[str, str, str]:
    said = serving(status)
    if not status["ready"] and not points:
        return "serving", "Serving", "<p>Nothing yet: the model cannot answer.</p>"
    tokens = [("generation", [(point.at - now, point.generation) for point in points])]
    requests = [
        ("running", [(point.at - now, point.running) for point in points]),
        ("waiting", [(point.at - now, point.waiting) for point in points]),
    ]
    smoke = status.get("smoke")
    asked = ""
    if smoke:
        words = "; ".join(filter(None, (smoke["verdict"], smoke.get("pace"))))
        asked = f'<p class="{"" if smoke["passed"] else "problem"}">Smoke test: {_text(words)}</p>'
    return (
        "serving",
        "Serving",
        (
            f"<p>{_text(said or 'no figures from the engine')}</p>"
            f"<figure>{chart(f'tokens generated a second: {said}', tokens, KEPT_S)}"
            "<figcaption>tokens generated a second</figcaption></figure>"
            f"<figure>{chart(f'requests: {said}', requests, KEPT_S)}"
            '<figcaption>requests: <span class="key running">running</span> <span class="key waiting">waiting</span>'
            f"</figcaption></figure>{asked}"
        ),
    )


def _failure(status: Mapping[str, Any], failure: Mapping[str, Any] | None) -> tuple[str, str, str]:
    fault = status.get("fault")
    if fault:
        evidence = f"<pre>{_text(fault['evidence'])}</pre>" if fault["evidence"] else ""
        advice = f'<p class="advice">{_text(fault["advice"])}</p>' if fault["advice"] else ""
        return (
            "failure",
            "This start fails",
            (
                f'<p class="problem"><strong>{_text(fault["reason"])}</strong> '
                f"({_text(fault['class'])}) in {_text(fault['phase'])}: {_text(fault['summary'])}</p>{evidence}{advice}"
            ),
        )
    if failure is None:
        return "failure", "Last failure", "<p>None is remembered.</p>"
    ended = failure.get("ended_at") or failure["began_at"]
    saved = f"<p>Saved: <code>{_text(failure['incident'])}</code></p>" if failure.get("incident") else ""
    return (
        "failure",
        "Last failure",
        (
            f"<p><strong>{_text(failure.get('reason') or 'unknown')}</strong> "
            f"({_text(failure.get('class') or 'unknown')}), {ago(ended, time.time())} ago</p>"
            f'<p class="advice">{_text(failure.get("sentence") or "It ended without a word.")}</p>{saved}'
        ),
    )


def _details(status: Mapping[str, Any]) -> tuple[str, str, str]:
    figures = status.get("figures") or {}
    pairs = [("model", status.get("model")), ("address", status.get("url"))]
    pairs += [(title, _figure(figures[name])) for name, title in _FIGURES.items() if name in figures]
    pairs += [("engine processes", len((status.get("engine") or {}).get("processes") or {}))]
    pairs += [("warning", warning) for warning in status.get("warnings") or []]
    return (
        "details",
        "Details",
        (
            "<dl>"
            + "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in pairs)
            + "</dl>"
        ),
    )


def _figure(value: Any) -> str:
    return f"{round(value, 2):,.10g}" if isinstance(value, (int, float)) else str(value)


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
