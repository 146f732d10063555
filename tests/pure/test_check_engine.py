"""Findings about command, options and environment."""

from __future__ import annotations

import pytest

from vllm_supervisor.core import engineflags
from vllm_supervisor.core.causes import REASONS
from vllm_supervisor.core.check.finding import Level
from vllm_supervisor.core.check.findings import findings
from vllm_supervisor.core.check.observed import EngineView, Observed, ObservedEngine
from vllm_supervisor.core.check.settings import options

FLAGS = frozenset(
    ["tensor-parallel-size", "max-model-len", "gpu-memory-utilization", "enable-prefix-caching", "compilation-config"]
)


def view(**changes):
    return EngineView(**({"command": ("/opt/vllm/bin/vllm", "serve"), "model": "/m", "device": "cpu"} | changes))


def found(engine_view, **observed):
    return findings(engine_view, Observed(**observed))


def only(items, check):
    matching = [item for item in items if item.check == check]
    assert len(matching) == 1, items
    assert matching[0].remedy
    assert matching[0].level is Level.WARN or matching[0].reason in REASONS
    return matching[0]


def test_a_plain_engine_has_no_findings():
    assert found(view(), engine=ObservedEngine("/x", version="0.32.0", flags=FLAGS)) == ()


@pytest.mark.parametrize(
    "command",
    [
        ["docker", "run", "--gpus", "all", "vllm/vllm-openai"],
        ["/usr/bin/podman", "run", "x"],
        ["sudo", "-n", "nerdctl", "run"],
        ["env", "A=1", "apptainer", "exec", "x.sif", "vllm", "serve"],
    ],
)
def test_containers_are_refused_in_a_sentence(command):
    finding = only(found(view(command=tuple(command))), "engine-command")
    assert (finding.level, finding.reason) == ("refuse", "configuration-invalid")
    assert "container" in finding.seen
    assert "/opt/vllm/bin/vllm" in finding.remedy


def test_a_model_called_docker_is_no_container():
    assert found(view(command=("/opt/vllm/bin/vllm", "serve", "docker"))) == ()


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("tensor-paralel-size", "tensor-parallel-size"),
        ("max_modl_len", "max-model-len"),
        ("gpu-memory-utilisation", "gpu-memory-utilization"),
        ("swap-space", ""),
        ("tp", "tensor-parallel-size"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(name, like):
    finding = only(
        found(view(args={name: 8}), engine=ObservedEngine("/x", version="0.32.0", flags=FLAGS)), "engine-args"
    )
    assert finding.reason == "bad-arguments"
    assert f"--{name}" in finding.seen
    assert like in finding.remedy


@pytest.mark.parametrize(
    "name", ["tensor_parallel_size", "no-enable-prefix-caching", "compilation-config.mode", "max-model"]
)
def test_other_ways_to_write_an_option_are_known(name):
    assert found(view(args={name: 1}), engine=ObservedEngine("/x", version="0.32.0", flags=FLAGS)) == ()


def test_unknown_options_are_not_judged_without_a_list():
    assert found(view(args={"anything": 1}), engine=ObservedEngine("/x", version="0.32.0")) == ()


def test_an_engine_that_cannot_run():
    engine = ObservedEngine(None, "/opt/vllm/bin/vllm does not exist; install vLLM there or correct engine.command")
    finding = only(found(view(), engine=engine), "engine-command")
    assert finding.reason == "engine-not-executable"
    assert finding.remedy.startswith("install vLLM")


@pytest.mark.parametrize(
    ("args", "env", "check", "level"),
    [
        ({"uvicorn-log-level": "warning"}, {}, "readiness-line", "refuse"),
        ({"uvicorn_log_level": "error"}, {}, "readiness-line", "refuse"),
        ({"headless": True}, {}, "readiness-line", "refuse"),
        ({"disable-log-stats": True}, {}, "counters", "warn"),
        ({"log-config-file": "/x.json"}, {}, "log-level", "warn"),
        ({}, {"VLLM_LOGGING_CONFIG_PATH": "/x.json"}, "log-level", "warn"),
        ({}, {"VLLM_LOGGING_LEVEL": "ERROR"}, "log-level", "warn"),
        ({}, {"VLLM_CONFIGURE_LOGGING": "0"}, "log-level", "warn"),
        ({}, {"VLLM_LOGGING_STREAM": "ext://nowhere"}, "log-level", "warn"),
        ({}, {"TQDM_DISABLE": "1"}, "load-progress", "warn"),
        ({"gpu-memory-utilization": 1.5}, {}, "engine-args", "refuse"),
        ({"gpu-memory-utilization": "much"}, {}, "engine-args", "refuse"),
        ({"tensor-parallel-size": 0}, {}, "engine-args", "refuse"),
        ({}, {"VLLM_PORT": "tcp://10.0.0.1:80"}, "engine-args", "refuse"),
        ({"enable-auto-tool-choice": True}, {}, "engine-args", "refuse"),
        ({"data-parallel-size": 2}, {}, "load-timeout", "warn"),
        ({}, {"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}, "engine-death", "warn"),
        ({"gpu-memory-utilization": 0.95}, {"NCCL_GRAPH_FILE": "/g.xml"}, "nccl-graph", "warn"),
    ],
)
def test_settings_that_hide_or_break(args, env, check, level):
    assert only(found(view(args=args, env=env)), check).level == level


@pytest.mark.parametrize(
    ("args", "env"),
    [
        ({"uvicorn-log-level": "info"}, {}),
        ({"uvicorn-log-level": False, "disable-log-stats": False}, {}),
        ({"gpu-memory-utilization": 0.95}, {}),
        ({"gpu-memory-utilization": "0.9"}, {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_CONFIGURE_LOGGING": "1"}),
        ({"data-parallel-size": 2}, {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}),
        ({"enable-auto-tool-choice": True, "tool-call-parser": "kimi_k2"}, {}),
    ],
)
def test_settings_that_are_well(args, env):
    assert found(view(args=args, env=env)) == ()


def test_options_in_the_command_count_too():
    asked = options(view(command=("vllm", "serve", "--tensor-parallel-size", "4", "-pp=2", "--max-model-len", "128K")))
    assert (asked.parallel().tensor, asked.parallel().pipeline, asked.number("max-model-len")) == (4, 2, 131072)
    assert (
        options(view(command=("vllm", "-tp", "4"), args={"tensor-parallel-size": 8})).number("tensor-parallel-size")
        == 8
    )
    assert options(view(args={"max-model-len": "auto"})).number("max-model-len") is None
    assert options(view(args={"max-model-len": -1})).number("max-model-len") is None
    quiet = view(command=("vllm", "serve", "--uvicorn-log-level=warning"))
    assert only(found(quiet), "readiness-line").reason == "readiness-line-hidden"


def test_refusals_come_first():
    items = found(view(args={"disable-log-stats": True, "uvicorn-log-level": "error"}))
    assert [item.level for item in items] == ["refuse", "warn"]


def test_flags_from_a_help_text():
    text = """usage: vllm serve [model_tag] [options]
  --headless            Run in headless mode, see --old-option.
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT
  --tensor-parallel-size, -tp TENSOR_PARALLEL_SIZE
                        Number, unlike --gone.
  --enable-prefix-caching, --no-enable-prefix-caching
"""
    flags = engineflags.flags_from_help(text)
    assert {"headless", "api-server-count", "tensor-parallel-size", "enable-prefix-caching"} <= flags
    assert "gone" not in flags


def test_flags_from_sources():
    flags = engineflags.flags_from_sources(["class A:\n    max_model_len: int = 3\n", 'add("--tool-call-parser", x)'])
    assert flags == {"max-model-len", "tool-call-parser"}


@pytest.mark.parametrize(
    "command",
    [
        ["/bin/true"],
        ["/bin/true", "serve"],
        ["/usr/bin/sleep", "inf"],
        ["vllm"],
        ["/opt/vllm/bin/vllm"],
        ["vllm", "bench"],
    ],
)
def test_a_command_that_cannot_start_an_engine_is_refused(command):
    native = not command[0].endswith("vllm")
    items = found(view(command=tuple(command)), engine=ObservedEngine(command[0], native=native))
    refused = [item for item in items if item.level is Level.REFUSE]
    assert [(item.check, item.reason) for item in refused] == [("engine-command", "configuration-invalid")]
    assert " ".join(command) in refused[0].seen
    assert '"serve"]' in refused[0].remedy


@pytest.mark.parametrize(
    ("command", "native"),
    [
        (["/opt/vllm/bin/vllm", "serve"], False),
        (["/nix/store/x/bin/vllm", "serve"], True),
        (["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server"], True),
        (["/usr/bin/python3.12", "/srv/engine.py"], True),
        (["numactl", "-N", "0", "/opt/vllm/bin/vllm", "serve"], True),
        (["/usr/local/bin/start-kimi"], False),
        (["/bin/sh", "/srv/start-kimi"], True),
        (["pixi", "run", "vllm", "serve"], True),
    ],
)
def test_a_command_that_may_start_an_engine_is_not(command, native):
    items = found(view(command=tuple(command)), engine=ObservedEngine(command[0], native=native))
    assert [item for item in items if item.level is Level.REFUSE] == []
