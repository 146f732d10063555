"""The unit's sandbox, tried out with stand-ins for the daemon: what it gives and what it keeps.

That a real engine runs in it is seen in test_first_light.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.machine import Machine

UNITS = Path(__file__).resolve().parents[2] / "units"
DROP_IN = "/run/systemd/system/{unit}.d/stand-in.conf"


@pytest.fixture
def installed(machine: Machine) -> Iterator[Machine]:
    """The machine with the units, the user and the directories that an installation makes; removed afterwards."""
    for name in ("kimi.service", "vllm@.service"):
        machine.put(UNITS / name, f"/usr/lib/systemd/system/{name}")
    machine.put(UNITS / "sysusers.d/vllm-supervisor.conf", "/usr/lib/sysusers.d/vllm-supervisor.conf")
    machine.put(UNITS / "tmpfiles.d/vllm-supervisor.conf", "/usr/lib/tmpfiles.d/vllm-supervisor.conf")
    machine.run("systemd-sysusers && systemd-tmpfiles --create vllm-supervisor.conf && systemctl daemon-reload")
    yield machine
    machine.run("systemctl stop kimi 'vllm@*'; systemctl reset-failed kimi 'vllm@*'", check=False, timeout=120)
    machine.run(
        "rm -rf /usr/lib/systemd/system/kimi.service /usr/lib/systemd/system/vllm@.service /run/systemd/system/*.d /etc/credstore/*"
    )
    machine.run("rm -rf /var/lib/vllm-supervisor/* /var/cache/vllm-supervisor/*; systemctl daemon-reload")


def stand_in(machine: Machine, unit: str, lines: str) -> None:
    """Has the unit run something else than the daemon, under everything else that it says."""
    machine.put(f"[Service]\nExecStart=\nRestart=no\nWatchdogSec=0\n{lines}\n", DROP_IN.format(unit=unit))
    machine.run("systemctl daemon-reload")


def inside(machine: Machine, script: str, unit: str = "kimi.service") -> str:
    """What a shell script says in the unit's sandbox; it must succeed."""
    machine.put(script, "/srv/stand-in.sh")
    stand_in(
        machine, unit, "Type=oneshot\nExecStart=/bin/sh -e /srv/stand-in.sh\nStandardOutput=truncate:/srv/stand-in.out"
    )
    done = machine.run(["systemctl", "start", unit], check=False)
    assert done.returncode == 0, machine.journal(unit)
    return machine.run("cat /srv/stand-in.out").stdout


def test_it_is_an_ordinary_user_that_reads_the_journal(installed: Machine) -> None:
    out = inside(installed, "id -un; id -Gn; grep -E 'Cap(Eff|Bnd|Amb)|NoNewPrivs|Seccomp:' /proc/self/status")
    user, groups, *status = out.splitlines()
    assert user == "vllm"
    assert {"vllm", "systemd-journal", "video", "render"} == set(groups.split())
    assert dict(line.split(":\t") for line in status) == {
        "CapEff": "0000000000000000",
        "CapBnd": "0000000000000000",
        "CapAmb": "0000000000000000",
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }
    words = "journalctl -n 1 _PID=1 -o cat"
    assert inside(installed, words).strip() != ""


def test_every_directory_of_the_environment_can_be_written(installed: Machine) -> None:
    names = "HOME XDG_CONFIG_HOME XDG_CACHE_HOME VLLM_CACHE_ROOT HF_HOME TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR FLASHINFER_WORKSPACE_BASE CUDA_CACHE_PATH TMPDIR"
    out = inside(
        installed,
        f'for name in {names}; do eval "path=\\$$name"; mkdir -p "$path"; touch "$path/x"; echo "$name $path"; done; pwd',
    )
    *lines, here = out.splitlines()
    found = dict(line.split() for line in lines)
    assert found["HOME"] == here == "/var/lib/vllm-supervisor/kimi"
    assert found["VLLM_CACHE_ROOT"] == "/var/cache/vllm-supervisor/kimi/vllm"
    # A socket's path may have 107 bytes, and the engine names its sockets by 36 characters.
    assert len(found["TMPDIR"]) + 1 + 36 < 107


def test_nothing_else_can_be_written(installed: Machine) -> None:
    closed = "/usr /etc /opt /var/lib /home /root /sys/fs/cgroup /proc/sys/kernel/hostname"
    out = inside(installed, f"for path in {closed}; do test -w $path && echo $path; done; true")
    assert out == ""


def test_a_noexec_tmp_of_the_host_does_not_stop_compiled_kernels(installed: Machine) -> None:
    installed.run("mount -o remount,noexec /tmp")
    try:
        out = inside(installed, "cp /bin/echo /tmp/kernel; /tmp/kernel runs; grep ' /tmp ' /proc/self/mounts")
    finally:
        installed.run("mount -o remount,exec /tmp")
    assert out.startswith("runs\n")


def test_shared_memory_and_temporary_files_are_its_own_and_gone_after_a_stop(installed: Machine) -> None:
    installed.run("touch /dev/shm/host /tmp/host")
    out = inside(
        installed,
        "touch /dev/shm/psm_1 /tmp/one; ls /dev/shm /tmp; stat -c %a /dev/shm; df --output=size -B1M /dev/shm | tail -n 1",
    )
    assert "host" not in out
    assert "psm_1" in out
    assert out.split()[-2:] == ["1777", "32768"]
    assert inside(installed, "ls /dev/shm /tmp").split() == ["/dev/shm:", "/tmp:"]
    assert installed.run("ls /dev/shm").stdout.split() == ["host"]
    installed.run("rm /dev/shm/host /tmp/host")


def test_other_processes_can_be_named(installed: Machine) -> None:
    out = inside(installed, "cat /proc/1/cgroup /proc/1/comm; head -n 1 /proc/meminfo; head -n 1 /proc/net/tcp")
    assert "/init.scope" in out
    assert "systemd" in out
    assert "MemTotal" in out


def test_secrets_come_by_credentials_and_may_be_absent(installed: Machine) -> None:
    assert inside(installed, 'ls -A "${CREDENTIALS_DIRECTORY:-/nonexistent}" 2>/dev/null || true') == ""
    installed.put("sk-local", "/etc/credstore/kimi.api-key", 0o600)
    installed.put("hf-other", "/etc/credstore/other.hub-token", 0o600)
    assert (
        inside(
            installed,
            'ls "$CREDENTIALS_DIRECTORY"; cat "$CREDENTIALS_DIRECTORY/api-key"; test ! -r /etc/credstore/kimi.api-key',
        )
        == "api-key\nsk-local"
    )
    out = inside(installed, 'ls "$CREDENTIALS_DIRECTORY"; echo "$HOME"', unit="vllm@other.service")
    assert out.split() == ["hub-token", "/var/lib/vllm-supervisor/other"]


def test_devices_are_closed_but_for_the_gpus(installed: Machine) -> None:
    inside(installed, "true")
    assert installed.show("kimi", "DevicePolicy") == "closed"
    # The clock is what ProtectClock= adds, for reading.
    assert set(installed.show("kimi", "DeviceAllow").splitlines()) == {"char-nvidia* rw", "char-rtc r"}
    out = inside(installed, "head -c 1 /dev/zero | wc -c; test -c /dev/null; (: </dev/kmsg) 2>/dev/null || echo closed")
    assert out.split() == ["1", "closed"]
