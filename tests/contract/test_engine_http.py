"""Asking an engine: one suite for the fake and, where its address is given, for a real one.

`engine` is parametrised over the engines that there are; a `real` one needs only another entry in
`ENGINES` that starts it and yields its endpoint.
"""

from __future__ import annotations

import contextlib
import time

import pytest

from process.fakes import Fake
from process.waiting import free_port
from vllm_supervisor.adapters.engine_http import EngineHttp
from vllm_supervisor.core.counters import read_counters
from vllm_supervisor.core.endpoint import Endpoint
from vllm_supervisor.core.events import ProbeOutcome


@contextlib.contextmanager
def fake_engine(folder):
    """The fake, serving; its endpoint."""
    with Fake(folder, pace=0) as fake:
        fake.wait_ready()
        yield Endpoint(f"http://127.0.0.1:{fake.port}", "kimi", port=fake.port)


ENGINES = {"fake": fake_engine}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, tmp_path_factory):
    with ENGINES[request.param](tmp_path_factory.mktemp("engine")) as endpoint:
        yield endpoint


@pytest.fixture
def fake(tmp_path):
    """A fake of one's own, to be changed while it runs."""
    with Fake(tmp_path, pace=0) as fake:
        fake.wait_ready()
        yield fake


@contextlib.asynccontextmanager
async def client(endpoint, **more):
    http = EngineHttp(endpoint, **more)
    try:
        yield http
    finally:
        await http.close()


def at(fake):
    return Endpoint(f"http://127.0.0.1:{fake.port}", "kimi", port=fake.port)


async def test_health_alone_is_healthy_and_a_real_request_is_an_answer(engine):
    async with client(engine) as http:
        first = await http.probe(full=False)
        full = await http.probe(full=True)
    assert (first.outcome, first.full) == (ProbeOutcome.HEALTHY, False)
    assert (full.outcome, full.full) == (ProbeOutcome.ANSWERED, True)
    assert 0 < first.seconds < 30
    assert 0 < full.seconds < 30


async def test_another_model_is_named(engine):
    async with client(Endpoint(engine.url, "other", port=engine.port)) as http:
        probed = await http.probe(full=True)
    assert probed.outcome is ProbeOutcome.WRONG_MODEL
    assert probed.detail.endswith(", not other")
    assert engine.model in probed.detail


async def test_a_canary_is_one_token_and_the_counters_show_it(engine):
    async with client(engine) as http:
        before = read_counters(await http.metrics())
        done = await http.canary(30.0)
        after = read_counters(await http.metrics())
    assert done.answered
    assert done.detail == ""
    assert after.generation_tokens - before.generation_tokens == 1
    assert after.running == after.waiting == 0


@pytest.mark.parametrize(("rank", "known"), [(0, True), (7, False)])
async def test_a_canary_for_a_rank_is_answered_also_where_there_is_no_such_engine(engine, rank, known):
    async with client(engine) as http:
        before = read_counters(await http.metrics())
        done = await http.canary(30.0, rank)
        after = read_counters(await http.metrics())
    assert (done.answered, done.known, done.detail) == (True, known, "")
    assert after.generation_tokens - before.generation_tokens == 1


@pytest.mark.parametrize(
    ("knobs", "answered", "known", "words"),
    [
        ({"rank_header": "ignored"}, True, True, ""),
        ({"rank_header": "refused"}, True, False, ""),
        ({"scaling": True}, True, False, ""),
        # What it has against us is not the rank.
        ({"generate_status": 401}, False, True, "/v1/completions says 401"),
        ({"generate_status": 503}, False, True, "/v1/completions says 503"),
        ({"rank_header": "refused", "generate_hangs": True}, False, False, "no answer in time"),
        ({"rank_header": "refused", "generate_status": 500}, False, False, "/v1/completions says 500"),
    ],
    ids=str,
)
async def test_what_a_server_makes_of_the_rank(fake, knobs, answered, known, words):
    fake.control("set", values=knobs)
    async with client(at(fake)) as http:
        done = await http.canary(0.5 if "generate_hangs" in knobs else 30.0, 1 if knobs.get("rank_header") else 0)
    assert (done.answered, done.known) == (answered, known)
    assert words in done.detail


async def test_a_chat_is_streamed_event_by_event(engine):
    body = {"model": engine.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}
    events = []
    async with client(engine) as http:
        said = await http.stream("/v1/chat/completions", body, 30.0, lambda event, at: events.append((event, at)))
        assert said == (200, "")
        assert len(events) > 2
        assert events[-1][0]["choices"][0]["finish_reason"] == "length"
        assert [at for _, at in events] == sorted(at for _, at in events)
        assert events[0][1] > 0


async def test_what_is_no_stream_is_one_event_or_a_complaint(engine):
    body = {"model": engine.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    events = []

    def take(event, at):
        events.append(event)

    async with client(engine) as http:
        assert await http.stream("/v1/chat/completions", body, 30.0, take) == (200, "")
        assert [event["object"] for event in events] == ["chat.completion"]
        refused = await http.stream("/v1/chat/completions", {**body, "model": "other"}, 30.0, take)
        assert refused[0] == 404
        assert refused[1].startswith("/v1/chat/completions says 404: The model `other` does not exist")
    async with client(Endpoint(f"http://127.0.0.1:{free_port()}", "kimi")) as http:
        status, complaint = await http.stream("/v1/chat/completions", body, 30.0, take)
    assert status == 0
    assert complaint == "/v1/chat/completions: nobody takes a connection there (connection refused)"
    assert len(events) == 1


async def test_a_port_where_nobody_listens_is_refused_at_once():
    async with client(Endpoint(f"http://127.0.0.1:{free_port()}", "kimi")) as http:
        began = time.monotonic()
        probed = await http.probe(full=True)
        assert probed.outcome is ProbeOutcome.REFUSED
        assert await http.metrics() is None
        assert not (await http.canary(5.0)).answered
        assert time.monotonic() - began < 1.0


async def test_a_stranger_is_believed_only_when_nobody_is_named(engine):
    async with client(engine, stranger=lambda: "port 1 is held by pid 2 (nginx)") as http:
        probed = await http.probe(full=False)
    assert (probed.outcome, probed.detail) == (ProbeOutcome.STRANGER, "port 1 is held by pid 2 (nginx)")


@pytest.mark.parametrize(
    ("knobs", "outcome", "words"),
    [
        ({"health_status": 503}, ProbeOutcome.UNHEALTHY, "503"),
        ({"generate_status": 500}, ProbeOutcome.NO_ANSWER, "/v1/completions says 500"),
        ({"generate_hangs": True}, ProbeOutcome.NO_ANSWER, "no answer in time"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_is_wrong_is_said(fake, knobs, outcome, words):
    fake.control("set", values=knobs)
    async with client(at(fake), answer_timeout_s=0.3) as http:
        probed = await http.probe(full=True)
    assert probed.outcome is outcome
    assert words in probed.detail


async def test_a_canary_that_is_not_answered_ends_at_its_deadline(fake):
    fake.control("hang")
    async with client(at(fake)) as http:
        done = await http.canary(0.3)
        assert not done.answered
        assert 0.25 < done.seconds < 2.0
        assert "no answer in time" in done.detail
        fake.control("unhang")
        assert (await http.canary(10.0)).answered, "a connection that broke is not used again"


async def test_the_key_is_sent_and_never_shown(tmp_path):
    with Fake(tmp_path, "--api-key", "sk-1234", pace=0) as fake:
        fake.wait_ready()
        async with client(Endpoint(at(fake).url, "kimi", api_key="sk-1234")) as http:
            assert (await http.probe(full=True)).outcome is ProbeOutcome.ANSWERED
            assert "sk-1234" not in repr(http.endpoint)
        async with client(at(fake)) as http:
            probed = await http.probe(full=True)
        assert probed.outcome is ProbeOutcome.NO_ANSWER
        assert "401" in probed.detail


@pytest.mark.parametrize("task", ["embed", "score"])
async def test_the_task_of_a_pooling_model_is_found_out(tmp_path, task):
    with Fake(tmp_path, pace=0, tasks=[task]) as fake:
        fake.wait_ready()
        async with client(at(fake)) as http:
            assert (await http.probe(full=True)).outcome is ProbeOutcome.ANSWERED
            assert http.task == task
            assert (await http.canary(10.0)).answered
