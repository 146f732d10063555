"""A chat completion as it streams in, under every shape that engines give it."""

import pytest

from vllm_supervisor.core.chat import Answer, Streamed


def event(finish=None, tokens=None, **delta):
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **usage}


def taken(*events):
    seen = Streamed()
    for at, one in events:
        seen = seen.take(one, at)
    return seen


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_comes_under_either_name_and_content_after(name):
    seen = taken(
        (0.5, event(role="assistant", content="", tokens=0)),
        (1.0, event(tokens=1, **{name: "France? "})),
        (1.5, event(tokens=2, **{name: "Paris."})),
        (2.0, event(tokens=4, content="It is ")),
        (3.0, event(tokens=6, content="Paris.")),
        (3.5, event("stop", tokens=7, content="")),
        (3.6, {"choices": [], "usage": {"completion_tokens": 7}}),
    )
    # Six tokens behind the first one, in the 2.5 s from the first to the last of them.
    assert seen.answer() == Answer("It is Paris.", "France? Paris.", "stop", 7, 1.0, 6 / 2.5)


def test_the_first_piece_may_have_several_tokens():
    seen = taken((1.0, event(tokens=5, content="a b c d e")), (2.0, event("length", tokens=9, content=" f g h i")))
    assert seen.answer().tokens_per_s == 4.0


def test_a_token_without_text_is_the_first_one_too():
    seen = taken((1.0, event(tokens=1)), (2.0, event(tokens=2, content="a")), (3.0, event("stop", tokens=3)))
    assert (seen.answer().first_token_s, seen.answer().tokens_per_s) == (1.0, 1.0)


def test_an_engine_that_counts_only_at_the_end_is_taken_at_its_word():
    told = (4.0, {"choices": [], "usage": {"completion_tokens": 9}})
    seen = taken((1.0, event(content="a")), (2.0, event(content="b")), (3.0, event("stop", content="c")), told)
    assert seen.answer() == Answer("abc", "", "stop", 9, 1.0, 8 / 2.0)


def test_where_nothing_is_counted_a_piece_is_a_token():
    seen = taken((1.0, event(content="a")), (2.0, event(content="b")), (3.0, event("stop", content="c")))
    assert seen.answer() == Answer("abc", "", "stop", 3, 1.0, 1.0)


def test_one_token_has_no_pace():
    assert taken((1.0, event("length", tokens=1, content="a"))).answer().tokens_per_s is None
    assert Streamed().answer() == Answer("", "", "", 0)


def test_an_answer_that_was_not_streamed_is_taken_whole():
    message = {"content": "Paris.", "reasoning_content": "France?", "role": "assistant"}
    whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 12}}
    assert taken((1.0, whole)).answer() == Answer("Paris.", "France?", "stop", 12)


def test_an_error_in_the_middle_is_kept():
    seen = taken((1.0, event(content="a")), (2.0, {"error": {"message": "EngineCore is gone", "code": 500}}))
    assert (seen.error, seen.begun) == ("EngineCore is gone", True)
    assert taken((1.0, {"error": "gone"})).error == "gone"


@pytest.mark.parametrize(
    "raw", [None, [], "x", {}, {"choices": []}, {"choices": None}, {"choices": [None]}, {"usage": {"total": 1}}]
)
def test_what_is_no_answer_begins_none(raw):
    seen = taken((1.0, raw))
    assert (seen.begun, seen.error, seen.answer()) == (False, "", Answer("", "", "", 0))


@pytest.mark.parametrize("raw", [{"choices": [{"delta": None}]}, {"choices": [{"delta": {"content": None}}]}])
def test_absent_parts_are_empty(raw):
    assert taken((1.0, raw)).answer() == Answer("", "", "", 0)
