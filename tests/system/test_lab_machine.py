"""The machine of namespaces is what it claims: real systemd, cut off from the host, and gone afterwards."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.machine import Bind, Machine
from lab.paths import LabError

TESTS = Path(__file__).resolve().parent.parent


def marks(pid: int) -> list[str]:
    """What a machine could leave behind, by the id of its keeper."""
    cgroups = [
        line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line
    ]
    left = [str(path) for root in cgroups for path in Path(root).rglob(f"vsup-lab-{pid}")]
    left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/vsup-lab-" in line]
    return left


def test_systemd_is_process_1_and_running(machine: Machine) -> None:
    assert machine.run("cat /proc/1/comm").stdout.strip() == "systemd"
    assert machine.run("systemctl is-system-running").stdout.strip() == "running"
    assert machine.run("systemctl --failed --no-legend").stdout.strip() == ""
    assert machine.boot_s < 30


def test_users_sandboxes_and_the_journal_work(machine: Machine) -> None:
    sandbox = "-p DynamicUser=yes -p ProtectSystem=strict -p PrivateTmp=yes -p SystemCallFilter=@system-service"
    out = machine.run(
        f"systemd-run --quiet --wait --pipe {sandbox} -u lab-sandbox sh -c 'id -un; touch /usr/x || echo closed'"
    ).stdout
    assert out.split() == ["lab-sandbox", "closed"]
    machine.run("systemd-run --quiet --wait -u lab-words echo a word for the journal")
    assert "a word for the journal" in machine.wait("journalctl -u lab-words | grep word", 10)


def test_a_readiness_message_is_believed_from_the_main_process_only(machine: Machine) -> None:
    # systemd-notify would speak in its parent's name; this does not.
    say = "import os, socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])"
    machine.put(f"{say}\n", "/srv/say.py")
    options = "-p Type=notify -p NotifyAccess=main -p TimeoutStartSec=2 -u lab-notify"
    stranger = machine.run(f"systemd-run {options} sh -c 'python3 /srv/say.py; sleep 60'", check=False)
    assert stranger.returncode != 0
    assert machine.show("lab-notify", "Result") == "timeout"
    machine.run("systemctl reset-failed lab-notify")
    main = "python3 -c \"exec(open('/srv/say.py').read()); import time; time.sleep(60)\""
    machine.run(f"systemd-run {options} {main}")
    assert machine.show("lab-notify", "ActiveState") == "active"
    machine.run("systemctl stop lab-notify")


def test_the_network_is_loopback_only(machine: Machine) -> None:
    assert re.findall(r"^\d+: (\w+)", machine.run("ip -o link").stdout, re.MULTILINE) == ["lo"]
    assert "127.0.0.1" in machine.run("ip -o addr show lo").stdout


def test_changes_stay_inside(machine: Machine, tmp_path: Path) -> None:
    machine.run("echo x >/etc/lab-was-here; mkdir /opt/lab-was-here")
    machine.put("text", "/srv/lab/file", 0o600)
    assert machine.run("stat -c %a /srv/lab/file; cat /srv/lab/file").stdout == "600\ntext"
    assert not Path("/etc/lab-was-here").exists()
    assert not Path("/opt/lab-was-here").exists()
    source = tmp_path / "source"
    source.write_text("copied")
    machine.put(source, "/srv/lab/copy")
    assert machine.run("cat /srv/lab/copy").stdout == "copied"


def test_the_hosts_kernel_settings_are_out_of_reach(machine: Machine) -> None:
    before = Path("/proc/sys/vm/swappiness").read_text()
    assert machine.run("echo 1 >/proc/sys/vm/swappiness", check=False).returncode != 0
    assert (
        machine.run(
            "test -w /sys/kernel/mm/transparent_hugepage/enabled && echo 1 >/sys/kernel/mm/ksm/run", check=False
        ).returncode
        != 0
    )
    assert Path("/proc/sys/vm/swappiness").read_text() == before


def test_a_command_that_does_not_end_is_killed_with_its_children(machine: Machine) -> None:
    with pytest.raises(AssertionError, match="no end of"):
        machine.run("sleep 4711 & sleep 4711", timeout=0.5)
    machine.wait("! pgrep -f '[s]leep 4711'", 5)


def test_a_failing_command_shows_its_output(machine: Machine) -> None:
    with pytest.raises(AssertionError, match="seen by people"):
        machine.run("echo seen by people >&2; exit 3")
    assert machine.run("exit 3", check=False).returncode == 3


def test_layers_and_binds_are_visible_and_binds_are_read_only(tmp_path: Path) -> None:
    layer, shared = tmp_path / "layer", tmp_path / "shared"
    (layer / "usr/lib/systemd/system").mkdir(parents=True)
    (layer / "usr/lib/systemd/system/lab.service").write_text(
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n"
    )
    shared.mkdir()
    (shared / "word").write_text("hello")
    tmp_path.chmod(0o755)
    with Machine(layers=[layer], binds=[Bind(shared), Bind(shared, Path("/srv/rw"), writable=True)]) as other:
        other.run("systemctl start lab.service")
        assert other.run(["cat", str(shared / "word")]).stdout == "hello"
        assert other.run(f"touch {shared}/no", check=False).returncode != 0
        other.run("touch /srv/rw/yes")
    assert (shared / "yes").exists()
    assert (shared / "word").read_text() == "hello"


def test_nothing_is_left_after_a_stop() -> None:
    with Machine() as other:
        keeper = other._keeper
        assert keeper is not None
        pid, first = keeper.pid, other.pid
        other.run("systemd-run -u lab-left sleep 4712")
        assert Path(f"/proc/{first}").exists()
        assert marks(pid)
    assert keeper.returncode == 0
    assert not Path(f"/proc/{first}").exists()
    assert marks(pid) == []
    assert b"4712" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True).stdout


def test_nothing_is_left_after_the_test_process_was_killed() -> None:
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\nfrom lab.machine import Machine\nm = Machine(); m.start()\nprint(m._keeper.pid, m.pid, flush=True)\nsys.stdin.read()"
    victim = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert victim.stdin
    assert victim.stdout
    keeper, first = map(int, victim.stdout.readline().split())
    pidfds = [os.pidfd_open(pid) for pid in (keeper, first)]
    victim.send_signal(signal.SIGKILL)
    victim.wait(10)
    deadline = time.monotonic() + 30
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], deadline - time.monotonic())[0], "the machine outlived its test"
        os.close(pidfd)
    victim.stdin.close()
    victim.stdout.close()
    assert marks(keeper) == []


def test_a_machine_that_cannot_boot_says_why(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="cannot be bound"):
        Machine(binds=[Bind(tmp_path / "absent")]).start()
