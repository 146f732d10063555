"""Stand-in versions of vLLM: wheels whose command is the fake engine, one of them installed behind the link /opt/vllm."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from process.fakes import write_model
from system.service import FAKE, Service

WHEELS = "/srv/wheels"
PIP = f"--no-index --find-links={WHEELS}"
MODEL = "/srv/model"


def wheel(folder: Path, version: str) -> None:
    """A distribution `vllm` whose command is the fake engine, described by a file of its version."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"vllm-{version}.dist-info"
    module = (
        "import os, runpy, sys\n"
        f"def main():\n    os.environ['FAKE_ENGINE'] = '/etc/vllm-supervisor/fake-{version}.json'\n"
        f"    sys.argv[0] = {FAKE!r}\n    runpy.run_path({FAKE!r}, run_name='__main__')\n"
    )
    with zipfile.ZipFile(folder / f"vllm-{version}-py3-none-any.whl", "w") as built:
        built.writestr("stand_in.py", module)
        built.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        built.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        built.writestr(f"{info}/entry_points.txt", "[console_scripts]\nvllm = stand_in:main\n")
        built.writestr(f"{info}/RECORD", "")


def offer(service: Service, versions: dict[str, dict[str, Any]]) -> None:
    """Wheels of these versions on the machine; the knobs of the engine of each."""
    for version, knobs in versions.items():
        wheel(service.machine.root / WHEELS.lstrip("/"), version)
        service.machine.put(json.dumps(knobs), f"/etc/vllm-supervisor/fake-{version}.json")


def link(service: Service) -> str:
    """Where /opt/vllm points to."""
    return service.machine.run(["readlink", "/opt/vllm"]).stdout.strip()


def place(service: Service, version: str) -> str:
    """The environment of an offered version, made without pip, which takes seconds; where it lies."""
    lies = f"/opt/vllm-{version}"
    script = f"#!{lies}/bin/python3\\nimport stand_in\\nstand_in.main()\\n"
    service.machine.run(
        f"/usr/bin/python3 -m venv --without-pip {lies} && "
        f"cd {lies}/lib/python3*/site-packages && python3 -m zipfile -e {WHEELS}/vllm-{version}-py3-none-any.whl . && "
        f"printf '{script}' >{lies}/bin/vllm && chmod 755 {lies}/bin/vllm",
        timeout=60,
    )
    return lies


def install(service: Service, version: str) -> None:
    """An offered version alone, behind the link; kimi is configured to run it."""
    service.machine.run("rm -rf /opt/vllm /opt/vllm-0.3*", timeout=60)
    service.machine.run(["ln", "-s", place(service, version), "/opt/vllm"])
    write_model(service.machine.root / MODEL.lstrip("/"))
    service.configure({"command": ["/opt/vllm/bin/vllm", "serve"], "model": MODEL}, smoke={"on_start": "off"})


def remove(service: Service) -> None:
    """No environment, no wheel."""
    service.machine.run(f"systemctl stop kimi; rm -rf /opt/vllm /opt/vllm-0.3* {WHEELS}", timeout=60)
