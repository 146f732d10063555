"""Who may import whom, how long a file may be, and which names are not ours."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "supervisor"
PACKAGE = SOURCE / "vllm_supervisor"

CORE_MAY = {
    "__future__", "bisect", "collections", "dataclasses", "enum", "functools", "itertools", "json", "math", "re",
    "string", "struct", "types", "typing",
}  # fmt: skip
"""No clock, no I/O, no randomness: what core decides follows from its arguments."""

LAYERS = {
    "core": {"core"},
    "config": {"core", "config"},
    "adapters": {"core", "adapters"},
    "daemon": {"core", "config", "adapters", "daemon"},
    "commands": {"core", "config", "adapters", "daemon", "commands"},
}
"""Which layer may import which; an adapter moreover no other adapter."""

LONGEST = 250
EXCEPTIONS: frozenset[str] = frozenset()
"""Files that may be longer. It stays empty: a file is split by the question that it answers."""

VLLMS_OWN = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_API_KEY", "VLLM_CACHE_ROOT", "VLLM_CONFIGURE_LOGGING", "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_HOST_IP", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "VLLM_LOGGING_COLOR",
    "VLLM_LOGGING_CONFIG_PATH", "VLLM_LOGGING_LEVEL", "VLLM_LOGGING_PREFIX", "VLLM_LOGGING_STREAM",
    "VLLM_NO_USAGE_STATS", "VLLM_PORT",
}  # fmt: skip
"""Variables of vLLM that we read, set or name. A VLLM_ name of our own would be warned about by every
process of the engine, and change the key of its compile cache (F9.4)."""


def files(*roots):
    return sorted(path for root in roots for path in root.rglob("*.py"))


def imports(path):
    """Every module that a file imports, wherever in it, as absolute dotted names."""
    here = path.relative_to(SOURCE).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found.add(module)
            # `from . import x` names modules, too
            found |= {f"{module}.{alias.name}" for alias in node.names if (SOURCE / module.replace(".", "/")).is_dir()}
    return found


def ours(modules):
    """The layers of ours among modules, by the first part below the package."""
    return {name.split(".")[1] for name in modules if name.startswith("vllm_supervisor.")}


def libraries(modules):
    tops = {name.split(".")[0] for name in modules}
    return tops - set(sys.stdlib_module_names) - {"vllm_supervisor"}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_lies_below(layer):
    wrong = {}
    for path in files(PACKAGE / layer):
        above = (ours(imports(path)) & {*LAYERS, "cli"}) - LAYERS[layer]
        if above:
            wrong[str(path.relative_to(PACKAGE))] = above
    assert files(PACKAGE / layer)
    assert not wrong


def test_core_imports_a_short_white_list():
    wrong = {}
    for path in files(PACKAGE / "core"):
        outside = {name.split(".")[0] for name in imports(path)} - CORE_MAY - {"vllm_supervisor"}
        if outside:
            wrong[str(path.relative_to(PACKAGE))] = outside
    assert not wrong


def test_an_adapter_is_one_outside_facility():
    wrong = {}
    for path in files(PACKAGE / "adapters"):
        found = imports(path)
        own = ".".join(path.relative_to(SOURCE).with_suffix("").parts[:3])
        others = {
            name for name in found if re.match(r"vllm_supervisor\.adapters\.\w", name) and not name.startswith(own)
        }
        if others or len(libraries(found)) > 1:
            wrong[str(path.relative_to(PACKAGE))] = others | libraries(found)
    assert not wrong


def test_a_library_is_known_to_the_distribution():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=]", name)[0] for name in wanted} - {"nvidia-ml-py"} | {"pynvml"}
    used = set().union(*(libraries(imports(path)) for path in files(PACKAGE)))
    assert used <= {name.replace("-", "_") for name in names}
    assert "vllm" not in used


def test_nothing_imports_the_command_line():
    users = {path.relative_to(PACKAGE).name for path in files(PACKAGE) if "vllm_supervisor.cli" in imports(path)}
    assert users <= {"__main__.py"}


def test_no_file_is_longer_than_a_reader_bears():
    long = {}
    for path in files(SOURCE, ROOT / "tests"):
        lines = len(path.read_text().splitlines())
        if lines > LONGEST:
            long[str(path.relative_to(ROOT))] = lines
    assert not EXCEPTIONS
    assert not long


def test_the_name_supervisor_belongs_to_somebody_else():
    """vLLM's own environment contains the PyPI distribution `supervisor` (F9.1)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["name"] == "vllm-supervisor"
    assert set(project["project"]["scripts"]) == {"vllm-supervisor"}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["supervisor/vllm_supervisor"]}
    tops = {path.name for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"} - {"__pycache__"}
    assert tops == {"vllm_supervisor"}
    assert not (ROOT / "supervisor.py").exists()


def test_no_variable_of_ours_begins_with_vllm():
    named = {}
    shipped = [
        *files(PACKAGE),
        *(path for name in ("units", "env") for path in (ROOT / name).rglob("*") if path.is_file()),
    ]
    for path in shipped:
        for name in re.findall(r"\bVLLM_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()):
            named.setdefault(name, str(path.relative_to(ROOT)))
    assert {name: where for name, where in named.items() if name not in VLLMS_OWN} == {}
