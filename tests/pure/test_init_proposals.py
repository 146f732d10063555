"""What `init` proposes for a checkpoint and a machine, and the file that it makes of it."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_supervisor.config import Settings, parse
from vllm_supervisor.config.example import Argument, document
from vllm_supervisor.config.problems import all_keys
from vllm_supervisor.config.reference import rows, sections, settings_page
from vllm_supervisor.core.plan.request import PlanEntry
from vllm_supervisor.core.propose import Fit, arguments, choose, has_code, is_kimi

MODELS = Path(__file__).parents[1] / "corpus" / "models"
KIMI = json.loads((MODELS / "kimi-k2.5-nvfp4.json").read_text())
LLAMA = json.loads((MODELS / "llama-3.3-70b.json").read_text())


def proposed(config, **changes):
    given = {"context": 131072, "code": False, "fit": None} | changes
    return {item.name: item for item in arguments(config, **given)}


def entry(size, longest, *, fits=True, reasons=()):
    return PlanEntry(
        tensor_parallel_size=size, pipeline_parallel_size=1, data_parallel_size=1, expert_parallel=False, fits=fits,
        reasons=reasons, notes=(), memory_bytes_per_gpu=1, gpu_memory_utilization=0.9, weights_bytes_per_gpu=1,
        overhead_bytes_per_gpu=1, kv_cache_dtype="auto", kv_bytes_per_token=1, kv_cache_bytes_per_gpu=1,
        max_tokens=longest, max_model_len=longest, suggested_args=(),
    )  # fmt: skip


def test_kimi_gets_the_shape_of_the_shipped_instance():
    shipped = tomllib.loads((Path(__file__).parents[2] / "env" / "kimi.toml").read_text())["engine"]["args"]
    found = proposed(KIMI, context=262144, code=True)
    assert {name: item.value for name, item in found.items() if item.active} == shipped


def test_another_family_gets_no_parser_that_is_not_its_own():
    found = proposed(LLAMA)
    assert not is_kimi(LLAMA)
    assert [name for name, item in found.items() if item.active] == ["tensor-parallel-size", "max-model-len"]
    assert not found["reasoning-parser"].active


@pytest.mark.parametrize("documents", [({"auto_map": {"AutoConfig": "x.Y"}}, None), ({}, {"auto_map": {"a": "b"}})])
def test_code_is_trusted_only_where_there_is_some(documents):
    assert has_code(*documents)
    assert proposed(LLAMA, code=True)["trust-remote-code"].active
    assert not has_code({"auto_map": {}}, None)
    assert not proposed(LLAMA)["trust-remote-code"].active


def test_the_smallest_size_that_holds_the_whole_context_is_chosen():
    fit = choose([entry(1, 0, fits=False), entry(2, 131072), entry(4, 131072)], 4, 131072)
    assert fit == Fit(4, 2, 131072, 0.9)
    assert proposed(LLAMA, fit=fit)["tensor-parallel-size"].value == 2


def test_else_the_size_that_holds_most():
    fit = choose([entry(4, 9000), entry(8, 70000)], 8, 131072)
    assert fit is not None
    assert fit.tensor_parallel == 8
    assert fit.length == 65536
    length = proposed(LLAMA, fit=fit)["max-model-len"]
    assert length.value == 65536
    assert "131072" in length.why


def test_what_fits_nowhere_is_said_in_the_file():
    fit = choose([entry(1, 0, fits=False, reasons=("TP=1 needs 138 GiB",))], 1, 131072)
    assert fit is not None
    assert "TP=1 needs 138 GiB" in proposed(LLAMA, fit=fit)["tensor-parallel-size"].why
    assert choose([], 1, 131072) is None
    assert replace(fit, reason="").length == 0


def test_a_model_whose_context_is_unknown_gets_no_length():
    assert "max-model-len" not in proposed({"model_type": "new"}, context=0)


def test_the_file_names_every_setting_and_is_valid():
    text = document(
        "A head.",
        {"engine.model": "/m", "engine.port": 8001},
        [Argument("x-y", 1, "why"), Argument("z", value=True, why="w", active=False)],
    )
    settings = parse(text, "f")
    assert isinstance(settings, Settings), settings
    assert settings.engine.model == "/m"
    assert settings.engine.port == 8001
    assert settings.engine.args == {"x-y": 1}
    for key in all_keys():
        section, name = key.split(".")
        if name not in {"args", "env"}:
            part = text.split(f"[{section}]", 1)[1].split("\n\n", 1)[0]
            assert re.search(rf"^(# )?{name} = ", part, re.MULTILINE), key


def test_every_line_that_is_shown_as_a_default_is_the_default():
    """All of them uncommented give the same settings as none of them."""
    text = document("A head.", {"engine.model": "/m"}, [])
    full = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    settings, plain = parse(full, "f"), parse('[engine]\nmodel = "/m"\n', "f")
    assert isinstance(settings, Settings), settings
    assert isinstance(plain, Settings)
    assert settings.model_dump(exclude={"stall"}) == plain.model_dump(exclude={"stall"})


def test_the_reference_has_every_setting_with_a_meaning_and_its_limits():
    page = settings_page()
    for section, about in sections():
        assert about
        for row in rows(section):
            assert row.meaning, row.key
            assert f"| `{row.key}` |" in page
    kinds = {row.key: row.kind for section, _ in sections() for row in rows(section)}
    assert kinds["engine.port"] == "whole number from 1 to 65535"
    assert kinds["liveness.mode"] == '"restart" or "report" or "off"'
    assert kinds["stall.launching"] == "number above 0 to 86400"
    defaults = {row.key: row.default for section, _ in sections() for row in rows(section)}
    assert defaults["engine.model"] == ""
    assert defaults["retry.max_wait_s"] == "600"
