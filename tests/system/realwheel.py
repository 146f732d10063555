"""Wheels of other versions of vLLM that are real engines: what they install is the laboratory's engine, under their version."""

from __future__ import annotations

import zipfile
from pathlib import Path

from system.standin import WHEELS, remove

__all__ = ["WHEELS", "offer", "remove"]

# What a release for a newer CUDA meets on an older driver, in the process in which it meets it.
BROKEN = """
import multiprocessing
def load():
    if multiprocessing.current_process().name.startswith("EngineCore"):
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver."
        )
"""


def offer(folder: Path, version: str, site: Path, *, broken: bool = False) -> None:
    """A distribution `vllm` for pip.

    Args:
        folder: Where the wheel goes.
        version: Its version; the engine takes itself for a build for the CPU by that word in it.
        site: The site-packages of the real engine; a line of a .pth file puts them on the path.
        broken: The engine's core fails while it starts, from a plugin of vLLM that comes with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    local = f"{version}+cpu"
    info = f"vllm-{local}.dist-info"
    points = "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"
    with zipfile.ZipFile(folder / f"vllm-{local}-py3-none-any.whl", "w") as built:
        built.writestr("real_engine.pth", f"{site}\n")
        if broken:
            built.writestr("newer_cuda.py", BROKEN)
            points += "[vllm.general_plugins]\nnewer_cuda = newer_cuda:load\n"
        built.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {local}\n")
        built.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        built.writestr(f"{info}/entry_points.txt", points)
        built.writestr(f"{info}/RECORD", "")
