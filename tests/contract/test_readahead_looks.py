"""What the reading helper finds out first: files, file system, memory, and who else loads."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from process.daemon_tools import at_most
from vllm_supervisor.adapters.readahead.client import ReadAhead, read_ahead
from vllm_supervisor.adapters.readahead.files import NothingToReadError, file_system, weight_files
from vllm_supervisor.adapters.readahead.look import look
from vllm_supervisor.adapters.readahead.mark import NAME, earlier_loads
from vllm_supervisor.core.readahead.order import Order
from vllm_supervisor.core.readahead.report import Doing, Report


def only_report(order):
    (report,) = read_ahead(order)
    return report


def test_only_what_the_index_names_is_read(tmp_path):
    for name in ("model-1.safetensors", "model-2.safetensors", "stray.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    names = [Path(file.path).name for file in weight_files(Order(str(tmp_path)))]
    assert names == ["model-1.safetensors", "model-2.safetensors"]
    for broken in ("{", "[]", '{"weight_map": 3}'):
        (tmp_path / "model.safetensors.index.json").write_text(broken)
        assert len(weight_files(Order(str(tmp_path)))) == 3
    with pytest.raises(NothingToReadError):
        weight_files(Order(str(tmp_path), load_format="pt"))


def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw\nb /data nfs4 rw\nc /data/local\\040disk xfs rw\nshort\n")
    found = [file_system(path, mounts) for path in ("/x", "/data/x", "/database", "/data/local disk/x", "/data")]
    assert found == ["ext4", "nfs4", "ext4", "xfs", "nfs4"]
    assert file_system("/x", tmp_path / "none") == ""
    assert file_system("/dev/shm/x") == "tmpfs"


def test_memory_is_looked_at_through_the_cgroups_too(tmp_path):
    assert look(tmp_path) is None
    here = look()
    assert 0 < here.available <= here.total
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    for folder in (proc / "self", proc / "pressure", cgroups / "system.slice" / "kimi.service"):
        folder.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    (proc / "self" / "cgroup").write_text("0::/system.slice/kimi.service\n")
    assert (look(proc, cgroups).available, look(proc, cgroups).pressure) == (900 * 1024, None)
    (cgroups / "system.slice" / "memory.max").write_text("500000\n")
    (cgroups / "system.slice" / "memory.current").write_text("200000\n")
    (proc / "pressure" / "memory").write_text("some avg10=4.50 avg60=0 avg300=0 total=0\n")
    assert (look(proc, cgroups).available, look(proc, cgroups).pressure) == (300_000, 4.5)
    (proc / "self" / "cgroup").write_text("4:cpu,memory:/a/b\n1:name=systemd:/x\n")
    (cgroups / "memory" / "a").mkdir(parents=True)
    (cgroups / "memory" / "a" / "memory.limit_in_bytes").write_text("1000")
    (cgroups / "memory" / "a" / "memory.usage_in_bytes").write_text("900")
    assert look(proc, cgroups).available == 100


def test_a_mark_that_nobody_holds_is_none(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / NAME).write_text("1\n")
    assert earlier_loads(tmp_path / "b") == []
    assert earlier_loads(Path("/nonexistent/kimi")) == []


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (shutil.rmtree, "cannot be read: No such file or directory"),
        (lambda folder: None, "holds no weight files"),
        (lambda folder: (folder / "a.safetensors").touch(), "are empty"),
        (lambda folder: (folder / "a.safetensors").symlink_to("/nonexistent"), "cannot be read"),
    ],
)
def test_nothing_to_read_is_one_sentence(tmp_path, prepare, why):
    prepare(tmp_path)
    report = only_report(Order(str(tmp_path)))
    assert report.doing is Doing.OFF
    assert why in report.why


def test_a_checkpoint_in_memory_is_not_read():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (Path(folder) / "model.safetensors").write_bytes(b"x" * (1 << 20))
        report = only_report(Order(folder))
    assert (report.doing, report.why) == (Doing.OFF, "the checkpoint lies in memory already (tmpfs)")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/nonexistent/helper"], "the helper does not start: No such file or directory"),
        ([sys.executable, "-c", "raise SystemExit(3)"], "its helper ended with 3"),
        ([sys.executable, "-c", "print('nonsense', flush=True)"], "its helper ended with 0"),
    ],
)
async def test_a_helper_that_is_none_is_one_sentence(tmp_path, command, why):
    client = ReadAhead(command)
    assert await client.run(Order(str(tmp_path))) == Report(Doing.FAILED, why)


PRESSED = """
import os, sys
from vllm_supervisor.adapters.readahead import __main__ as helper
from vllm_supervisor.core.readahead.memory import Memory
helper.look = lambda: Memory(1 << 40, 1 << 39, 40.0 if os.path.exists(sys.argv[2]) else 0.0)
os._exit(helper.main(int(sys.argv[1])))
"""


async def test_nothing_is_read_while_memory_is_short_and_all_of_it_afterwards(tmp_path):
    # Not below /tmp, which may lie in memory.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / "model.safetensors").write_bytes(b"x" * (4 << 20))
    pressed = tmp_path / "pressed"
    pressed.touch()
    client = ReadAhead([sys.executable, "-c", PRESSED, str(os.getpid()), str(pressed)])
    seen: list[Report] = []
    heard = asyncio.Event()

    def hear(report: Report) -> None:
        seen.append(report)
        heard.set()

    task = asyncio.create_task(client.run(Order(str(folder)), hear))
    try:
        async with asyncio.timeout(at_most(60)):
            await heard.wait()
            assert (seen[0].doing, seen[0].why) == (Doing.PAUSED, "memory is short")
            while len(seen) < 4:  # several looks later it still waits
                heard.clear()
                await heard.wait()
            assert {(report.doing, report.read_bytes + report.cached_bytes) for report in seen} == {(Doing.PAUSED, 0)}
            pressed.unlink()
            while seen[-1].doing is not Doing.DONE:
                heard.clear()
                await heard.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        shutil.rmtree(folder)
    assert seen[-1].read_bytes + seen[-1].cached_bytes == 4 << 20
