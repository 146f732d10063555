"""What several cards without NVLink need of kernel and firmware.

Published practice for RTX PRO 6000 Blackwell machines: without these settings NCCL locks up, links
drop, or peer transfers take the long way. Facts are words (`on`, `off`, …); a missing one is
unknown, mostly because only root may look.
"""

from __future__ import annotations

from .finding import Finding, unknown, warn
from .observed import EngineView, GpuObservation, ObservedHost
from .settings import Options

_NVLINK_FREE = ("RTX", "L40", "L4 ", "A10", "A40", "T4")
_CMDLINE = "to the kernel command line (GRUB_CMDLINE_LINUX), run update-grub and reboot"


def without_nvlink(gpus: GpuObservation) -> bool:
    """Whether these cards are of a kind that has no NVLink."""
    return len(gpus.gpus) > 1 and all(any(kind in gpu.name + " " for kind in _NVLINK_FREE) for gpu in gpus.gpus)


def check_pcie(view: EngineView, options: Options, gpus: GpuObservation, host: ObservedHost) -> list[Finding]:
    """The list for PCIe-only machines; only for a start that uses several cards."""
    if options.parallel().gpus < 2 or not without_nvlink(gpus):
        return []
    facts, found = host.pcie, []
    if facts.get("uvm-hmm") != "off":
        found.append(
            _finding(
                "uvm-hmm",
                facts,
                "nvidia_uvm manages heterogeneous memory, with which NCCL locks up",
                "echo 'options nvidia_uvm uvm_disable_hmm=1' > /etc/modprobe.d/nvidia-uvm.conf and reboot",
            )
        )
    if facts.get("iommu") not in {"off", "passthrough"}:
        found.append(
            _finding(
                "iommu", facts, "the IOMMU translates, which breaks or slows peer transfers", f"add iommu=pt {_CMDLINE}"
            )
        )
    if facts.get("acs") != "off":
        found.append(
            _finding(
                "acs", facts, "ACS sends peer transfers through the root complex", "switch ACS off in the firmware"
            )
        )
    if facts.get("rebar") != "on":
        found.append(
            _finding(
                "rebar", facts, "Resizable BAR is off", "switch on Above 4G Decoding and Resizable BAR in the firmware"
            )
        )
    if facts.get("aspm") != "off":
        found.append(_finding("aspm", facts, "PCIe links may sleep, and some drop", f"add pcie_aspm=off {_CMDLINE}"))
    if facts.get("port-pm") != "off":
        found.append(
            _finding("port-pm", facts, "PCIe ports may sleep, and links drop", f"add pcie_port_pm=off {_CMDLINE}")
        )
    if facts.get("link-width", "full") != "full":
        found.append(
            warn(
                "pcie-link-width",
                f"a GPU's PCIe link is narrower than it can be ({facts['link-width']})",
                "reseat the card",
            )
        )
    return found + _nccl(view)


def _nccl(view: EngineView) -> list[Finding]:
    if "NCCL_P2P_LEVEL" in view.env or "NCCL_P2P_DISABLE" in view.env:
        return []
    return [
        warn(
            "pcie-nccl",
            "NCCL_P2P_LEVEL is not set, so that NCCL may avoid peer transfers between these cards",
            'set NCCL_P2P_LEVEL = "SYS" and NCCL_PROTO = "LL" in NAME.env',
        )
    ]


def _finding(name: str, facts: dict[str, str], seen: str, remedy: str) -> Finding:
    if name not in facts:
        return unknown(f"pcie-{name}", name)
    return warn(f"pcie-{name}", seen, remedy)
