"""An upgrade of an engine whose weights another unit holds is refused before anything is turned."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_supervisor.commands.operations.served import StepError
from vllm_supervisor.commands.operations.upgrading import Upgrading


def test_weights_of_the_old_version_refuse_the_new_one() -> None:
    instance = SimpleNamespace(settings=SimpleNamespace(weights=SimpleNamespace(held=True)))
    it: Any = SimpleNamespace(name="kimi", instance=lambda: instance)
    params = {"version": "0.33.0", "link": "/opt/vllm", "python": "", "pip_args": ""}
    journal: Any = SimpleNamespace(head=lambda: {"params": params})
    with pytest.raises(
        StepError, match=r"weights that kimi-weights holds .* set weights\.held = false for the upgrade"
    ):
        Upgrading(it, journal).check("check", lambda _: None)
