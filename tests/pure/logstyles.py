"""Dresses a message the way each version of the engine prints it."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "corpus"
HEADER = "Traceback (most recent call last):"
FRAME = '  File "/opt/vllm/lib/python3.12/site-packages/vllm/v1/worker/worker_base.py", line 331, in init_device'
JOURNAL = "May 05 05:09:09 gpu2 vllm[7010]: "

PHASE_LINES = {
    "launching": [],
    "configuring": ["Using max model len 131072"],
    "connecting": [
        "Initializing a V1 LLM engine (v0.32.0) with config: model='/srv/m', tensor_parallel_size=8, max_seq_len=9"
    ],
    "loading-weights": ["Starting to load model /srv/m..."],
    "compiling": ["Model loading took 70.31 GiB memory and 165.119783 seconds"],
    "sizing-kv-cache": ["Available KV cache memory: 11.70 GiB"],
    "capturing-graphs": ["Available KV cache memory: 11.70 GiB", "Graph capturing finished in 4 secs, took 0.61 GiB"],
    "serving": [],
}


@dataclass(frozen=True)
class Wording:
    """One entry of corpus/wordings."""

    slug: str
    text: str
    kind: str
    phase: str = "launching"
    process: str = "APIServer"
    frames: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    death: str = ""

    @property
    def name(self) -> str:
        return f"{self.slug}-{self.phase}-{self.text[:40]}"


def wordings():
    found = []
    for path in sorted((CORPUS / "wordings").glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["wording"]:
            kind = "value" if "value" in entry else entry.get("kind", "error")
            kind = "record" if entry.get("record") else "bare" if entry.get("bare") else kind
            text = entry.get("value") or entry.get("error") or entry["line"]
            known = {key: tuple(entry[key]) for key in ("frames", "advice") if key in entry}
            plain = {key: entry[key] for key in ("phase", "process", "death") if key in entry}
            found.append(Wording(slug=entry["slug"], text=text, kind=kind, **known, **plain))
    return found


def prologue(phase):
    """Lines that bring a start to a phase; the port is one that no default could guess."""
    lines = [
        "(APIServer pid=3310) INFO 05-11 04:02:31 [api_utils.py:286] non-default args: {'model': '/srv/m', 'port': 8111}"
    ]
    lines += [f"(Worker pid=3837) INFO 05-11 04:02:39 [model.py:733] {message}" for message in PHASE_LINES[phase]]
    return [*lines, "INFO:     Application startup complete."] if phase == "serving" else lines


def _record(process, message, *, before="", after="", colour=False, journal=""):
    prefix = f"({process} pid=3843)"
    if colour:
        prefix = f"\x1b[1;36m{prefix}\x1b[0;0m"
    return f"{journal}{before}{prefix} {after}ERROR 05-11 04:03:18 [multiproc_executor.py:953] {message}"


RECORD_STYLES = {
    "0.31": _record,
    "0.11-coloured": lambda process, message: _record(process, message, colour=True),
    "prefix-before": lambda process, message: _record(process, message, before="[kimi-1] "),
    "prefix-after": lambda process, message: _record(process, message, after="kimi-1 "),
    "journal": lambda process, message: _record(process, message, journal=JOURNAL),
    "doubled": lambda process, message: "(EngineCore_DP0 pid=1) " + _record(process, message),
    "colours-everywhere": lambda process, message: (
        f"\x1b[1;36m({process} pid=9)\x1b[0;0m \x1b[31mERROR\x1b[0m \x1b[90m04-01 17:30:12\x1b[0m \x1b[90m[core.py:7]\x1b[0m {message}"
    ),
    "json": lambda process, message: json.dumps(
        {
            "asctime": "05-11 04:03:18",
            "levelname": "ERROR",
            "name": "vllm.v1.executor.multiproc_executor",
            "processName": "MainProcess",
            "process": 3843,
            "message": message,
            "vllm_process_name": process,
        }
    ),
}
BARE_STYLES = {
    "0.31": lambda process, message: message,
    "0.20": lambda process, message: f"({process} pid=3310) {message}",
    "0.11-coloured": lambda process, message: f"\x1b[1;36m({process} pid=3310)\x1b[0;0m {message}",
    "journal": lambda process, message: f"{JOURNAL}({process} pid=3310) {message}",
}


def record_log(word, style):
    """A traceback that the engine or a worker logs, behind an ERROR header on every line."""
    dress = RECORD_STYLES[style]
    if word.kind == "record":
        lines = [dress(word.process, word.text)]
    else:
        texts = ["WorkerProc failed to start.", HEADER, *(word.frames or (FRAME,)), word.text]
        if style == "json":
            lines = [dress(word.process, "\n".join(texts))]
        else:
            lines = [dress(word.process, text) for text in texts]
    evidence = lines[-1]
    if word.death:
        lines.append(dress("EngineCore", word.death))
    return [*prologue(word.phase), *lines], evidence


def bare_log(word, style):
    """A traceback that nobody logged: Python prints it on stderr."""
    dress = BARE_STYLES[style]
    texts = [HEADER, '  File "/opt/vllm/bin/vllm", line 8, in <module>', "    sys.exit(main())", *word.frames]
    text = word.text
    if word.kind == "value":
        texts.append("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig")
        text = f"  Value error, {text} [type=value_error, input_value=ArgsKwargs((), {{'model': ...}}), input_type=ArgsKwargs]"
    elif word.kind == "field":
        texts += [
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig",
            "gpu_memory_utilization",
        ]
    lines = [dress(word.process, line) for line in [*texts, text]]
    return [*prologue(word.phase), *lines], lines[-1]


def plain_log(word, style):
    """Lines of C, of argparse, of the kernel and of systemd."""
    line = word.text
    if word.kind == "kernel":
        line = {"journal": "May 05 05:09:08 gpu2 kernel: ", "dmesg": "[ 1234.567890] ", "bare": ""}[style] + line
    elif word.kind == "systemd":
        line = f"May 05 05:09:08 gpu2 systemd[1]: {line}"
    elif style == "journal":
        line = JOURNAL + line
    return [*prologue(word.phase), line], line


def variants(word):
    """Every dressing of a wording, by name: the log and its line of evidence."""
    if word.kind in {"error", "record"}:
        return {style: record_log(word, style) for style in RECORD_STYLES}
    if word.kind in {"bare", "value", "field"}:
        return {style: bare_log(word, style) for style in BARE_STYLES}
    if word.kind == "kernel":
        return {style: plain_log(word, style) for style in ("journal", "dmesg", "bare")}
    return {style: plain_log(word, style) for style in ("journal", "bare")}
