"""The completion script, in a real bash and a real zsh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_supervisor.daemon.locate import SYSTEM_CONFIG


@pytest.fixture(scope="module")
def script() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_supervisor", "completion"], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


@pytest.fixture(params=["bash", "zsh"])
def complete(request, script: str):
    """The words that the shell offers for what is typed so far."""

    def offered(*words: str, script: str = script) -> list[str]:
        return SHELLS[request.param](script, *words)

    return offered


def in_zsh(script: str, *words: str) -> list[str]:
    # As zsh's own `_bash_complete` asks, without the line editor.
    shell = (
        f"autoload -Uz bashcompinit; compdef() {{ :; }}; bashcompinit\n{script}\n"
        f"COMP_WORDS=(vllm-supervisor {' '.join(words)}); COMP_CWORD={len(words)}\n"
        f"compgen -o default -F _vllm_supervisor -- {words[-1]}"
    )
    done = subprocess.run(["zsh", "-f", "-c", shell], capture_output=True, text=True, check=False, timeout=30)
    assert done.stderr == ""
    # What does not begin as the word does is left out by the line editor.
    return [word for word in done.stdout.split() if word.startswith(words[-1].strip("'"))]


def in_bash(script: str, *words: str) -> list[str]:
    shell = (
        f"{script}\nCOMP_WORDS=(vllm-supervisor {' '.join(words)!s}); COMP_CWORD={len(words)}\n"
        "_vllm_supervisor; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.split()


SHELLS = {"bash": in_bash, "zsh": in_zsh}


def test_verbs_are_completed(complete) -> None:
    assert complete("st") == ["status"]
    found = complete("''")
    assert "wait" in found
    assert "trial" not in found


def test_options_of_a_verb_are_completed(complete) -> None:
    assert complete("run", "--conf") == ["--config"]
    found = complete("plan", "--gpu")
    assert "--gpu-memory" in found
    assert all(option.startswith("--gpu") for option in found)


def test_instances_are_completed_where_a_verb_takes_one(complete, script: str, tmp_path: Path) -> None:
    elsewhere = script.replace(str(SYSTEM_CONFIG), str(tmp_path))
    assert elsewhere != script
    none = complete("status", "''", script=elsewhere)
    assert none
    assert all(word.startswith("--") for word in none)
    for name in ("kimi.toml", "kimi.env", "embed.toml"):
        (tmp_path / name).touch()
    assert complete("status", "k", script=elsewhere) == ["kimi"]
    assert {"kimi", "embed", "--watch"} <= set(complete("status", "''", script=elsewhere))
    assert complete("explain", "e", script=elsewhere) == ["embed"]
    assert complete("plan", "k", script=elsewhere) == []
