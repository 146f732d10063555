"""The exit codes of the daemon, and which cause leads to which.

systemd reads them: the units' RestartPreventExitStatus= is compared with `NO_RESTART` by a test.
The numbers are those of sysexits.h where one fits.
"""

from __future__ import annotations

from enum import IntEnum

from .causes import CauseClass


class ExitCode(IntEnum):
    """What the daemon's exit status says."""

    OK = 0
    USAGE = 64
    HARDWARE = 69
    BUG = 70
    TRANSIENT = 75
    GAVE_UP = 76
    PERMANENT = 78


NOPERM = 77
"""sysexits.h's EX_NOPERM: of the verbs, where the caller lacks a right; the daemon never ends with it."""

MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "stopped on request",
    ExitCode.USAGE: "wrong command line of vllm-supervisor",
    ExitCode.HARDWARE: "hardware needs a person (GPU lost or faulty, NVLink, fabric manager)",
    ExitCode.BUG: "a bug of vllm-supervisor",
    ExitCode.TRANSIENT: "transient (port, busy GPU, worker died, hang, NCCL, CUDA fault)",
    ExitCode.GAVE_UP: "gave up after repeated transient failures",
    ExitCode.PERMANENT: "permanent (configuration, checkpoint, memory plan, driver mismatch)",
}

RESTARTED = frozenset({ExitCode.BUG, ExitCode.TRANSIENT})
"""After these systemd starts the service again."""

EXEC_FAILURES = frozenset({200, 203, 216, 217, 226, 243})
"""systemd's own codes for a command that cannot be run (CHDIR, EXEC, GROUP, USER, NAMESPACE,
CREDENTIALS; systemd.exec(5)): no restart helps, and without a start limit it would go on for ever."""

NO_RESTART = frozenset(int(code) for code in ExitCode if code and code not in RESTARTED) | EXEC_FAILURES
"""What RestartPreventExitStatus= of the units must list."""


def exit_code(cause_class: CauseClass) -> ExitCode:
    """The exit code for a failure of this class."""
    match cause_class:
        case CauseClass.PERMANENT:
            return ExitCode.PERMANENT
        case CauseClass.HARDWARE:
            return ExitCode.HARDWARE
        case CauseClass.TRANSIENT:
            return ExitCode.TRANSIENT
        case CauseClass.NONE:
            return ExitCode.OK
