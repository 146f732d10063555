"""The completion script, in a real bash."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def script() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_supervisor", "completion"], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


def complete(script: str, *words: str) -> list[str]:
    shell = (
        f"{script}\nCOMP_WORDS=(vllm-supervisor {' '.join(words)!s}); COMP_CWORD={len(words)}\n"
        "_vllm_supervisor; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.split()


def test_verbs_are_completed(script: str) -> None:
    assert complete(script, "st") == ["status"]
    assert "trial" not in complete(script, "''")


def test_options_of_a_verb_are_completed(script: str) -> None:
    assert complete(script, "run", "--conf") == ["--config"]
    found = complete(script, "plan", "--gpu")
    assert "--gpu-memory" in found
    assert all(option.startswith("--gpu") for option in found)
