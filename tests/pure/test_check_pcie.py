"""The list for machines whose cards have no NVLink: each entry, and what stays unknown."""

from __future__ import annotations

import pytest

from vllm_supervisor.core.check.finding import grouped
from vllm_supervisor.core.check.findings import findings
from vllm_supervisor.core.check.observed import EngineView, GpuObservation, GpuSeen, Observed, ObservedHost

GIB = 1 << 30
GOOD_PCIE = {
    "uvm-hmm": "off",
    "iommu": "off",
    "acs": "off",
    "rebar": "on",
    "aspm": "off",
    "port-pm": "off",
    "link-width": "full",
}
BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def check(pcie, name=BLACKWELL, tensor_parallel=8, env=None):
    gpus = GpuObservation(tuple(GpuSeen(index, f"GPU-{index}", name, 95 * GIB, 0, (12, 0)) for index in range(8)))
    env = {"NCCL_P2P_LEVEL": "SYS"} if env is None else env
    view = EngineView(("vllm",), "/m", args={"tensor-parallel-size": tensor_parallel}, env=env)
    return findings(view, Observed(gpus=gpus, host=ObservedHost(pcie=pcie)))


def test_a_machine_that_is_set_up():
    assert check(GOOD_PCIE) == ()


@pytest.mark.parametrize(
    ("fact", "value", "remedy"),
    [
        ("uvm-hmm", "on", "uvm_disable_hmm=1"),
        ("iommu", "on", "iommu=pt"),
        ("acs", "on", "firmware"),
        ("rebar", "off", "Resizable BAR"),
        ("aspm", "on", "pcie_aspm=off"),
        ("port-pm", "on", "pcie_port_pm=off"),
        ("link-width", "0000:01:00.0: x8 of x16", "reseat"),
    ],
)
def test_each_entry_has_its_remedy(fact, value, remedy):
    (item,) = check(GOOD_PCIE | {fact: value})
    assert (item.level, item.check) == ("warn", f"pcie-{fact}")
    assert remedy in item.remedy


def test_what_only_root_sees_is_unknown_and_not_bad():
    items = check({})
    assert {item.level for item in items} == {"warn"}
    assert len(items) == 6
    assert all("unknown" in item.seen and item.remedy == "run the check as root" for item in items)


def test_a_reader_sees_one_line_of_what_is_unknown():
    items = check({"acs": "on"}, env={})
    seen, nccl, hidden = grouped(items)
    assert (seen.check, nccl.check) == ("pcie-acs", "pcie-nccl"), "what is known stays as it is"
    assert all(item.check in hidden.seen for item in items if item.unknown)
    assert hidden.seen.startswith("5 things could not be looked at")
    assert "as root" in hidden.remedy
    lone = check({name: word for name, word in GOOD_PCIE.items() if name != "acs"})
    assert grouped(lone) == lone, "one is said as it is"


def test_the_list_is_for_several_cards_without_nvlink():
    assert check({}, name="NVIDIA H200") == ()
    assert check({}, tensor_parallel=1) == ()


def test_nccl_needs_to_be_told_to_use_peers():
    assert [item.check for item in check(GOOD_PCIE, env={})] == ["pcie-nccl"]
    assert check(GOOD_PCIE, env={"NCCL_P2P_DISABLE": "1"}) == (), "that is a decision, too"
