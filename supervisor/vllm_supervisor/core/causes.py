"""Why a start failed: the catalogue of reasons and the value that names one.

A cause is what an operator reads. It has a slug that alerts can match, a class that decides about
a retry, the line of evidence as the engine wrote it, and one sentence of advice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CauseClass(StrEnum):
    """What a retry would do: nothing (permanent), perhaps help (transient), or harm (hardware)."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    HARDWARE = "hardware"
    NONE = "none"


_P, _T, _H = CauseClass.PERMANENT, CauseClass.TRANSIENT, CauseClass.HARDWARE

REASONS: dict[str, CauseClass] = {
    "bad-arguments": _P,
    "model-not-found": _P,
    "checkpoint-incomplete": _P,
    "checkpoint-corrupt": _P,
    "checkpoint-mismatch": _P,
    "unsupported-architecture": _P,
    "unsupported-quantization": _P,
    "unsupported-kernel": _P,
    "tensor-parallel-invalid": _P,
    "max-model-len-too-long": _P,
    "kv-cache-too-small": _P,
    "gpu-out-of-memory": _P,
    "driver-mismatch": _P,
    "shm-too-small": _P,
    "compile-cache-corrupt": _P,
    "disk-full": _P,
    "peer-access-broken": _P,
    "readiness-line-hidden": _P,
    "configuration-invalid": _P,
    "engine-not-executable": _P,
    "node-differs": _P,
    "gpu-busy": _T,
    "port-in-use": _T,
    "engine-died": _T,
    "worker-killed": _T,
    "engine-hung": _T,
    "load-stalled": _T,
    "nccl-error": _T,
    "cuda-fault": _T,
    "host-out-of-memory": _T,
    "download-incomplete": _T,
    "rendezvous-port-collision": _T,
    "not-answering": _T,
    "stranger-on-port": _T,
    "smoke-failed": _T,
    "node-lost": _T,
    "node-stopped": _T,
    "unknown": _T,
    "gpu-lost": _H,
    "gpu-fault": _H,
    "nvlink-fault": _H,
    "fabric-manager-down": _H,
    "healthy": CauseClass.NONE,
}
"""Every slug and its class."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One verdict.

    Attributes:
        reason: A key of `REASONS`.
        evidence: The line that proves it, as it was printed and without its line end; empty when
            the verdict rests on something other than a line.
        phase: The last phase reached; `serving` in logs stands for everything after HTTP is up.
        advice: What to change, in one sentence.
        summary: What happened, in a few words, for STATUS and the journal; may be empty.
    """

    reason: str
    evidence: str = ""
    phase: str = ""
    advice: str = ""
    summary: str = ""

    @property
    def cause_class(self) -> CauseClass:
        """The class that the catalogue gives to the reason."""
        return REASONS[self.reason]

    def sentence(self) -> str:
        """One line for people: reason, what happened, what to do."""
        parts = [self.reason]
        if self.summary:
            parts.append(f": {self.summary}")
        elif self.evidence:
            parts.append(f": {self.evidence.strip()}")
        if self.advice:
            advice = self.advice[0].upper() + self.advice[1:]
            parts.append(f". {advice}" if not parts[-1].endswith(".") else f" {advice}")
        return "".join(parts)
