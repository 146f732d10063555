"""The fault matrix: a cell of each fault here, all of them in `make matrix`."""

from __future__ import annotations

import pytest

from process.matrix.cell import Neighbour, run
from process.matrix.faults import FAULTS, library_of_clock
from process.matrix.stands import STANDS
from process.matrix.table import CELLS, OUTCOMES, PHASES, parse, selection
from process.matrix.table import FAULTS as NAMES
from vllm_supervisor.core.causes import REASONS
from vllm_supervisor.core.exits import ExitCode, exit_code
from vllm_supervisor.core.phases import SETTLED, Phase

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory):
    library_of_clock()
    neighbour = Neighbour(tmp_path_factory.mktemp("neighbour"))
    yield neighbour
    neighbour.close()


@pytest.mark.parametrize("cell", selection(), ids=lambda cell: cell.name)
def test_what_comes_of_a_fault(cell, tmp_path, neighbour):
    measured = run(cell, tmp_path / "cell", neighbour)
    assert not measured.problem, measured.problem


def test_the_table_knows_every_phase_and_every_fault():
    assert set(PHASES) == {phase.value for phase in Phase} - {phase.value for phase in SETTLED}
    assert set(NAMES) == set(FAULTS)
    assert set(STANDS) == set(PHASES)
    with pytest.raises(ValueError, match="2 cells for 14 phases"):
        parse("stop s s")


def test_the_part_for_every_change_has_every_fault_phase_and_outcome():
    chosen = selection()
    assert [cell.fault for cell in chosen] == list(NAMES)
    assert {cell.phase for cell in chosen} == set(PHASES)
    assert {cell.outcome for cell in chosen} == {cell.outcome for cell in CELLS} == set(OUTCOMES.values())


def test_reasons_and_exit_codes_agree():
    for outcome in OUTCOMES.values():
        assert outcome.code in {int(code) for code in ExitCode}
        assert {exit_code(REASONS[reason]) for reason in outcome.reasons} <= {outcome.code}
