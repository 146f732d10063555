"""The kernel's lines by way of a `journalctl` that a test writes; the host's own log is never touched."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from vllm_supervisor.adapters.kernel_log import COMMAND, KernelLog, parse


def stand_in(folder: Path, body: str) -> list[str]:
    program = folder / "journalctl"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
    program.chmod(0o755)
    return [str(program), *COMMAND[1:]]


def entry(message, at=1_790_000_000.5) -> str:
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": str(int(at * 1e6)), "PRIORITY": "3"})


async def following(command, until, helpers=None):
    """Follow until `until(log, heard)`; what was heard."""
    heard = []
    log = KernelLog(heard.append, command=command, helpers=helpers)
    task = asyncio.create_task(log.run())
    async with asyncio.timeout(20):
        while not until(log, heard) and not task.done():
            await asyncio.wait({task}, timeout=0.01)
    pid = log.pid
    done = task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return log, heard, pid, done


async def test_lines_come_with_their_time_while_they_are_written(tmp_path):
    lines = [entry("NVRM: Xid (PCI:0000:41:00): 79, pid=1"), entry([255, 104, 105]), "no json", entry("last")]
    command = stand_in(tmp_path, f"[print(line, flush=True) for line in {lines!r}]\ntime.sleep(60)")
    helpers = set()
    log, heard, pid, _ = await following(command, lambda _, heard: len(heard) == 3, helpers)
    assert [line.message for line in heard] == ["NVRM: Xid (PCI:0000:41:00): 79, pid=1", "\ufffdhi", "last"]
    assert heard[0].at == 1_790_000_000.5
    assert log.since(1_790_000_001.0) == []
    assert len(log.since(1_790_000_000.0)) == 3
    assert not Path(f"/proc/{pid}").exists()
    assert helpers == set()


async def test_the_follower_is_known_as_a_helper_while_it_runs(tmp_path):
    helpers = set()
    command = stand_in(tmp_path, "time.sleep(60)")
    _, _, pid, _ = await following(command, lambda log, _: log.pid in helpers, helpers)
    assert pid is not None


async def test_a_journal_that_may_not_be_read_is_absent_and_no_error(tmp_path):
    command = stand_in(tmp_path, "print('No journal files were opened', file=sys.stderr)\nsys.exit(1)")
    log, heard, _, done = await following(command, lambda *_: False)
    assert done
    assert heard == []
    assert log.pid is None


async def test_no_journalctl_at_all_is_absent_and_no_error(tmp_path):
    _, heard, _, done = await following([str(tmp_path / "nothing")], lambda *_: False)
    assert done
    assert heard == []


async def test_neither_secrets_nor_marks_reach_the_follower(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    command = stand_in(tmp_path, "print(json.dumps({'MESSAGE': ' '.join(os.environ)}), flush=True)\ntime.sleep(60)")
    _, heard, _, _ = await following(command, lambda _, heard: bool(heard))
    assert set(heard[0].message.split()) <= {"PATH", "LANG", "LC_CTYPE"}


def test_what_is_no_entry_is_none():
    assert [parse(raw) for raw in (b"", b"[]", b"{}", b'{"MESSAGE": null, "__REALTIME_TIMESTAMP": "x"}', b"\xff")] == [
        None
    ] * 5
