"""The smoke questions put to a scripted engine: what is told apart, and the figures of a streamed answer."""

from __future__ import annotations

import asyncio

import pytest

from process.fakes import Fake
from process.harness import write_config
from vllm_supervisor.adapters.engine_http import EngineHttp
from vllm_supervisor.config.questions import Question, Smoke
from vllm_supervisor.core.endpoint import Endpoint
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.daemon.instance import read_instance
from vllm_supervisor.daemon.policy import build_policy
from vllm_supervisor.daemon.smoke import converse

TOKENS = 32
"""What the scripted engine's whole answer has: its thought, `</think>`, its words and the end."""


@pytest.fixture(params=["0.32.0", "0.11.0"], ids=["reasoning", "reasoning_content"])
def either(request, tmp_path):
    """A fake of before and after the reasoning's field was renamed."""
    with Fake(tmp_path, "--reasoning-parser", "kimi_k2", load="none", version=request.param) as fake:
        fake.wait_ready()
        yield fake


@pytest.fixture
def fake(tmp_path):
    with Fake(tmp_path, "--reasoning-parser", "kimi_k2", load="none", max_model_len=2100) as fake:
        fake.wait_ready()
        yield fake


async def put(fake, **table):
    """The whole test, by the table [smoke]."""
    http = EngineHttp(Endpoint(f"http://127.0.0.1:{fake.port}", "kimi", port=fake.port))
    try:
        return await converse(http, Smoke(**table))
    finally:
        await http.close()


async def test_reasoning_and_content_are_read_from_the_stream_under_either_name(either):
    found = await put(either)
    assert (found.passed, found.verdict, found.sentence) == (True, "right", "right: 'The capital of France is Paris.'")
    (answer,) = (one.answer for one in found.answers)
    assert answer.content == "The capital of France is Paris."
    assert answer.reasoning.startswith("The user asks for the capital of France")
    assert (answer.finish, answer.tokens) == ("stop", TOKENS)
    assert found.pace.first_token_s == answer.first_token_s > 0
    assert found.pace.tokens_per_s == answer.tokens_per_s > 0


async def test_the_figures_after_a_retry_are_those_of_the_answer_that_is_shown(fake):
    # Each request waits before its first token: a rate over that, or over both requests, could not reach this one.
    fake.control("set", values={"generate_delay": 0.7})
    began = asyncio.get_running_loop().time()
    found = await put(fake, max_tokens=8)
    took = asyncio.get_running_loop().time() - began
    (answer,) = (one.answer for one in found.answers)
    assert (found.verdict, answer.finish, answer.tokens) == ("right", "stop", TOKENS)
    assert answer.first_token_s >= 0.7
    assert took >= 1.4
    assert answer.tokens_per_s > TOKENS / took
    assert answer.tokens_per_s > TOKENS / (took - 0.7)


@pytest.mark.parametrize(("room", "verdict", "tokens"), [(800, "right", 1502), (1100, "cut off", 1100)])
async def test_more_than_the_context_has_is_not_insisted_on(fake, room, verdict, tokens):
    # Of a context of 2100 tokens eight times and four times 800 are refused, of 1100 even twice as much.
    fake.control("set", values={"answer": "so " * 1500 + "Paris", "reasoning": "", "token_delay": 0.0})
    found = await put(fake, max_tokens=room)
    assert (found.verdict, found.answers[0].answer.tokens) == (verdict, tokens)


@pytest.mark.parametrize(
    ("knobs", "table", "verdict", "sentence"),
    [
        ({"answer": "Lyon.", "reasoning": "Hm."}, {}, "wrong", "'Paris' is not in the answer: 'Lyon.'"),
        ({"answer": "", "reasoning": ""}, {}, "empty", "the answer was empty"),
        ({"answer": "]] ;; 0x3f %%", "reasoning": ""}, {}, "garbage", "garbage (is the tokenizer the checkpoint's?)"),
        ({"answer": "so " * 300, "reasoning": ""}, {"max_tokens": 10}, "cut off", "cut off after 80 tokens: 'so so"),
        ({"generate_status": 500}, {}, "failed", "/v1/chat/completions says 500: The fake was told to fail."),
        ({"generate_hangs": True}, {"timeout_s": 0.5}, "failed", "/v1/chat/completions: no answer in time"),
        ({"token_delay": 0.2}, {"timeout_s": 2.5}, "slow", "slow: "),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 9 else "",
)
async def test_what_is_not_right_is_told_apart(fake, knobs, table, verdict, sentence):
    fake.control("set", values=knobs)
    found = await put(fake, **table)
    assert (found.passed, found.verdict) == (False, verdict)
    assert found.sentence.startswith(sentence)
    if verdict == "slow":
        assert " tokens in 2.5 s" in found.sentence
        assert " and no end: 'The user" in found.sentence


async def test_an_engine_that_dies_in_the_middle_of_an_answer_failed(fake):
    fake.control("set", values={"token_delay": 0.3})
    asking = asyncio.create_task(put(fake))
    await asyncio.to_thread(fake.wait, lambda: fake.stats()["generated"] >= 2, "the answer has begun", 60)
    await asyncio.to_thread(fake.control, "die", who="core")
    found = await asking
    assert (found.passed, found.verdict) == (False, "failed")
    assert found.sentence.startswith("/v1/chat/completions: ")


async def test_every_question_is_asked_and_the_one_that_fails_is_named(fake):
    four = Question(question="What is 2 + 2?", expect="4")
    found = await put(fake, questions=[four, Question(question="And of France?", expect="paris")])
    assert [one.verdict for one in found.answers] == ["right", "wrong", "right"]
    assert (found.passed, found.verdict) == (False, "wrong")
    assert found.sentence == "question 2 of 3: '4' is not in the answer: 'The capital of France is Paris.'"
    fake.control("set", values={"answer": "Paris, 4 times."})
    found = await put(fake, questions=[four])
    assert (found.passed, found.sentence) == (True, "all 2 right: 'Paris, 4 times.'")


@pytest.mark.parametrize(
    ("on_start", "stall", "budget"),
    [("require", {}, 180.0), ("report", {}, 120.0), ("require", {"verifying": 5.0}, 5.0)],
)
def test_a_start_that_waits_for_the_answers_has_the_time_for_all_of_them(tmp_path, on_start, stall, budget):
    more = [{"question": "And of Spain?", "expect": "Madrid"}, {"question": "And of Italy?", "expect": "Rome"}]
    table = {"on_start": on_start, "questions": more, "timeout_s": 60.0}
    instance = read_instance(write_config(tmp_path, {}, smoke=table, stall=stall))
    policy = build_policy(instance, [], watchdog_s=None, boot_id="b", now=0.0)
    assert policy.budgets[Phase.VERIFYING] == budget


def test_only_words_can_be_required(tmp_path):
    config = write_config(tmp_path, {}, smoke={"on_start": "require"}, readiness={"probe": "embed"})
    (problem,) = read_instance(config)
    assert str(problem).endswith(
        'smoke.on_start = "require" needs readiness.probe = "generate": only words can be judged'
    )


def test_a_misspelt_key_of_a_question_is_named_with_the_right_one(tmp_path):
    config = write_config(tmp_path, {}, smoke={"questions": [{"question": "?", "expct": "4"}]})
    assert [str(problem).removeprefix(f"{config}: ") for problem in read_instance(config)] == [
        "smoke.questions.0.expct: unknown key; did you mean smoke.questions.0.expect?",
    ]
