"""The machine's facts from the real kernel, and from made-up /sys and /proc trees."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from vllm_supervisor.adapters import holders, host, pcie_sysfs

NOBODY = host.User("nobody", 65534, 65534, frozenset([65534]))


def test_limits_and_sizes_of_this_machine():
    limits = host.limits()
    assert set(limits) == {"nofile", "memlock"}
    assert limits["nofile"] > 100
    size, free = host.shared_memory()
    assert 0 <= free <= size
    assert host.memory_bytes() > 1 << 28


def test_users():
    root = host.find_user("root")
    assert (root.uid, root.gid) == (0, 0)
    assert host.find_user(None).uid == os.geteuid()
    assert host.find_user("no-such-user-here") is None


@pytest.mark.parametrize(
    ("mode", "readable"), [(0o644, True), (0o600, False), (0o640, False), (0o604, True), (0o000, False)]
)
def test_what_another_user_may_read(open_path, mode, readable):
    path = open_path / "f"
    path.write_text("x")
    path.chmod(mode)
    assert host.allowed(path, NOBODY, os.R_OK) is readable
    assert host.unreadable([path], NOBODY) == (() if readable else (str(path),))


def test_a_group_may_what_its_bits_say(open_path):
    path = open_path / "f"
    path.write_text("x")
    path.chmod(0o640)
    os.chown(path, -1, 65534)
    assert host.allowed(path, NOBODY, os.R_OK)
    path.chmod(0o604)
    assert not host.allowed(path, NOBODY, os.R_OK), "the group's bits count before everybody's"


def test_a_closed_directory_on_the_way_closes_all_below(open_path):
    (open_path / "d").mkdir()
    (open_path / "d" / "f").write_text("x")
    (open_path / "d").chmod(0o700)
    assert not host.allowed(open_path / "d" / "f", NOBODY, os.R_OK)
    (open_path / "link").symlink_to(open_path / "d" / "f")
    assert not host.allowed(open_path / "link", NOBODY, os.R_OK)
    assert host.allowed(open_path / "gone", NOBODY, os.R_OK), "what is not there is not forbidden"


def test_the_mode_bits_agree_with_the_kernel(open_path):
    """The same question, asked of a process that really is nobody."""
    for mode in (0o644, 0o600, 0o640, 0o004, 0o040):
        path = open_path / f"f{mode}"
        path.write_text("x")
        path.chmod(mode)
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if os.access(path, os.R_OK) else 1)
        _, status = os.waitpid(pid, 0)
        assert host.allowed(path, NOBODY, os.R_OK) is (os.waitstatus_to_exitcode(status) == 0), oct(mode)


def test_caches(open_path):
    env = {"HOME": "/home/x", "VLLM_CACHE_ROOT": str(open_path / "c" / "vllm"), "TMPDIR": str(open_path)}
    places = host.cache_directories(env)
    assert places == (str(open_path / "c" / "vllm"), "/home/x/.cache", str(open_path))
    open_path.chmod(0o755)
    space = host.cache_space(places[:1], NOBODY)
    assert space == {places[0]: None}
    open_path.chmod(0o777)
    assert host.cache_space(places[:1], NOBODY)[places[0]] > 0
    assert host.cache_directories({}) == ("/tmp",)


@pytest.mark.parametrize(
    ("bound", "asked", "clash"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("::1", "::1", True),
        ("::1", "127.0.0.1", False),
    ],
)
def test_who_listens_on_a_port(bound, asked, clash):
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        with socket.socket(family) as server:
            server.bind((bound, 0))
            server.listen()
            os.write(ready[1], struct.pack("=i", server.getsockname()[1]))
            os.read(done[0], 1)
            os._exit(0)
    try:
        (port,) = struct.unpack("=i", os.read(ready[0], 4))
        holder = holders.port_holder(asked, port)
        assert (holder is not None) is clash
        if holder is not None:
            assert holder.pid == pid
            assert holder.user
    finally:
        os.write(done[1], b"x")
        os.waitpid(pid, 0)
        for end in (*ready, *done):
            os.close(end)


def test_our_own_port_is_not_a_stranger():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert holders.port_holder("127.0.0.1", server.getsockname()[1]) is None


def test_units_of_processes(tmp_path):
    for pid, text in {
        1: "0::/system.slice/kimi.service\n",
        2: "12:pids:/x\n1:name=systemd:/user.slice/user-0.slice/session-3.scope\n",
        3: "0::/\n",
        4: "0::/system.slice/system-vllm.slice/vllm@a.service/sub\n",
    }.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(text)
    units = [holders.unit_of(pid, tmp_path) for pid in (1, 2, 3, 4, 5)]
    assert units == ["kimi.service", "session-3.scope", "", "vllm@a.service", ""]
    assert holders.describe(os.getpid()).name


def make_tree(
    root, *, hmm="Y", identity=True, width="16", bar=1 << 37, acs=0, cmdline="pcie_aspm=off pcie_port_pm=off"
):
    """A machine with one NVIDIA card behind one bridge."""
    devices = root / "sys/bus/pci/devices"
    card, bridge = devices / "0000:01:00.0", devices / "0000:00:01.0"
    (card / "iommu_group").mkdir(parents=True)
    bridge.mkdir()
    for path, text in {
        card / "class": "0x030000\n",
        card / "vendor": "0x10de\n",
        card / "current_link_width": f"{width}\n",
        card / "max_link_width": "16\n",
        card / "resource": f"0xf0 0xff 0x1\n0x1000 {0x1000 + bar - 1:#x} 0x1\n",
        card / "iommu_group/type": "identity\n" if identity else "DMA-FQ\n",
        bridge / "class": "0x060400\n",
        bridge / "vendor": "0x8086\n",
    }.items():
        path.write_text(text)
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 0x140 << 20)
    struct.pack_into("<IHH", space, 0x140, 0x000D, 0, acs)
    (bridge / "config").write_bytes(space)
    (root / "sys/class/iommu/dmar0").mkdir(parents=True)
    (root / "sys/module/nvidia_uvm/parameters").mkdir(parents=True)
    (root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm").write_text(hmm)
    (root / "sys/module/pcie_aspm/parameters").mkdir(parents=True)
    (root / "sys/module/pcie_aspm/parameters/policy").write_text("[default] performance powersave")
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text(f"root=/dev/sda {cmdline}\n")
    return pcie_sysfs.read_pcie(root / "sys", root / "proc")


def test_pcie_facts_of_a_good_machine(tmp_path):
    assert make_tree(tmp_path) == {
        "uvm-hmm": "off", "iommu": "passthrough", "acs": "off", "rebar": "on", "aspm": "off", "port-pm": "off", "link-width": "full"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "fact", "value"),
    [
        ({"hmm": "N"}, "uvm-hmm", "on"),
        ({"identity": False}, "iommu", "on"),
        ({"width": "8"}, "link-width", "0000:01:00.0: x8 of x16"),
        ({"bar": 1 << 28}, "rebar", "off"),
        ({"acs": 0x1D}, "acs", "on"),
        ({"acs": 0x01}, "acs", "off"),
        ({"cmdline": "quiet"}, "aspm", "on"),
        ({"cmdline": "quiet"}, "port-pm", "on"),
    ],
)
def test_pcie_facts_that_are_not_as_they_should(tmp_path, change, fact, value):
    assert make_tree(tmp_path, **change)[fact] == value


def test_what_cannot_be_read_is_left_out(tmp_path):
    make_tree(tmp_path)
    bridge = tmp_path / "sys/bus/pci/devices/0000:00:01.0"
    (bridge / "config").write_bytes(bytes(64))
    assert "acs" not in pcie_sysfs.read_pcie(tmp_path / "sys", tmp_path / "proc"), "an ordinary user sees 64 bytes"
    assert pcie_sysfs.read_pcie(tmp_path / "none", tmp_path / "none") == {"iommu": "off"}
    assert isinstance(pcie_sysfs.read_pcie(), dict)
