"""The instances that are shipped: valid, explained line by line, and right for the cards they name."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from lab.sparse_checkpoint import BITS, EXPERTS, tensors
from vllm_supervisor.config import load, load_env
from vllm_supervisor.core.checkpoint import Tensor
from vllm_supervisor.core.plan import engine, planner
from vllm_supervisor.core.plan.request import PlanRequest
from vllm_supervisor.core.plan.shape import read_shape
from vllm_supervisor.core.plan.sizes import find_card
from vllm_supervisor.core.plan.weights import tally

ROOT = Path(__file__).parents[2]
ENV = ROOT / "env"
INSTANCES = [ENV / "kimi.toml", *sorted((ENV / "profiles").glob("*.toml"))]
SHAPE = read_shape(json.loads((ROOT / "tests/corpus/models/kimi-k2.5-nvfp4.json").read_text()))


@pytest.mark.parametrize("path", INSTANCES, ids=lambda path: path.stem)
def test_it_is_valid(path):
    settings = load(path)
    assert not isinstance(settings, list), settings


def test_the_shipped_instance_is_what_the_deployment_needs():
    settings = load(ENV / "kimi.toml")
    assert not isinstance(settings, list)
    assert settings.engine.model == "/shared/kimi-k2.5-nvfp4"
    assert settings.engine.args == {
        "tensor-parallel-size": 8,
        "max-model-len": 131072,
        "gpu-memory-utilization": 0.95,
        "reasoning-parser": "kimi_k2",
        "tool-call-parser": "kimi_k2",
        "enable-auto-tool-choice": True,
        "trust-remote-code": True,
    }
    assert load_env(ENV / "kimi.env") == {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS"}


def test_the_unit_waits_for_the_path_of_the_shipped_instance():
    settings = load(ENV / "kimi.toml")
    assert not isinstance(settings, list)
    unit = (ROOT / "units" / "kimi.service").read_text()
    mounts = re.search(r"^RequiresMountsFor=(.*)$", unit, re.MULTILINE)
    assert mounts is not None
    assert settings.engine.model in mounts[1].split()


@pytest.mark.parametrize("name", ["kimi.toml", "kimi.env"])
def test_every_decision_says_why(name):
    before = ""
    for line in (ENV / name).read_text().splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", "[")):
            assert before, f"{name}: nothing is said before {line!r}"
        # One comment may stand before several lines that belong together; a blank line or a table ends it.
        before = stripped if stripped and not stripped.startswith("[") else ""


@pytest.fixture(scope="module")
def counted():
    # Expert 0 of each layer stands for all of them, or 277,000 tensors would be added up.
    def some():
        for name, dtype, shape in tensors(experts=1):
            times = EXPERTS if ".experts." in name else 1
            yield Tensor(name, dtype, tuple(shape), math.prod(shape) * BITS[dtype] // 8 * times)

    return tally(some(), SHAPE)


@pytest.mark.parametrize(("path", "card"), [("kimi.toml", "RTX PRO 6000"), ("profiles/h200.toml", "H200")])
def test_the_planner_says_that_it_fits(path, card, counted):
    args = tomllib.loads((ENV / path).read_text())["engine"]["args"]
    found = find_card(card)
    assert found is not None
    _, memory, capability = found
    request = PlanRequest(
        gpus=8,
        memory_bytes=memory,
        capability=capability,
        utilization=args["gpu-memory-utilization"],
        max_model_len=args["max-model-len"],
        version=(0, 32, 0),
    )
    entries = {entry.tensor_parallel_size: entry for entry in planner.plan(SHAPE, counted, request)}
    entry = entries[args["tensor-parallel-size"]]
    assert entry.fits, entry.reasons
    assert entry.max_model_len >= args["max-model-len"]
    assert not entries[4].fits


def test_the_cards_without_overlay_keep_an_fp8_cache():
    settings = load(ENV / "profiles" / "h200.toml")
    assert not isinstance(settings, list)
    card = find_card("H200")
    assert card is not None
    assert settings.engine.overlay == "off"
    assert engine.fp8_cache_works(SHAPE, (0, 18, 0), card[2])
