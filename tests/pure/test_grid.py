"""Every event at every stand of a start has the outcome that the table states."""

import typing

import pytest

from pure.grid_events import EVENTS, LETTERS, SHORT, outcome
from pure.grid_table import cells
from pure.start import STANDS, reach
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.phases import GROUPS, Phase

CELLS = cells()


@pytest.mark.parametrize("stand", STANDS)
def test_every_event_has_the_stated_outcome(stand):
    found = {event: outcome(stand, event) for event in EVENTS}
    assert found == {event: CELLS.get((stand, event), "missing") for event in EVENTS}


def test_the_table_has_no_cell_for_what_does_not_exist():
    assert set(CELLS) == {(stand, event) for stand in STANDS for event in EVENTS}


def test_no_event_is_forgotten():
    named = {type(event).__name__ for event in EVENTS.values()}
    assert named == {kind.__name__ for kind in typing.get_args(ev.Event)}
    assert all(type(event).__name__ == name.split("/")[0] for name, event in EVENTS.items())


def test_no_phase_is_forgotten():
    assert {reach(stand).phase for stand in STANDS} == set(Phase)
    assert {stand: reach(stand).phase for stand in STANDS} == {
        stand: Phase(stand.split("(")[0].rstrip("+")) for stand in STANDS
    }


def test_no_effect_is_forgotten():
    assert set(LETTERS.values()) == set(typing.get_args(fx.Effect))
    assert len(set(SHORT.values())) == len(Phase)


def test_groups_of_phases_are_disjoint_and_whole():
    assert sum(len(group) for group in GROUPS) == len(Phase)
    assert frozenset().union(*GROUPS) == frozenset(Phase)
