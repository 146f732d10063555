"""What an answer to the question with a known answer is worth."""

import pytest

from vllm_supervisor.core.smoke import CUT, EMPTY, GARBAGE, RIGHT, WRONG, Answer, is_garbage, judge, read_answer


def body(message, finish="stop", tokens=12):
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": {"completion_tokens": tokens}}


def test_a_reasoning_model_fills_two_fields_under_either_name():
    for name in ("reasoning", "reasoning_content"):
        answer = read_answer(body({"content": "Paris.", name: "France? Its capital ..."}))
        assert answer == Answer("Paris.", "France? Its capital ...", "stop", 12)


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"choices": []}, {"choices": None}, {"choices": [None]}])
def test_a_body_without_an_answer_has_none(raw):
    assert read_answer(raw) is None


def test_absent_parts_are_empty():
    assert read_answer({"choices": [{"message": None}]}) == Answer("", "", "", 0)
    assert read_answer(body({"content": None, "reasoning": None}, finish=None)) == Answer("", "", "", 12)


@pytest.mark.parametrize(
    ("answer", "verdict", "words"),
    [
        (Answer("The capital is PARIS.", "", "stop", 9), RIGHT, "right: 'The capital is PARIS.'"),
        (Answer("Paris and so on", "", "length", 256), RIGHT, "right: 'Paris and so on'"),
        (
            Answer("", "Let me think about France", "length", 256),
            CUT,
            "cut off after 256 tokens: 'Let me think about France'",
        ),
        (Answer("The capital is", "", "length", 3), CUT, "cut off after 3 tokens: 'The capital is'"),
        (Answer("", " \n", "stop", 0), EMPTY, "the answer was empty"),
        (
            Answer("London is the capital.", "", "stop", 5),
            WRONG,
            "'Paris' is not in the answer: 'London is the capital.'",
        ),
        (
            Answer("", "I only reasoned about Paris here", "stop", 5),
            WRONG,
            "'Paris' is not in the answer: 'I only reasoned about Paris here'",
        ),
        (
            Answer("!!!!!!!!!!!!!!", "", "stop", 5),
            GARBAGE,
            "garbage (is the tokenizer the checkpoint's?): '!!!!!!!!!!!!!!'",
        ),
    ],
)
def test_verdicts(answer, verdict, words):
    assert judge(answer, "Paris") == (verdict, words)


def test_a_long_answer_is_shown_shortened_and_on_one_line():
    _, words = judge(Answer("Paris\n" + "is a city " * 50, "", "stop", 200), "paris")
    assert "\n" not in words
    assert words.endswith("...'")
    assert len(words) < 110


@pytest.mark.parametrize("text", ["0x3f ]]]] ;;;; 12", "ab\ufffdcd efgh ijkl", "x" * 70, "1234567890"])
def test_garbage(text):
    assert is_garbage(text)


@pytest.mark.parametrize("text", ["Paris", "42", "", "La capitale de la France est Paris.", "法国的首都是巴黎。"])
def test_language(text):
    assert not is_garbage(text)
