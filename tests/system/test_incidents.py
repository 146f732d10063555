"""Incidents under real systemd: an Xid, growing waits with their reason, a disk that is full, one archive."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from process.fakes import write_model

if TYPE_CHECKING:
    from pathlib import Path

    from system.service import Service

pytestmark = pytest.mark.timeout(300)

STATE = "/var/lib/vllm-supervisor/kimi"
TOOLS = "/srv/tools"
KERNEL = "/srv/tools/kernel.txt"
SECRET = "sesame-of-the-service"

JOURNALCTL = f"""#!/usr/bin/python3
import json, time
with open({KERNEL!r}) as file:
    while True:
        line = file.readline()
        if line:
            print(json.dumps({{"MESSAGE": line.strip()}}), flush=True)
        else:
            time.sleep(0.01)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint that passes the check."""
    return write_model(tmp_path / "model")


def fake(service: Service, model: Path, knobs: dict[str, Any], workers: int = 1, **tables: Any) -> None:
    """The fake engine with that checkpoint."""
    service.fake({"workers": workers, **knobs}, args={"tensor-parallel-size": workers}, **tables)
    for path in model.iterdir():
        service.machine.put(path, f"/srv/model/{path.name}")


def kernel_of_its_own(service: Service) -> None:
    """The service follows a file instead of the kernel's log."""
    service.machine.put("", KERNEL)
    service.machine.put(JOURNALCTL, f"{TOOLS}/journalctl", mode=0o755)
    service.override(f"[Service]\nEnvironment=PATH={TOOLS}:/usr/local/bin:/usr/bin:/bin\n")


def incidents(service: Service) -> list[str]:
    return service.machine.run(f"ls {STATE}/incidents 2>/dev/null", check=False).stdout.split()


def test_a_lost_gpu_leaves_the_unit_failed_with_69_and_the_card_named(service: Service, model: Path) -> None:
    kernel_of_its_own(service)
    fake(service, model, {}, 2)
    assert service.start().returncode == 0, service.journal()
    worker = service.machine.run("pgrep -u vllm -x VLLM::Worker_TP | head -n 1").stdout.strip()
    listed = '"' + worker + '"'
    service.wait("a look at the processes", lambda: listed in service.get("/status")[1], 30)
    service.machine.run(f"echo 'NVRM: Xid (PCI:0000:41:00): 79, pid={worker}, GPU has fallen off the bus.' >> {KERNEL}")
    shown = service.wait_state("failed")
    assert (shown["ExecMainStatus"], shown["NRestarts"]) == ("69", "0"), service.journal()
    status = service.machine.run(["systemctl", "status", "kimi", "--no-pager", "-n", "10"], check=False).stdout
    assert "gpu-lost: Xid 79 on GPU 0000:41:00" in status
    (name,) = incidents(service)
    assert name.endswith("-gpu-lost")
    assert "fallen off the bus" in service.machine.run(f"cat {STATE}/incidents/{name}/kernel.log").stdout
    assert service.left_over() == ""


def test_the_real_journal_is_followed_or_absent_and_never_in_the_way(service: Service, model: Path) -> None:
    fake(service, model, {})
    assert service.start().returncode == 0, service.journal()
    assert "Traceback" not in service.journal(200)
    service.stop()
    assert service.left_over() == ""


def test_waits_grow_and_status_says_why_the_last_one_failed(service: Service, model: Path) -> None:
    fake(
        service,
        model,
        {"exit_at": "connecting", "exit_code": 1},
        retry={"max_attempts": 4, "first_wait_s": 1.0, "max_wait_s": 10},
    )
    service.start(block=False)
    waiting = service.wait_status("attempt 3 of 4", timeout=60)
    assert "the last one failed: engine-died" in waiting
    service.wait_state("failed", timeout=90)
    waits = re.findall(r"waiting (\d+) s before attempt", service.journal(1000))
    assert waits == ["1", "2", "4"]
    assert len(incidents(service)) == 4


def test_a_full_disk_costs_history_and_incident_and_not_the_model(service: Service, model: Path) -> None:
    service.machine.run(
        f"mkdir -p {STATE} && mount -t tmpfs -o size=64k,mode=0750 tmpfs {STATE} && chown vllm: {STATE}"
    )
    try:
        service.machine.run(f"head -c 1M /dev/zero > {STATE}/filler", check=False)
        fake(service, model, {}, 2, retry={"first_wait_s": 0.2})
        assert service.start().returncode == 0, service.journal()
        assert "the history" in service.journal(200)
        worker = service.machine.run("pgrep -u vllm -x VLLM::Worker_TP | head -n 1").stdout.strip()
        service.machine.run(["kill", "-KILL", worker])
        service.wait("a second start", lambda: service.show("NRestarts")["NRestarts"] == "1", 40)
        service.wait_status("Ready", timeout=60)
        journal = service.journal(400)
        assert re.search(r"the incident (cannot be saved in \S+|\S+ lacks .*): No space left on device", journal), (
            journal
        )
        assert "worker-killed" in journal
        service.stop()
        assert service.left_over() == ""
    finally:
        service.machine.run("systemctl stop kimi", check=False, timeout=120)
        service.machine.run(["umount", "-l", STATE])


def test_an_archive_has_everything_but_the_secrets(service: Service, model: Path) -> None:
    service.environment(f"HF_TOKEN={SECRET}\n")
    try:
        fake(service, model, {"exit_at": "compiling", "exit_code": 3}, retry={"first_wait_s": 60})
        service.start(block=False)
        service.wait_status("attempt 2 of", timeout=60)
        (name,) = incidents(service)
        packed = service.machine.run(f"cd /tmp && tar -C {STATE}/incidents -cf - {name} | tar -xO 2>/dev/null").stdout
        assert "HF_TOKEN" in packed
        assert SECRET not in packed
        verdict = json.loads(service.machine.run(f"cat {STATE}/incidents/{name}/verdict.json").stdout)
        assert verdict["cause"]["reason"] == "engine-died"
        assert SECRET not in service.journal(500) + service.get("/status")[1] + service.get("/metrics")[1]
    finally:
        service.environment("")


def test_the_journal_suppresses_no_line_of_ours(service: Service, model: Path) -> None:
    # More than journald's own limit lets through on any disk; it would drop our last sentence, too.
    lines = 100_000
    fake(service, model, {"pace": 0})
    assert service.start().returncode == 0, service.journal()
    pid = json.loads(service.get("/status")[1])["engine"]["pid"]
    service.machine.run(f"yes 'a line of the engine' | head -n {lines} > /proc/{pid}/fd/1", timeout=120)
    told = "journalctl -u kimi -o cat --no-pager | grep -cx 'a line of the engine'"
    service.wait(
        "every line is in the journal", lambda: int(service.machine.run(told, check=False).stdout) >= lines, 120
    )
    assert "vllm_supervisor_output_dropped_total 0.0" in service.get("/metrics")[1]
    journald = service.machine.run(["journalctl", "-u", "systemd-journald", "-o", "cat", "--no-pager"]).stdout
    assert "messages from kimi.service" not in journald
