"""A request sent to one of several engines by its rank, where the server knows no such rank, or none at all."""

import pytest

from pure.several_world import CLIENTS, ELSEWHERE, REFUSED, SILENT, UNKNOWN, Engine, busy, fault, run, stopped, working
from pure.start import ready
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import liveness, several
from vllm_supervisor.core.phases import Phase


def test_one_that_the_server_has_no_more_is_never_called_hung():
    # Scaling down leaves the series of an engine with its last figures, requests included.
    start = run(ready(), 1200.0, {"0": working(), "1": stopped(10.0, UNKNOWN)}, CLIENTS)
    assert start.phase is Phase.READY
    assert start.count(fx.Canary) <= 6
    gone = Engine(lambda t: busy(min(t, 10.0)), lambda t: UNKNOWN if t < 600 else SILENT)
    assert run(ready(), 1200.0, {"0": working(), "1": gone}, CLIENTS).phase is Phase.READY


def test_one_that_the_server_has_again_can_hang():
    back = Engine(lambda t: busy(10.0), lambda t: UNKNOWN if t < 200 else ELSEWHERE)
    assert fault(run(ready(), 1200.0, {"0": working(), "1": back}, CLIENTS)).startswith("engine 1 of 2: ")


def test_one_that_the_server_has_not_is_not_named_when_the_request_without_a_rank_fell_to_one_that_hangs():
    engines = {"0": working(), "1": stopped(10.0, REFUSED), "2": stopped(10.0)}
    assert fault(run(ready(), 400.0, engines, CLIENTS)).startswith("engine 2 of 3: ")


def test_a_server_that_refuses_every_rank_is_judged_by_requests_without_one():
    answered = {label: stopped(10.0, UNKNOWN) for label in "01"}
    assert run(ready(), 1200.0, answered, CLIENTS).phase is Phase.READY
    later = {label: Engine(lambda t: busy(min(t, 10.0)), lambda t: UNKNOWN if t < 200 else REFUSED) for label in "01"}
    start = run(ready(), 1200.0, later, CLIENTS)
    assert fault(start).startswith("all 2 engines: nothing has moved for ")
    assert "one-token requests fail: no answer in time" in fault(start)


def test_an_idle_one_that_nobody_can_ask_is_never_called_hung():
    start = run(ready(), 1200.0, {"0": working(), "1": Engine(answers=lambda t: ELSEWHERE)}, CLIENTS)
    assert start.phase is Phase.READY


@pytest.mark.parametrize(
    ("labels", "ranks"), [("01", [0, 1]), ("23", [0, 1]), ("0", [0]), (["8", "9", "10"], [0, 1, 2]), ("xy", [None] * 2)]
)
def test_the_rank_counts_from_the_first_engine_of_this_server(labels, ranks):
    lives = dict.fromkeys(labels, liveness.Life(0.0))
    assert [several.rank(lives, label) for label in labels] == ranks
