"""Each known wording is recognised in every dressing, and never where it is merely quoted."""

import json

import pytest

from pure.logstyles import prologue, variants, wordings
from vllm_supervisor.core.causes import REASONS
from vllm_supervisor.core.diagnosis import RULES
from vllm_supervisor.core.scanner import Scanner

WORDINGS = wordings()
NOT_FROM_A_LOG = {
    "healthy",
    "unknown",
    "readiness-line-hidden",
    "engine-not-executable",
    "not-answering",
    "stranger-on-port",
    "smoke-failed",
    "node-differs",
    "node-lost",
    "node-stopped",
}


def read(lines):
    scanner = Scanner()
    for line in lines:
        scanner.feed(line)
    return scanner


@pytest.mark.parametrize("word", WORDINGS, ids=lambda word: word.name)
def test_every_dressing_of_a_wording_gives_the_same_verdict(word):
    for style, (lines, evidence) in variants(word).items():
        cause = read(lines).verdict()
        assert (cause.reason, cause.evidence, cause.phase) == (word.slug, evidence, word.phase), style
        assert cause.cause_class is REASONS[word.slug]
        for part in word.advice:
            assert part in f"{cause.summary}. {cause.advice}", style  # one sentence after the other, as they are read
        assert cause.advice.endswith("."), cause.advice
        assert "{" not in cause.advice + cause.summary


@pytest.mark.parametrize("word", WORDINGS, ids=lambda word: word.name)
def test_a_quoted_wording_accuses_nobody(word):
    text = word.text
    quoting = [
        f"(APIServer pid=3310) INFO 05-11 04:02:31 [api_utils.py:286] non-default args: {{'model': '/srv/{text}', 'port': 1}}",
        f"(APIServer pid=3310) INFO 05-11 04:02:31 [logger.py:40] Received request cmpl-1: prompt: {text!r}, params: None",
        f"(APIServer pid=3310) INFO 05-11 04:02:31 [logger.py:40] {text}",
        f"(Worker_TP0 pid=3843) WARNING 05-11 04:02:31 [utils.py:1] {text}",
        f"(APIServer pid=3310) ERROR 05-11 04:02:31 [serving.py:1] Error with prompt {text!r}",
        f'(Worker_TP0 pid=3843) ERROR 05-11 04:03:18 [x.py:9]   File "/srv/{text}", line 3, in load',
        f"(Worker_TP0 pid=3843) ERROR 05-11 04:03:18 [x.py:9]     raise ValueError('{text}')",
        json.dumps({"levelname": "INFO", "name": "vllm.x", "message": text, "process": 1}),
        f'INFO:     127.0.0.1:1 - "POST /v1/{text.replace(" ", "%20")} HTTP/1.1" 200 OK',
        f"2026-07-01 10:06:27,001 - WARNING - autotuner.py:485 - flashinfer.jit: [Autotuner]: Skipping tactic: {text}",
        f"Loading model {text}",
    ]
    for before in (prologue(word.phase), prologue("serving")):
        for line in quoting:
            assert read([*before, line]).verdict().reason == "healthy", line


def test_every_rule_is_reached_by_a_wording():
    reached = set()
    for word in WORDINGS:
        lines, _ = next(iter(variants(word).values()))
        if found := read(lines)._classifier.cause_line:
            reached.add(found.rule)
    missing = [(rule.slug, rule.regex.pattern[:60]) for rule in RULES if rule not in reached]
    assert not missing


def test_every_reason_that_a_log_can_show_has_a_rule():
    assert {rule.slug for rule in RULES} == set(REASONS) - NOT_FROM_A_LOG
