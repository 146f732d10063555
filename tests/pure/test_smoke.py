"""What the answers to the questions with a known answer are worth, and what is slow."""

import pytest

from vllm_supervisor.core.chat import Answer
from vllm_supervisor.core.smoke import (
    CUT,
    EMPTY,
    GARBAGE,
    RIGHT,
    SLOW,
    WRONG,
    Judged,
    Pace,
    is_garbage,
    judge,
    last_paces,
    slowness,
    too_slow,
    whole,
)


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


def test_an_answer_that_does_not_end_is_slow_unless_it_is_right_already():
    late = Answer("The capital", "Hm.", "", 57, 2.0, 0.5)
    said = "slow: 57 tokens in 120 s (0.5 tokens/s) and no end: 'The capital'"
    assert too_slow(late, "Paris", 120.0) == (SLOW, said)
    assert too_slow(Answer("", "Hm.", "", 1), "Paris", 2.5) == (SLOW, "slow: 1 tokens in 2.5 s and no end: 'Hm.'")
    assert too_slow(Answer("Paris, and", "", "", 57), "Paris", 120.0)[0] == RIGHT


def judged(verdict=RIGHT, sentence="right: 'Paris'", first=0.1, rate=20.0, tokens=30):
    return Judged("?", verdict, sentence, Answer("Paris", "", "stop", tokens, first, rate))


USUAL = (Pace(0.1, 20.0), Pace(0.3, 18.0), Pace(0.2, 22.0))


def test_one_right_answer_passes_and_its_pace_stands_beside_the_last_ones():
    found = whole([judged()], USUAL)
    assert (found.passed, found.verdict, found.sentence, found.pace) == (True, RIGHT, "right: 'Paris'", Pace(0.1, 20.0))
    before = "first token after 0.10 s (before: 0.10, 0.30, 0.20 s), 20.0 tokens/s (before: 20.0, 18.0, 22.0)"
    assert found.beside == before
    assert whole([judged()], ()).beside == "first token after 0.10 s, 20.0 tokens/s"


def test_of_several_answers_the_first_that_is_not_right_decides():
    bad = judged(WRONG, "'4' is not in the answer: '5'", first=0.3, rate=10.0)
    found = whole([judged(), bad, judged(EMPTY, "the answer was empty")], ())
    assert (found.passed, found.verdict) == (False, WRONG)
    assert found.sentence == "question 2 of 3: '4' is not in the answer: '5'"
    assert found.pace == Pace(0.1, 20.0), "the median"
    assert whole([judged(), judged()], ()).sentence == "all 2 right: 'Paris'"


def test_a_failure_has_no_pace():
    found = whole([Judged("?", "failed", "/v1/chat/completions says 500: x")], USUAL)
    assert (found.passed, found.pace, found.beside) == (False, Pace(), "")


def test_half_of_the_usual_pace_is_slow_and_passes():
    found = whole([judged(rate=9.9)], USUAL)
    assert (found.passed, found.verdict) == (True, SLOW)
    assert found.sentence == "slow: 9.9 tokens/s, usually 20.0; right: 'Paris'"
    assert whole([judged(rate=10.0)], USUAL).verdict == RIGHT
    assert whole([judged(rate=9.9)], USUAL, excused=True).verdict == RIGHT
    assert whole([judged(rate=9.9, tokens=7)], USUAL).verdict == RIGHT, "too short to have a pace"
    assert whole([judged(WRONG, "no", rate=9.9)], USUAL).verdict == WRONG


def test_a_late_first_token_is_slow_when_it_is_seconds_late():
    assert slowness(Pace(1.3, None), USUAL) == "the first token after 1.30 s, usually 0.20 s"
    assert slowness(Pace(1.1, None), USUAL) == "", "a second is nothing"
    slow = tuple(Pace(10.0, None) for _ in range(3))
    assert slowness(Pace(19.0, None), slow) == ""
    assert slowness(Pace(21.0, 1.0), slow) == "the first token after 21.00 s, usually 10.00 s"


def test_two_earlier_answers_judge_nothing():
    assert slowness(Pace(100.0, 0.1), USUAL[:2]) == ""
    assert slowness(Pace(100.0, 0.1), (*USUAL[:2], Pace(None, None))) == ""


def test_only_tests_that_passed_and_asked_the_same_are_compared_with():
    def row(**kept):
        return {"smoke": {"passed": True, "asked": "a", "first_token_s": 0.1, "tokens_per_s": 20.0, **kept}}

    rows = [
        row(tokens_per_s=1),
        row(passed=False),
        row(asked="b"),
        {"smoke": {}},
        {"smoke": {"passed": True, "verdict": "right", "seconds": 1.0}},
        row(first_token_s="?", tokens_per_s=True),
        {},
        row(tokens_per_s=2.5),
        row(first_token_s=None, tokens_per_s=3),
    ]
    assert last_paces(rows, "a") == (Pace(0.1, 1.0), Pace(0.1, 2.5), Pace(None, 3.0))
    assert len(last_paces([row()] * 9, "a")) == 5
