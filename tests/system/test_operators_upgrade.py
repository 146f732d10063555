"""`upgrade` under real systemd with stand-in wheels: switched to when it serves, left again when it does not."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from process.fakes import write_model
from system.operating import clean, kill_at, kills_left, states, vsup
from system.service import FAKE, Service

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

PIP = "--no-index --find-links=/srv/wheels"


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


@pytest.fixture
def kimi(service: Service) -> Iterator[Service]:
    """kimi on version 0.32.0 through the link /opt/vllm; 0.32.1 is good, 0.33.0 fails while it starts."""
    clean(service)
    machine = service.machine
    knobs = {
        "0.32.0": {},
        "0.32.1": {},
        "0.33.0": {"fail_with": "/srv/corpus/failure-logs/kv-cache-too-small-v0.32.log"},
    }
    for version, knob in knobs.items():
        wheel(machine.root / "srv/wheels", version)
        machine.put(json.dumps(knob), f"/etc/vllm-supervisor/fake-{version}.json")
    machine.run(
        "rm -rf /opt/vllm /opt/vllm-0.3*; /usr/bin/python3 -m venv --without-pip /opt/vllm-0.32.0 && "
        "cd /opt/vllm-0.32.0/lib/python3*/site-packages && python3 -m zipfile -e /srv/wheels/vllm-0.32.0-py3-none-any.whl . && "
        "printf '#!/opt/vllm-0.32.0/bin/python3\\nimport stand_in\\nstand_in.main()\\n' >/opt/vllm-0.32.0/bin/vllm && "
        "chmod 755 /opt/vllm-0.32.0/bin/vllm && ln -s /opt/vllm-0.32.0 /opt/vllm",
        timeout=60,
    )
    machine.run("mkdir -p /srv/model")
    write_model(machine.root / "srv/model")
    service.configure({"command": ["/opt/vllm/bin/vllm", "serve"], "model": "/srv/model"}, smoke={"on_start": "off"})
    assert service.start().returncode == 0, service.journal()
    yield service
    clean(service)
    machine.run("systemctl stop kimi; rm -rf /opt/vllm /opt/vllm-0.3*", timeout=60)


def link(service: Service) -> str:
    return service.machine.run(["readlink", "/opt/vllm"]).stdout.strip()


def test_a_version_that_serves_is_switched_to_and_the_old_one_is_the_way_back(kimi: Service) -> None:
    kill_at(kimi, "install begun", "switch begun", "wait begun")
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "0.32.1", "--pip-args", PIP, timeout=200)
    assert done.returncode == 0, done.stderr
    assert kills_left(kimi) == ""
    assert link(kimi) == "/opt/vllm-0.32.1"
    shown = kimi.machine.run("readlink /proc/$(pgrep -of '/opt/vllm.*bin/vllm serve')/exe; pgrep -af bin/vllm").stdout
    assert "/bin/vllm serve" in shown
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    assert states(kimi)["back"] == "skipped"

    again = vsup(kimi, "upgrade", "kimi", "--vllm", "0.32.1")
    assert again.returncode == 64
    assert "/opt/vllm points to /opt/vllm-0.32.1 already" in again.stderr
    old = vsup(kimi, "upgrade", "kimi", "--vllm", "0.32.0")
    assert old.returncode == 0, old.stderr
    assert link(kimi) == "/opt/vllm-0.32.0"


def test_a_version_that_fails_is_left_again_and_its_incident_kept(kimi: Service) -> None:
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "0.33.0", "--pip-args", PIP, timeout=200)
    assert done.returncode == 18, done.stderr
    assert "178720" in done.stderr
    assert link(kimi) == "/opt/vllm-0.32.0"
    assert kimi.show("ActiveState")["ActiveState"] == "active"
    assert states(kimi)["back-smoke"] == "done"
    kept = kimi.machine.run("ls -d /var/lib/vllm-supervisor-operations/kimi/incident-0.33.0-*").stdout
    assert "kv-cache-too-small" in kept
    assert kimi.machine.run("ls /opt/vllm-0.33.0/bin/vllm").stdout


def test_a_version_that_does_not_exist_stops_nothing(kimi: Service) -> None:
    before = kimi.show("MainPID")
    done = vsup(kimi, "upgrade", "kimi", "--vllm", "9.9.9", "--pip-args", PIP, timeout=120)
    assert done.returncode == 11, done.stderr
    assert "No matching distribution" in done.stderr
    assert kimi.show("MainPID") == before
    assert link(kimi) == "/opt/vllm-0.32.0"
