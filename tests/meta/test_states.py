"""The page of the phases is the one that the decision function would draw now."""

from lab.gen_states import PAGE, explore, page
from vllm_supervisor.core.phases import Phase


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run python tests/lab/gen_states.py"


def test_every_phase_is_reached_and_left_as_far_as_it_can_be():
    edges = explore()
    assert {other for _, other, _ in edges} == set(Phase)
    assert {one for one, _, _ in edges} == set(Phase) - {Phase.STOPPED, Phase.FAILED}
