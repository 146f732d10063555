"""What the numbers of NVIDIA's Xid messages mean.

Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors). A number maps to a reason only
where it names a cause; 43 and 45, for one, only say that a channel was torn down after something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Xid:
    """One entry of the catalogue.

    Attributes:
        slug: The reason that it proves, or None where it is information or a consequence.
        meaning: What it says, for people.
    """

    slug: str | None
    meaning: str


_LOST, _FAULT, _LINK, _APP = "gpu-lost", "gpu-fault", "nvlink-fault", "cuda-fault"

CATALOGUE: Final[dict[int, Xid]] = {
    8: Xid(_APP, "a channel timed out"),
    13: Xid(_APP, "graphics engine exception, usually an out-of-bounds access of a kernel"),
    31: Xid(_APP, "GPU memory page fault, usually an illegal address in a kernel"),
    32: Xid(_APP, "invalid or corrupted push buffer stream"),
    38: Xid(_FAULT, "driver firmware error"),
    39: Xid(_APP, "copy engine exception"),
    43: Xid(None, "the GPU stopped processing a channel; its process ends"),
    45: Xid(None, "a channel was removed preemptively, after another error"),
    46: Xid(_FAULT, "the GPU stopped processing"),
    48: Xid(_FAULT, "uncorrectable double bit error in memory"),
    54: Xid(_FAULT, "auxiliary power is not connected"),
    61: Xid(_FAULT, "internal micro-controller breakpoint"),
    62: Xid(_FAULT, "internal micro-controller halt"),
    63: Xid(None, "a memory row is marked for remapping; it takes effect at the next GPU reset"),
    64: Xid(_FAULT, "remapping a memory row failed"),
    68: Xid(_APP, "video processor exception"),
    69: Xid(_APP, "graphics engine class error"),
    74: Xid(_LINK, "NVLink error"),
    79: Xid(_LOST, "the GPU has fallen off the bus"),
    92: Xid(None, "high rate of single bit errors, which were corrected"),
    94: Xid(_FAULT, "contained uncorrectable memory error"),
    95: Xid(_FAULT, "uncontained uncorrectable memory error"),
    109: Xid(_APP, "context switch timeout"),
    110: Xid(_FAULT, "security fault"),
    119: Xid(_FAULT, "the GSP firmware did not answer in time"),
    120: Xid(_FAULT, "GSP firmware error"),
    121: Xid(None, "corrected error on the chip-to-chip link"),
    123: Xid(_FAULT, "power management unit error"),
    136: Xid(_FAULT, "link training failed"),
    137: Xid(_APP, "NVLink privilege error, usually an illegal address of a peer"),
    140: Xid(_FAULT, "unrecovered ECC error"),
    143: Xid(_FAULT, "GPU initialisation failed"),
    144: Xid(_LINK, "NVLink: SAW error"),
    145: Xid(_LINK, "NVLink: RLW error"),
    146: Xid(_LINK, "NVLink: TLW error"),
    147: Xid(_LINK, "NVLink: TREX error"),
    148: Xid(_LINK, "NVLink: NVLPW_CTRL error"),
    149: Xid(_LINK, "NVLink: netir error"),
    150: Xid(_LINK, "NVLink: MSE error"),
    151: Xid(_FAULT, "key rotation error"),
    154: Xid(None, "the recovery action that the driver recommends has changed"),
    155: Xid(_LINK, "NVLink: software-defined error"),
    156: Xid(None, "a resource was retired"),
    157: Xid(_FAULT, "retiring a resource failed"),
    158: Xid(_FAULT, "fatal timeout of the GPU"),
    160: Xid(None, "a memory channel was repaired"),
    161: Xid(_FAULT, "repairing a memory channel failed"),
}
"""Xid to its meaning; numbers that are missing are video, display or driver-internal events."""

HARDWARE: Final = frozenset({_LOST, _FAULT, _LINK})
"""The reasons that name the hardware, not the program."""

_OTHER: Final = Xid(None, "not in the catalogue of causes")


def lookup(number: int) -> Xid:
    """The entry of an Xid; numbers that the catalogue lacks prove nothing.

    Args:
        number: The number behind `NVRM: Xid (PCI:…):`.
    """
    return CATALOGUE.get(number, _OTHER)
