"""The fault matrix: what must come of each fault in each phase, as one table.

A letter is an outcome, with its exit code, the reasons that may be named and the time allowed. In every cell, besides:
nothing of the engine is left (no process, no segment, no socket), and a stranger's engine beside it, of the same user,
model and flags, goes on untouched.
"""

from __future__ import annotations

from dataclasses import dataclass

PHASES = (
    "preflight",
    "waiting",
    "launching",
    "configuring",
    "connecting",
    "loading-weights",
    "compiling",
    "sizing-kv-cache",
    "capturing-graphs",
    "starting-server",
    "verifying",
    "ready",
    "draining",
    "stopping",
)


@dataclass(frozen=True)
class Outcome:
    """What must come of a fault.

    Attributes:
        words: For people.
        code: The supervisor's exit code at the end of the cell.
        reasons: One of these is named; nothing is named when empty.
        within_s: Longest time from the fault to that end.
        end: "failed" and "stopped" by itself; "goes-on": it becomes, or stays, ready, and stops when asked; "again":
            killed without a word, swept and started again as systemd does, ready then; "restarted": the same after an
            end in order.
    """

    words: str
    code: int
    reasons: frozenset[str]
    within_s: float
    end: str


def _failed(words: str, code: int, within_s: float, *reasons: str) -> Outcome:
    return Outcome(words, code, frozenset(reasons), within_s, "failed")


OUTCOMES = {
    "D": _failed("named as dead", 75, 8.0, "engine-died", "worker-killed"),
    "L": _failed("named as stalled", 75, 12.0, "load-stalled"),
    "A": _failed("named as not answering", 75, 12.0, "not-answering"),
    "H": _failed("named as hung", 75, 20.0, "engine-hung"),
    "P": _failed("the thief is named", 75, 8.0, "port-in-use", "stranger-on-port"),
    "F": _failed("named as disk full", 78, 8.0, "disk-full"),
    "M": _failed("named as shared memory full", 78, 8.0, "shm-too-small"),
    "G": _failed("the GPU is named as lost", 69, 12.0, "gpu-lost"),
    "s": Outcome("stops as asked", 0, frozenset(), 15.0, "stopped"),
    ">": Outcome("goes on", 0, frozenset(), 40.0, "goes-on"),
    "~": Outcome("takes everything in, goes on", 0, frozenset(), 90.0, "goes-on"),
    "R": Outcome("swept, started again, ready", 0, frozenset(), 25.0, "again"),
    "r": Outcome("ends in order, starts again, ready", 0, frozenset(), 25.0, "restarted"),
}
"""A dot in the table says that there is nothing yet which the fault could strike."""

#                       preflight
#                       | waiting
#                       | | launching
#                       | | | configuring
#                       | | | | connecting
#                       | | | | | loading-weights
#                       | | | | | | compiling
#                       | | | | | | | sizing-kv-cache
#                       | | | | | | | | capturing-graphs
#                       | | | | | | | | | starting-server
#                       | | | | | | | | | | verifying
#                       | | | | | | | | | | | ready
#                       | | | | | | | | | | | | draining
#                       | | | | | | | | | | | | | stopping
TABLE = """
api-server-killed       . . D D D D D D D D D D s s
api-server-stopped      . . L L L L L L L L A H s s
api-server-segfault     . . D D D D D D D D D D s s
engine-core-killed      . . . . D D D D D D D D s s
engine-core-stopped     . . . . L L L L L L A H s s
engine-core-segfault    . . . . D D D D D D D D s s
worker-killed           . . . . D D D D D D D D s s
worker-stopped          . . . . L L L L L L A H s s
worker-segfault         . . . . D D D D D D D D s s
all-workers-killed      . . . . D D D D D D D D s s
all-workers-stopped     . . . . L L L L L L A H s s
all-workers-segfault    . . . . D D D D D D D D s s
out-of-memory-kill      . . . . D D D D D D D D s s
supervisor-killed       R R R R R R R R R R R R R R
supervisor-stopped      > > > > > > > > > > > > s s
second-supervisor       > > > > > > > > > > > > s s
port-stolen             P P P P P P P P P P P > s s
state-disk-full         > > > > > > > > > > > > s s
cache-disk-full         . . F F F F F F F F D D s s
shared-memory-full      . . M M M M M M M M D D s s
journal-blocked         > > > > > > > > > > > > s s
nvml-hangs              > > > > > > > > > > > > s s
nvml-helper-killed      > > > > > > > > > > > > s s
gpu-lost                G G > > > > > > > > > > s s
flood                   . . ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ s s
giant-line              . . > > > > > > > > > > s s
clock-jump              > > > > > > > > > > > > s s
ignores-sigterm         . . s s s s s s s s s s s s
double-fork             . . s s s s s s s s s s s s
stop                    s s s s s s s s s s s s s s
restart                 r r r r r r r r r r r r r r
"""


@dataclass(frozen=True)
class Cell:
    """A fault in a phase, and what must come of it."""

    fault: str
    phase: str
    outcome: Outcome

    @property
    def name(self) -> str:
        return f"{self.fault}@{self.phase}"


def parse(table: str = TABLE) -> tuple[Cell, ...]:
    """Every cell in which the fault can strike something; ValueError for a table that is not complete."""
    cells: list[Cell] = []
    for row in table.split("\n"):
        if not row:
            continue
        fault, *letters = row.split()
        if len(letters) != len(PHASES):
            raise ValueError(f"{fault}: {len(letters)} cells for {len(PHASES)} phases")
        pairs = zip(PHASES, letters, strict=True)
        cells += [Cell(fault, phase, OUTCOMES[letter]) for phase, letter in pairs if letter != "."]
    return tuple(cells)


CELLS = parse()
FAULTS = tuple(dict.fromkeys(cell.fault for cell in CELLS))


def selection(cells: tuple[Cell, ...] = CELLS) -> tuple[Cell, ...]:
    """One cell of each fault, so chosen that every phase and every outcome comes up: the part for every change."""
    chosen: list[Cell] = []
    phases, outcomes = dict.fromkeys(PHASES, 0), {cell.outcome.words: 0 for cell in cells}
    # The faults with the fewest phases choose first.
    for fault in sorted(FAULTS, key=lambda name: sum(cell.fault == name for cell in cells)):
        own = [cell for cell in cells if cell.fault == fault]
        # A fault during a stop tells least: the stop was asked for anyway.
        telling = [cell for cell in own if cell.outcome.end != "stopped"] or own
        best = min(telling, key=lambda cell: (outcomes[cell.outcome.words] > 0, phases[cell.phase]))
        phases[best.phase] += 1
        outcomes[best.outcome.words] += 1
        chosen.append(best)
    return tuple(sorted(chosen, key=lambda cell: (FAULTS.index(cell.fault), PHASES.index(cell.phase))))
