"""`make demo`: real vLLM on the CPU under the supervisor, from nothing to one answered question and back to nothing.

Makes the engine and a small reasoning model when they are missing, chooses free ports, runs the supervisor in the
foreground, asks, scrapes, stops. KEEP=1 stays up until Ctrl-C. Whatever ends it, no process, no shared memory and no
file of its own stays behind; engine, model and the engine's caches stay in the laboratory's directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1]))

from lab import engine, models, paths  # noqa: E402 - only importable from here on
from lab.foreground import ForegroundError, Screen, folder_of_ours, supervised, wait_ready, watch  # noqa: E402

PROFILE = ROOT / "env" / "profiles" / "cpu-demo.toml"
SHARDS = "6"
SCRAPE_S, SMOKE_S = 15.0, 60.0
COUNTER = "vllm:generation_tokens_total"


def main() -> int:
    """Shows everything; 0 when all of it went well, 130 after Ctrl-C."""
    screen = Screen()
    began = time.monotonic()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        vllm = _engine(screen)
        with folder_of_ours() as folder:
            # The engine and torch leave sockets and folders in the temporary directory; this one goes with the demo.
            temporary = folder / "t"
            temporary.mkdir()
            os.environ["TMPDIR"] = str(temporary)
            _show(screen, vllm, folder)
    except KeyboardInterrupt:
        screen.step("stopped by Ctrl-C; nothing is left behind")
        return 130
    except (ForegroundError, paths.LabError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    screen.step(f"done after {time.monotonic() - began:.0f} s; nothing is left behind")
    return 0


def _engine(screen: Screen) -> Path:
    """The engine: the shared one where an ordinary user can read it, else this user's own, made if need be."""
    shared = paths.SYSTEM_HOME
    if not os.environ.get(paths.HOME_VARIABLE) and os.geteuid() != 0:
        made = shared / "engine" / engine.MARKER
        if os.access(made, os.R_OK) and made.read_text(encoding="utf-8").strip() == engine.RECIPE:
            os.environ[paths.HOME_VARIABLE] = str(shared)
    screen.step(f"the engine: vLLM {engine.VLLM} for the CPU in {paths.engine_dir()}")
    engine.ensure()
    return paths.vllm()


def _model(screen: Screen, folder: Path) -> Path:
    screen.step(f"the model: a reasoning model of 0.4 million parameters in {SHARDS} shards")
    if os.access(paths.models_dir() if paths.models_dir().exists() else paths.dev_home(), os.W_OK):
        return models.tiny_model("--shards", SHARDS)
    # The engine is somebody else's: the model is made for this demo alone.
    target = folder / "model"
    done = subprocess.run(
        [paths.engine_python(), HERE.with_name("tiny_model.py"), target, "--shards", SHARDS],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ForegroundError(f"the model cannot be made: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return target


def _show(screen: Screen, vllm: Path, folder: Path) -> None:
    model = _model(screen, folder)
    settings = _settings(vllm, model)
    config = folder / "demo.toml"
    config.write_text(_toml(settings), encoding="utf-8")
    page = f"http://{settings['metrics']['listen']}"
    screen.step(f"the supervisor in the foreground; its page is {page}/")
    with supervised(screen, config, folder) as child:
        began = time.monotonic()
        status = wait_ready(screen, child, folder)
        screen.step(f"READY after {time.monotonic() - began:.1f} s: the engine has answered a request")
        _phases(screen, status)
        # The supervisor asks its own question after READY; ours is counted apart from it.
        _until(lambda: str(watch(screen, folder).get("smoke") or ""), SMOKE_S, "the smoke test has no verdict")
        before = _value(_fetch(page), COUNTER) or 0.0
        tokens = _question(screen, config)
        _scrape(screen, page, before + tokens, tokens)
        if os.environ.get("KEEP", "0") not in {"", "0"}:
            screen.step(f"KEEP=1: it stays up until Ctrl-C; see {page}/ and {page}/metrics")
            while child.poll() is None:
                watch(screen, folder)
                time.sleep(0.2)
        screen.step("stopping it as systemd does: SIGTERM")


def _settings(vllm: Path, model: Path) -> dict[str, Any]:
    """The profile for the CPU, with this machine's paths and ports that are free now."""
    settings = tomllib.loads(PROFILE.read_text(encoding="utf-8"))
    engine_port, own_port = _free_ports(2)
    settings["engine"] |= {"command": [str(vllm), "serve"], "model": str(model), "port": engine_port}
    settings["engine"]["env"]["VLLM_CACHE_ROOT"] = str(_cache())
    settings["metrics"] = {"listen": f"127.0.0.1:{own_port}"}
    return settings


def _cache() -> Path:
    home = paths.dev_home()
    if os.access(home, os.W_OK):
        return home / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-supervisor-dev" / "cache"


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the kernel hands out: the engine binds its own a minute later."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise ForegroundError("no port from 20000 to 32000 is free: end what listens there")


def _toml(table: dict[str, Any], path: str = "") -> str:
    """A table with its sub-tables; JSON's scalars and lists are TOML's."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{path}]"] if path else []
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines.append(_toml(value, f"{path}.{key}" if path else key))
    return "\n".join(lines) + "\n"


def _phases(screen: Screen, status: dict[str, Any]) -> None:
    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in status["phases"].items() if name != "ready")
    screen.say(f"  {shown}")


def _question(screen: Screen, config: Path) -> int:
    """Asks by the command line, as an operator would; the tokens of the answer."""
    screen.step("one question, `vllm-supervisor smoke`")
    command = [sys.executable, "-m", "vllm_supervisor", "smoke", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ForegroundError(f"no answer: {done.stderr.strip()}") from None
    if done.returncode:
        raise ForegroundError(f"the answer is not right: {answer['sentence']}")
    screen.say(f"  reasoning  {answer['reasoning'].strip()}")
    screen.say(f"  content    {answer['content'].strip()}", "1")
    first, rate = answer["first_token_s"], answer["tokens_per_s"]
    screen.say(
        f"  {answer['tokens']} tokens in {answer['seconds']:.2f} s: the first after {first:.2f} s, {rate:.1f} tokens/s"
    )
    return int(answer["tokens"])


def _scrape(screen: Screen, page: str, wanted: float, tokens: int) -> None:
    """One scrape of the supervisor's port in which the answer's tokens are counted."""
    screen.step(f"a scrape of {page}/metrics")
    rate = 'vllm_supervisor_generation_tokens_per_second{window="10s"}'
    names = (COUNTER, rate, "vllm_supervisor_ready", "vllm_supervisor_last_load_seconds")

    def counted() -> str:
        text = _fetch(page)
        found = _value(text, names[0]) or 0.0
        return text if found >= wanted and (_value(text, rate) or 0.0) > 0 else ""

    text = _until(counted, SCRAPE_S, f"the scrape does not show {wanted:.0f} generated tokens")
    now = _value(text, names[0]) or 0.0
    screen.say(f"  {now:.0f} tokens generated in all, {wanted - tokens:.0f} before the question")
    for name in names:
        line = next((line for line in text.splitlines() if line.startswith(name.partition("{")[0])), "")
        line = next((line for line in text.splitlines() if line.startswith(name)), line)
        screen.say(f"  {line}")


def _fetch(page: str) -> str:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"{page}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except (URLError, OSError) as error:
        raise ForegroundError(f"{page}/metrics does not answer: {error}") from None


def _value(text: str, name: str) -> float | None:
    """The sum of a name's samples, whatever their other labels; None when there is none."""
    bare, _, labels = name.partition("{")
    found = re.findall(rf"^{re.escape(bare)}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    values = [float(value) for given, value in found if labels.rstrip("}") in given]
    return sum(values) if values else None


def _until(fn: Callable[[], str], limit_s: float, complaint: str) -> str:
    until = time.monotonic() + limit_s
    while not (value := fn()):
        if time.monotonic() >= until:
            raise ForegroundError(f"{complaint} within {limit_s:.0f} s")
        time.sleep(0.2)
    return value


if __name__ == "__main__":
    sys.exit(main())
