import json

import pytest

from pure.logstyles import HEADER, prologue
from vllm_supervisor.core.facts import CauseFound, PhaseSeen, Progress, StartupComplete
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.scanner import Scanner

P = Phase

COMPLETE = "Application startup complete."
BAR = "Capturing CUDA graphs (FULL): {:3}%|█         | {}/19 [00:01<00:02, 20it/s]"


def vllm(message, process="Worker_TP0", origin="x.py"):
    return f"({process} pid=3) INFO 05-11 04:02:39 [{origin}:1] {message}"


def facts(*lines):
    scanner = Scanner()
    return [fact for line in lines for fact in scanner.feed(line)]


def json_line(name, message):
    return json.dumps(
        {
            "asctime": "05-11",
            "levelname": "INFO",
            "name": name,
            "processName": "MainProcess",
            "process": 1,
            "message": message,
        }
    )


@pytest.mark.parametrize(
    "line",
    [
        f"INFO:     {COMPLETE}",
        f"(APIServer pid=871) INFO:     {COMPLETE}\r\n",
        f"\x1b[1;36m(APIServer pid=52000)\x1b[0;0m INFO:     {COMPLETE}",
        f"\x1b[32mINFO\x1b[0m:     {COMPLETE}",
        f"May 05 05:09:09 gpu2 vllm[7010]: INFO:     {COMPLETE}",
        f"(ApiServer_1 pid=2) INFO:     {COMPLETE}",
        json_line("uvicorn.error", COMPLETE),
        vllm(COMPLETE, "APIServer", "on.py"),
        f"2026-11-30 20:44:31,029 uvicorn.error INFO {COMPLETE}",
        COMPLETE,
        '2026-07-01T10:06:26.994123Z  INFO vllm_server: OpenAI server is ready to accept requests bind_address="127.0.0.1:8000" scheme="http"',
        "INFO 05-11 04:02:39 [lib.rs:326] OpenAI server is ready to accept requests",
        '{"timestamp":"x","level":"INFO","fields":{"message":"OpenAI server is ready to accept requests"},"target":"vllm_server"}',
    ],
)
def test_every_form_of_startup_complete_counts(line):
    assert facts(line) == [StartupComplete()]


@pytest.mark.parametrize(
    "line",
    [
        vllm(f"Received request cmpl-1: prompt: 'INFO:     {COMPLETE}', params: None", "APIServer", "logger.py"),
        vllm(COMPLETE, "APIServer", "logger.py"),
        vllm(f"INFO:     {COMPLETE}", "APIServer", "serving.py"),
        json_line("vllm.entrypoints.logger", COMPLETE),
        f'INFO:     127.0.0.1:1 - "GET /{COMPLETE} HTTP/1.1" 404 Not Found',
        f"INFO:     not yet: {COMPLETE}",
        "INFO:     Waiting for application startup.",
        f"echo 'uvicorn.error INFO {COMPLETE}'",
        vllm("OpenAI server is ready to accept requests", "APIServer", "logger.py"),
        "OpenAI server is ready to accept requests",
        "INFO:     Application startup failed. Exiting.",
    ],
)
def test_words_that_are_merely_quoted_do_not(line):
    assert StartupComplete() not in facts(*prologue("capturing-graphs"), line)


def test_phases_go_on_and_a_slower_worker_does_not_take_them_back():
    found = facts(
        vllm("Starting to load model m..."),
        vllm("Model loading took 1.0 GiB and 2.0 seconds"),
        vllm("Loading weights took 2.0 seconds", "Worker_TP1"),
        vllm("Available KV cache memory: 1.0 GiB"),
        vllm("Using max model len 10", "EngineCore"),
    )
    assert [fact.phase for fact in found if isinstance(fact, PhaseSeen)] == [
        P.LOADING_WEIGHTS,
        P.COMPILING,
        P.SIZING_KV_CACHE,
    ]


def test_the_trial_capture_of_the_memory_profile_is_no_capture():
    trial = facts(
        vllm("Model loading took 1 GiB and 2 seconds"),
        BAR.format(0, 0),
        BAR.format(100, 19),
        vllm("Graph capturing finished in 4 secs, took 0.61 GiB"),
    )
    assert P.CAPTURING_GRAPHS not in {fact.phase for fact in trial if isinstance(fact, (PhaseSeen, Progress))}
    real = facts(vllm("Available KV cache memory: 1.0 GiB"), BAR.format(50, 9))
    assert real[-2:] == [
        PhaseSeen(P.CAPTURING_GRAPHS),
        Progress(P.CAPTURING_GRAPHS, 9.0, 19.0, "Capturing CUDA graphs (FULL)"),
    ]


def test_where_the_lines_are_hidden_the_second_capture_is_the_real_one():
    found = facts(BAR.format(0, 0), BAR.format(100, 19), BAR.format(0, 0))
    assert [fact.phase for fact in found if isinstance(fact, Progress)] == [
        P.COMPILING,
        P.COMPILING,
        P.CAPTURING_GRAPHS,
    ]


def test_sizing_may_follow_a_capture_that_came_first():
    found = facts(
        "Capturing CUDA graph shapes:   0%|          | 0/67 [00:00<?, ?it/s]",
        vllm("Available KV cache memory: 1.0 GiB"),
    )
    assert [fact.phase for fact in found if isinstance(fact, PhaseSeen)] == [P.CAPTURING_GRAPHS, P.SIZING_KV_CACHE]


def test_the_first_model_runners_bar_is_always_the_capture():
    found = facts("Capturing CUDA graphs (decode, FULL):   5%|▌         | 1/19 [00:01<00:02, 20it/s]")
    assert found == [
        PhaseSeen(P.CAPTURING_GRAPHS),
        Progress(P.CAPTURING_GRAPHS, 1.0, 19.0, "Capturing CUDA graphs (decode, FULL)"),
    ]


def test_a_shard_bar_behind_a_process_prefix_is_progress():
    found = facts(
        "\x1b[1;36m(Worker_TP0 pid=4)\x1b[0;0m Loading safetensors checkpoint shards:  45% Completed | 54/119 [02:00<02:24,  2.2s/it]"
    )
    assert found[-1] == Progress(P.LOADING_WEIGHTS, 54.0, 119.0, "Loading safetensors checkpoint shards")


def test_a_log_that_begins_in_the_middle_is_serving():
    for line in (
        'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
        vllm("Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg", "APIServer"),
    ):
        scanner = Scanner()
        scanner.feed(line)
        assert (scanner.log_phase, scanner.phase) == ("serving", None)


def test_the_cause_is_told_once_and_again_when_a_better_one_comes():
    cuda = "(W pid=1) ERROR 05-11 04:03:18 [x.py:1] RuntimeError: CUDA error: an illegal memory access was encountered"
    busy = (
        "(W pid=2) ERROR 05-11 04:03:18 [x.py:1] AssertionError: Error in memory profiling. Initial free memory 2 GiB"
    )
    found = [fact for fact in facts(*prologue("compiling"), cuda, cuda, busy, cuda) if isinstance(fact, CauseFound)]
    assert [fact.cause.reason for fact in found] == ["cuda-fault", "gpu-busy"]
    assert found[1].cause.evidence == busy


@pytest.mark.parametrize(
    ("line", "priority"),
    [
        ("(A pid=1) ERROR 05-11 04:03:18 [x.py:1] x", 3),
        ("(A pid=1) CRITICAL 05-11 04:03:18 [x.py:1] x", 2),
        ("(A pid=1) WARNING 05-11 04:03:18 [x.py:1] x", 4),
        ("(A pid=1) INFO 05-11 04:03:18 [x.py:1] x", 6),
        ("(A pid=1) DEBUG 05-11 04:03:18 [x.py:1] x", 7),
        ("INFO:     Started server process [1]", 6),
        ("vllm: error: unrecognized arguments: --x", 3),
        ("Loading safetensors checkpoint shards:  45% Completed | 54/119 [02:00<02:24,  2.2s/it]", 6),
        ("anything else", 6),
        (HEADER, 3),
    ],
)
def test_a_line_has_the_priority_of_its_level(line, priority):
    scanner = Scanner()
    scanner.feed(line, "stderr")
    assert scanner.level_of_last == priority


def test_the_frames_of_an_uncaught_traceback_are_errors_too():
    scanner, priorities = Scanner(), []
    for line in (HEADER, '  File "x.py", line 1, in f', "    f()", "ValueError: x", "INFO:     127.0.0.1:1 - x"):
        scanner.feed(line)
        priorities.append(scanner.level_of_last)
    assert priorities == [3, 3, 3, 3, 6]


@pytest.mark.parametrize(
    "piece",
    ["a", "(", "x: ", "Error: ", "(a pid=1) ", "%|", "E", "a.", '" - "GET ', "INFO ", "'", "Capturing CUDA graphs "],
)
@pytest.mark.parametrize(
    "before", ["", HEADER, "ValueError: ", "(W pid=1) ERROR 01-01 00:00:00 [a.py:1] RuntimeError: ", "[rank0]:[E611 "]
)
def test_a_very_long_line_is_read_without_trouble(before, piece):
    scanner = Scanner()
    scanner.feed(HEADER)
    scanner.feed(before + piece * (65536 // len(piece)))
    assert scanner.verdict().reason in {"healthy", "unknown"}
