"""PCIe facts of a machine with NVIDIA cards, out of /sys and /proc; what cannot be read is left out."""

from __future__ import annotations

import struct
from pathlib import Path

_NVIDIA = "0x10de"
_DISPLAY, _BRIDGE = "0x03", "0x0604"
_ACS_CAPABILITY = 0x000D
_ACS_REDIRECTS = 0x0004 | 0x0008
"""P2P request redirect and P2P completion redirect of the ACS control register (PCIe, 7.7.11.3)."""
_FIRST_EXTENDED = 0x100
_RESIZED_BYTES = 1 << 30
"""Without Resizable BAR a card's window is 256 MiB."""


def read_pcie(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> dict[str, str]:
    """The facts by name: `uvm-hmm`, `iommu`, `acs`, `rebar`, `aspm`, `port-pm`, `link-width`."""
    words = (_read(proc / "cmdline") or "").split()
    cards = _devices(sys, _DISPLAY, _NVIDIA)
    facts = {
        "uvm-hmm": _hmm(sys),
        "iommu": _iommu(sys, cards),
        "acs": _acs(_devices(sys, _BRIDGE, None)),
        "rebar": _rebar(cards),
        "aspm": _aspm(sys, words),
        "port-pm": ("off" if "pcie_port_pm=off" in words else "on") if words else None,
        "link-width": _link_width(cards),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None


def _devices(sys: Path, kind: str, vendor: str | None) -> list[Path]:
    try:
        devices = sorted((sys / "bus/pci/devices").iterdir())
    except OSError:
        return []
    return [
        device
        for device in devices
        if (_read(device / "class") or "").startswith(kind) and vendor in {None, _read(device / "vendor")}
    ]


def _hmm(sys: Path) -> str | None:
    value = _read(sys / "module/nvidia_uvm/parameters/uvm_disable_hmm")
    return None if not value else "off" if value in {"Y", "1"} else "on"


def _iommu(sys: Path, cards: list[Path]) -> str | None:
    try:
        if not list((sys / "class/iommu").iterdir()):
            return "off"
    except FileNotFoundError:
        return "off"
    except OSError:
        return None
    kinds = {_read(card / "iommu_group/type") for card in cards}
    if not kinds or None in kinds:
        return None
    return "passthrough" if kinds == {"identity"} else "on"


def _acs(bridges: list[Path]) -> str | None:
    """Whether any bridge redirects peer transfers; only root sees the extended configuration space."""
    states = []
    for bridge in bridges:
        try:
            space = (bridge / "config").read_bytes()
        except OSError:
            return None
        if len(space) <= _FIRST_EXTENDED:
            return None
        states.append(_redirects(space))
    return None if not states else "on" if any(states) else "off"


def _redirects(space: bytes) -> bool:
    at, seen = _FIRST_EXTENDED, set[int]()
    while _FIRST_EXTENDED <= at <= len(space) - 8 and at not in seen:
        seen.add(at)
        (head,) = struct.unpack_from("<I", space, at)
        if head & 0xFFFF == _ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", space, at + 6)
            return bool(control & _ACS_REDIRECTS)
        at = head >> 20
    return False


def _rebar(cards: list[Path]) -> str | None:
    sizes = []
    for card in cards:
        text = _read(card / "resource")
        if text is None:
            return None
        spans = [[int(word, 16) for word in line.split()[:2]] for line in text.splitlines()]
        # Without rights the kernel shows zeros.
        sizes.append(max((end - begin + 1 for begin, end in spans if end), default=0))
    if not sizes or not all(sizes):
        return None
    return "on" if min(sizes) >= _RESIZED_BYTES else "off"


def _aspm(sys: Path, words: list[str]) -> str | None:
    if "pcie_aspm=off" in words:
        return "off"
    policy = _read(sys / "module/pcie_aspm/parameters/policy")
    return None if policy is None else "off" if "[performance]" in policy else "on"


def _link_width(cards: list[Path]) -> str | None:
    for card in cards:
        now, most = _read(card / "current_link_width"), _read(card / "max_link_width")
        # A card that is off the bus or asleep shows 0 or 63.
        if now and most and now.isdigit() and most.isdigit() and 0 < int(now) < int(most) <= 32:
            return f"{card.name}: x{now} of x{most}"
    return "full" if cards else None
