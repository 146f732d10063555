"""Reading ahead inside the unit's sandbox: as a user who may only read, with the unit's list of system calls."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from process.fakes import write_model
from process.page_cache import MOST
from system.service import Service

pytestmark = pytest.mark.timeout(240)
SHARDS, SHARD = 4, 32 << 20


def shards(folder: Path) -> None:
    """The model of the fake engine with four shards of real bytes instead of its small one."""
    write_model(folder)
    (folder / "model.safetensors").unlink()
    for number in range(1, SHARDS + 1):
        header = json.dumps({f"t{number}": {"dtype": "U8", "shape": [SHARD], "data_offsets": [0, SHARD]}}).encode()
        data = struct.pack("<Q", len(header)) + header + bytes([number]) * SHARD
        (folder / f"model-{number}.safetensors").write_bytes(data)


def reading(service: Service) -> dict[str, Any]:
    code, body = service.get("/status")
    return dict(json.loads(body)["readahead"]) if code == 200 else {}


def test_it_runs_in_the_sandbox_and_goes_with_the_service(service: Service) -> None:
    service.fake({"cut_at": "configuring", "shards": SHARDS}, load={"readahead": "80MiB"})
    shards(service.machine.root / "srv/model")
    service.machine.run("sync; chmod -R a+rX,go-w /srv/model")
    service.start(block=False)
    said = service.wait("a full window", lambda: (found := reading(service)).get("doing") == "full" and found, 60)
    assert said["total_bytes"] > SHARDS * SHARD
    assert 64 << 20 <= said["ahead_bytes"] <= 80 << 20
    assert "64.0 MiB of 128.0 MiB read ahead, more does not fit" in service.wait_status("read ahead")
    pid = service.machine.run("pgrep -u vllm -f adapters.readahead").stdout.strip()
    assert service.machine.run(["ionice", "-p", pid]).stdout.strip() == "idle"
    assert service.machine.run(["cat", f"/proc/{pid}/oom_score_adj"]).stdout.strip() == "800"
    assert service.machine.run(["cat", f"/proc/{pid}/cgroup"]).stdout.strip().endswith("/kimi.service")
    service.stop()
    assert service.wait_state("inactive")["Result"] == "success"
    assert service.left_over() == ""

    service.fake({"pace": 1.0, "shards": SHARDS})
    shards(service.machine.root / "srv/model")
    assert service.start().returncode == 0, service.journal()
    said = reading(service)
    assert said["doing"] == "ended", said
    assert MOST <= said["hit_ratio"] <= 1.0, said
    assert service.machine.run("pgrep -u vllm -f adapters.readahead", check=False).stdout == ""
    assert "where the time went: " in service.journal()
    history = service.machine.run(["vllm-supervisor", "history", "kimi"]).stdout
    assert "The last start that became ready took " in history
    service.stop()
    assert service.left_over() == ""
