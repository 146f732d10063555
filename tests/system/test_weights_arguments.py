"""The arguments that we make for `vllm preload` and its engine, read by the parsers of the real vLLM."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lab.engine import ensure
from vllm_supervisor.core.held import LONGEST_DIRECTORY, SERVER_ONLY, preload_line, serving_args

ROOT = Path(__file__).resolve().parents[2]
ASK = """
import json, sys
from vllm.entrypoints.cli.preload import PreloadSubcommand
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.model_executor.model_loader.weight_cache.protocol import get_socket_path
from vllm.utils.argparse_utils import FlexibleArgumentParser
verbs = FlexibleArgumentParser().add_subparsers()
serve, preload = (verb().subparser_init(verbs) for verb in (ServeSubcommand, PreloadSubcommand))
def options(parser):
    return {o[2:] for a in parser._actions for o in a.option_strings if o.startswith("--") and not o.startswith("--no-")}
lines = json.load(sys.stdin)
kept, seen = preload.parse_args(lines["preload"]), serve.parse_args(lines["serve"])
names = ("model", "tensor_parallel_size", "load_format", "trust_remote_code", "served_model_name",
         "weight_cache_socket_dir", "weight_cache_health_host", "weight_cache_health_port")
print(json.dumps({
    "server_only": sorted(options(serve) - options(preload)),
    "preload": {name: getattr(kept, name) for name in names},
    "serve": {name: getattr(seen, name) for name in ("load_format", "model_loader_extra_config")},
    "longest": len(get_socket_path("GPU-0", "", is_draft=True)) + 1,
}))
"""
DIRECTORY = "/run/vllm-supervisor/kimi-weights"

pytestmark = pytest.mark.timeout(240)


def test_the_real_parsers_take_what_we_write() -> None:
    engine: dict[str, Any] = tomllib.loads((ROOT / "env/kimi.toml").read_text())["engine"]
    args = {**engine["args"], "load-format": "fastsafetensors", "ssl-keyfile": "/key", "middleware": ["a", "b"]}
    name = engine["served_model_name"]
    line = preload_line(engine["command"], "/m", served_model_name=name, args=args, directory=DIRECTORY, port=9578)
    assert line[:4] == ["/opt/vllm/bin/vllm", "preload", "--model", "/m"]
    mapping = serving_args(engine["args"], DIRECTORY)
    serve = ["/m", "--load-format", mapping["load-format"], "--model-loader-extra-config"]
    lines = {"preload": line[2:], "serve": [*serve, mapping["model-loader-extra-config"]]}
    done = subprocess.run(
        [ensure() / "bin/python", "-c", ASK],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["server_only"]) == SERVER_ONLY
    assert found["preload"] == {
        "model": "/m",
        "tensor_parallel_size": 8,
        "load_format": "fastsafetensors",
        "trust_remote_code": True,
        "served_model_name": ["kimi"],
        "weight_cache_socket_dir": DIRECTORY,
        "weight_cache_health_host": "127.0.0.1",
        "weight_cache_health_port": 9578,
    }
    assert found["serve"]["load_format"] == "ipc_cache"
    assert found["serve"]["model_loader_extra_config"] in (
        {"socket_dir": DIRECTORY, "fallback": False},
        json.dumps({"socket_dir": DIRECTORY, "fallback": False}),
    )
    assert found["longest"] + LONGEST_DIRECTORY == 107
