"""What a node's start and the others mean to each other, and the bytes in which they say it."""

import json
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pure.start import Start
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.cluster import part
from vllm_supervisor.core.cluster.compare import difference, prints
from vllm_supervisor.core.cluster.head import Head
from vllm_supervisor.core.cluster.messages import AWAY_S, SILENT_S, Report, Stand, Word
from vllm_supervisor.core.cluster.secondary import Secondary
from vllm_supervisor.core.cluster.wire import from_bytes, to_bytes
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.recording import decode, encode

HEAD, SECOND = Policy(nnodes=2), Policy(nnodes=2, node_rank=1)
DIED = Cause("worker-killed", summary="a worker is gone", phase="ready")
UP = part.Own("loading-weights", up=True)


def met(now=0.0):
    """A head and a second node that have admitted each other."""
    head, second = part.begun(2, 0, "a", {}, "alpha"), part.begun(2, 1, "b", {}, "beta")
    return exchange(head, second, now)


def exchange(head, second, now, of_head=UP, of_second=UP):
    second, report = part.said(second, of_second, now)
    head, word = part.said(part.heard(head, report, now), of_head, now)
    second = part.heard(second, word, now)
    second, report = part.said(second, of_second, now)
    return part.heard(head, report, now), second


def test_the_news_are_who_is_missing_then_that_all_are_there():
    head, second = part.begun(2, 0, "a", {}, "alpha"), part.begun(2, 1, "b", {}, "beta")
    assert part.news(head) == ev.Peers("node 2 of 2")
    assert part.news(second, "refused") == ev.Peers("node 1 of 2, the head (refused)")
    head, second = exchange(head, second, 0.0)
    assert part.news(head) == ev.Peers("", admitted=True, up=True)
    assert part.news(second) == ev.Peers("the other nodes", admitted=True)


def test_a_third_node_is_told_that_the_second_is_missing():
    head, third = part.begun(3, 0, "a", {}, "alpha"), part.begun(3, 2, "c", {}, "gamma")
    _, third = exchange(head, third, 0.0)
    assert part.news(third).missing == "node 2 of 3"


def test_the_second_is_ready_when_the_head_is_and_no_longer():
    head, second = met()
    head = part.followed(head, replace(UP, ready=True, early=False), 1.0)
    head, second = exchange(head, second, 1.0)
    assert part.news(second).up
    head = part.followed(head, replace(UP, up=False, cause=DIED), 2.0)
    _, second = exchange(head, second, 2.0)
    assert part.news(second) == ev.Peers("the other nodes", admitted=True, fate=DIED)


def test_who_announces_that_it_replaces_its_image_may_be_silent_for_longer():
    head, second = met()
    second, report = part.said(second, UP, 0.0, away=True)
    head, word = part.said(part.heard(head, report, 0.0), UP, 0.0, away=True)
    second = part.heard(second, word, 0.0)
    for now, lost in ((SILENT_S + 1, False), (AWAY_S, False), (AWAY_S + 1, True)):
        assert (part.news(part.ticked(head, now)).fate is not None) is lost
        assert (part.news(part.ticked(second, now)).fate is not None) is lost


def test_a_resumed_image_does_not_take_its_own_silence_for_the_others():
    head, second = met()
    for mind in (head, second):
        assert part.news(part.ticked(mind, AWAY_S)).fate is not None
        again = part.resumed(decode(json.loads(json.dumps(encode(mind)))), AWAY_S)
        assert part.news(part.ticked(again, AWAY_S + SILENT_S)).fate is None
        assert part.news(part.ticked(again, AWAY_S + SILENT_S + 1)).fate is not None


def test_the_table_says_where_all_stand_on_every_node():
    head, second = met()
    head, second = exchange(head, second, 1.0)
    for mind, rank in ((head, 0), (second, 1)):
        rows = part.table(mind, UP, 1.0)
        assert [(row["rank"], row["host"], row["phase"], row["here"]) for row in rows] == [
            (0, "alpha", "loading-weights", rank == 0),
            (1, "beta", "loading-weights", rank == 1),
        ]
        late = part.table(mind, UP, 1.0 + SILENT_S + 1)
        assert late[1 - rank]["phase"] == "missing"
        assert late[rank]["phase"] == "loading-weights"


def test_only_the_head_counts_the_nodes():
    head, second = met()
    rows = part.table(head, UP, 1.0)
    assert part.figures(rows, 0) == {
        "cluster_rank": 0,
        "cluster_node_up": {"0": 1, "1": 1},
        "cluster_node_phase": {("0", "loading-weights"): 1.0, ("1", "loading-weights"): 1.0},
    }
    late = part.figures(part.table(head, UP, SILENT_S + 2), 0)
    assert late["cluster_node_up"] == {"0": 1, "1": 0}
    assert ("1", "loading-weights") not in late["cluster_node_phase"]
    assert part.figures(part.table(second, UP, 1.0), 1) == {"cluster_rank": 1}


@pytest.mark.parametrize("policy", [HEAD, SECOND])
def test_what_a_start_tells_the_others(policy):
    start = Start(policy).do(ev.Begin(), ev.PreflightDone())
    assert part.own(start.state) == part.Own("waiting")
    start.do(ev.Peers(admitted=True), ev.Launched(4711))
    assert part.own(start.state).up
    start.do(ev.Faulted(DIED))
    found = part.own(start.state)
    assert not found.up
    assert found.cause.summary == f"node {policy.node_rank + 1} of 2: a worker is gone"


def test_a_stop_of_the_head_lets_requests_finish_before_the_others_end():
    draining = replace(Start(HEAD).state, phase=Phase.DRAINING, stop_by="SIGTERM")
    assert part.own(draining).cause is None
    assert part.own(replace(draining, phase=Phase.STOPPING)).cause.reason == "node-stopped"
    second = replace(draining, policy=SECOND, phase=Phase.STOPPING)
    assert part.own(second).cause.summary == "node 2 of 2 was stopped"


def test_a_failed_node_waits_for_the_common_cause_but_not_for_ever():
    start = Start(SECOND).do(ev.Begin(), ev.PreflightDone(), ev.Peers(admitted=True), ev.Launched(4711))
    start.do(ev.Faulted(Cause("engine-died")), ev.IncidentSaved(), ev.Swept(()))
    assert start.state.phase is Phase.STOPPING
    fate = Cause("node-lost", summary="node 1 of 2 is gone")
    heard = Start(SECOND)
    heard.state, heard.now = start.state, start.now
    heard.do(ev.Peers(admitted=True, fate=fate))
    assert heard.state.fault.reason == "node-lost"
    for one in (start, heard):
        for _ in range(20):
            one.do(ev.Tick(), ev.IncidentSaved(), ev.Swept(()), after=1.0)
        assert one.state.phase is Phase.FAILED
    assert start.state.fault.reason == "engine-died"
    assert "node-lost" in str(heard.exit)


MESSAGES = [
    Report(1, "b", 3, "a", "ready", up=True, fault=DIED, prints={"--x": "1"}, host="beta", away=True),
    Report(1, "b", 1),
    Word("a", 4, {1: "b"}, {0: Stand("ready", "alpha", 0.5), 1: Stand()}, ready=True, fate=DIED, away=True),
    Word("a", 1),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_survives_the_wire(message):
    assert from_bytes(to_bytes(message)) == message


def test_a_newer_version_may_say_more_and_an_older_one_less():
    raw = json.loads(to_bytes(MESSAGES[0]))
    assert from_bytes(json.dumps({**raw, "mood": "fine"}).encode()) == MESSAGES[0]
    del raw["away"], raw["host"]
    assert from_bytes(json.dumps(raw).encode()) == replace(MESSAGES[0], away=False, host="")
    raw["fault"]["reason"] = "of-next-year"
    assert from_bytes(json.dumps(raw).encode()).fault.sentence() == "unknown: of-next-year: a worker is gone"


WRONG = [None, True, -1, 1.5, "x", [], {}, ["x"], {"x": 1}, {"x": None}, {"type": "Cause"}, {"type": "Tick"}]


def test_a_message_with_a_field_of_another_type_is_none():
    for message in MESSAGES:
        raw = json.loads(to_bytes(message))
        for name, wrong in product(raw, WRONG):
            body = json.dumps({**raw, name: wrong}).encode()
            try:
                found = from_bytes(body)
            except ValueError:
                continue
            # What was taken is of its type all the same, and can be decided on.
            assert from_bytes(to_bytes(found)) == found
            for mind in met():
                part.table(part.ticked(part.heard(mind, found, 1.0), 2.0), UP, 3.0)


@given(st.binary(max_size=200))
def test_noise_is_no_message(noise):
    with pytest.raises(ValueError, match="not a message of a node"):
        from_bytes(noise)


def test_secrets_are_neither_compared_nor_told():
    told = prints({}, {"api-key": "sesame", "max-model-len": 1}, {}, {"NCCL_DEBUG": "INFO", "HF_TOKEN": "sesame"})
    assert told == {"--max-model-len": "1", "NCCL_DEBUG": "INFO"}
    body = to_bytes(
        Report(1, "b", 1, fault=Cause("unknown", evidence="of sesame")), lambda text: text.replace("sesame", "***")
    )
    assert b"sesame" not in body
    assert difference(told, {1: {}}, 2).reason == "node-differs"


def test_minds_are_of_their_rank():
    assert isinstance(part.begun(2, 0, "a", {}, ""), Head)
    assert isinstance(part.begun(2, 1, "a", {}, ""), Secondary)
    for mind in met():
        assert part.heard(mind, MESSAGES[2] if isinstance(mind, Head) else MESSAGES[0], 1.0) is mind
