"""Every knob of the fake, declared once; a test describes an engine as data.

The environment variable FAKE_ENGINE holds the JSON itself or the path of a JSON or TOML file.
An unknown knob is an error, so that a misspelt one cannot make a test pass. The knobs marked
(live) can be changed while the fake runs, by the control command `set`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Script:
    # What is printed, and how fast.
    version: str = "0.32.0"  # wording and prefix style: 0.10 coloured, 0.11-0.30 wrapped, 0.31+ bare
    style: str = ""  # "json" prints records as JSON; otherwise the version decides
    load: str = "small"  # small | kimi (the nine-minute load, TP=8, 119 shards) | none
    pace: float | str = 0.2  # seconds for the whole small load, or "manual": wait for `advance`
    scale: float = 0.001  # seconds of ours for a second of the Kimi load or of a replay
    shards: int = 4
    workers: int = 0  # 0: as --tensor-parallel-size says, else 1
    replay: str = ""  # a captured log, printed instead of a made one
    in_order: bool = False  # a pipe is written when the other one was read empty: a fast reader sees no other order
    fail_with: str = ""  # a failure log: printed, then the exit code 1
    cut_at: str | int | None = None  # a phase (after its first line) or a shard number: then silence
    silent_work: str = ""  # what the workers do in that silence: spin | read | grow
    faults: list[dict[str, Any]] = field(default_factory=list)  # [{at: phase, kind: flood, ...}], see faults.py
    term_imports_s: float = 0.0  # length of the imports, when SIGTERM still kills at once

    # Processes.
    double_fork: bool = False  # a grandchild in a session of its own
    children_ignore_sigterm: bool = False
    ignore_sigterm: bool = False
    shm: bool = True  # /dev/shm/psm_* segments
    worker_dies_at: str = ""  # phase at which worker `worker_dies_rank` is killed
    worker_dies_rank: int = 0
    exit_at: str = ""  # phase at which main exits
    exit_after: float | None = None  # seconds after that phase (by itself: after ready)
    exit_code: int = 1  # negative: by that signal
    exit_zero_unasked: bool = False  # the same as exit_code = 0 after ready, with the server's farewell lines
    death_poll_s: float = 0.3  # a dead engine ends the server after this long (5 s in the real one)

    # Signals. Real figures: gap 3 s, delays 2.5-5.5 s and 10 s.
    second_term_gap_s: float = 3.0
    term_delay_s: float = 0.05

    # Readiness.
    never_listen: bool = False
    listen_elsewhere: int | None = None  # a port other than the one asked for; 0: any
    listen_delay_s: float = 0.0  # between the readiness line and the answer
    no_readiness_line: bool = False
    readiness_line_form: str = ""  # uvicorn | json | rust | prefixed; default by version
    readiness_without_http: bool = False  # the same as never_listen
    die_between_line_and_answer: bool = False
    strict_flags: bool = False  # unknown flags end with 2, as argparse does

    # HTTP (live).
    answer_delay: float = 0.0
    health_delay: float = 0.0
    hang_health: bool = False
    health_status: int = 200
    generate_hangs: bool = False
    generate_delay: float = 0.0
    first_generate_delay: float = 0.0
    generate_status: int = 200
    rank_header: str = "heeded"  # X-data-parallel-rank: heeded (out of range: 400) | ignored | refused (always 400)
    scaling: bool = False  # 503 to everything, as while engines are added or taken away
    served_model: str = ""  # /v1/models names this instead of --served-model-name
    max_model_len: int = 131072
    tasks: list[str] = field(default_factory=lambda: ["generate"])  # generate | embed | score
    reasoning: str = (
        "The user asks for the capital of France . That is a fact : the answer is Paris , in one sentence ."
    )
    answer: str = "The capital of France is Paris."
    keep_alive_s: float = 5.0

    # The engine behind it (live).
    token_delay: float = 0.002  # seconds a decoding step
    slow_prefill: float = 0.0  # seconds of prefill a request: only the KV usage moves meanwhile
    busy: dict[str, float] = field(default_factory=dict)  # running, waiting, tokens_per_s, kv_per_s
    metrics_frozen: bool = False
    max_num_seqs: int = 256

    control: str = ""  # path of the control socket; see control.py


LIVE_FROM = "answer_delay"


def load() -> Script:
    """The script that FAKE_ENGINE names; the default one without it."""
    given = os.environ.get("FAKE_ENGINE", "")
    if not given:
        return Script()
    if given.lstrip().startswith("{"):
        values = json.loads(given)
    else:
        with open(given, "rb") as file:  # noqa: PTH123 (pathlib costs start-up time)
            text = file.read()
        if given.endswith(".toml"):
            import tomllib

            values = tomllib.loads(text.decode())
        else:
            values = json.loads(text)
    return parse(values)


def parse(values: dict[str, Any]) -> Script:
    """A script from its knobs; ValueError names an unknown one."""
    known = {each.name for each in fields(Script)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"fake engine: unknown knobs {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return Script(**values)


def change(script: Script, values: dict[str, Any]) -> None:
    """Changes live knobs of a running fake; ValueError for another one."""
    names = [each.name for each in fields(Script)]
    live = set(names[names.index(LIVE_FROM) :]) - {"control"}
    wrong = sorted(set(values) - live)
    if wrong:
        raise ValueError(f"fake engine: not to be changed while it runs: {', '.join(wrong)}")
    for name, value in values.items():
        setattr(script, name, value)
