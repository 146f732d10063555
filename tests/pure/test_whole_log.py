"""A log at its end: a traceback that nothing follows is an end, and a text without an engine is no log."""

from pathlib import Path

import pytest

from pure.logstyles import FRAME, HEADER, prologue
from vllm_supervisor.core.scanner import Scanner
from vllm_supervisor.core.splitter import Splitter
from vllm_supervisor.core.whole_log import NoLog, WholeLog

CORPUS = Path(__file__).parents[1] / "corpus"
LOGS = sorted([*CORPUS.glob("failure-logs/*.log"), *CORPUS.glob("engine-logs/*.log"), *CORPUS.glob("gpu-logs/*.log")])
ERRORS = [
    "RuntimeError: the flux capacitor is not aligned",
    "vendor.hw.FluxCapacitor: not aligned",
    "FluxCapacitor",
    "StopIteration",
    "EOFError",
    "KeyError: 'flux'",
]
LOAD, SERVE = prologue("loading-weights"), prologue("serving")
ASGI = "ERROR:    Exception in ASGI application"
ACCESS = 'INFO:     127.0.0.1:4242 - "GET /health HTTP/1.1" 200 OK'
CORE = "(EngineCore pid=9) "
LOGGED = "(EngineCore pid=9) ERROR 05-11 04:03:18 [core.py:1] "
API = "(APIServer pid=1) ERROR 05-11 04:03:18 [serving.py:1] "


def verdict(*lines):
    log = WholeLog()
    for line in lines:
        log.feed(line)
    return log.verdict()


def trace(error, prefix=""):
    return [prefix + line for line in (HEADER, FRAME, error)]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("before", [[], LOAD, SERVE], ids=["alone", "loading", "serving"])
@pytest.mark.parametrize("prefix", ["", CORE, LOGGED], ids=["bare", "of the core", "logged by the core"])
@pytest.mark.parametrize("after", [[], ["", "   "], ["nanobind: leaked 3 types!"]], ids=["", "blank", "leftovers"])
def test_a_traceback_at_the_end_is_an_unknown_failure_with_its_last_line(error, before, prefix, after):
    cause = verdict(*before, *trace(error, prefix), *after)
    assert (cause.reason, cause.evidence) == ("unknown", prefix + error)
    assert cause.advice.endswith(".")


@pytest.mark.parametrize("before", [[], LOAD, SERVE], ids=["alone", "loading", "serving"])
def test_a_traceback_that_breaks_off_is_unknown_too(before):
    cause = verdict(*before, HEADER, FRAME, "    self.flux()")
    assert (cause.reason, cause.evidence) == ("unknown", "    self.flux()")
    assert "breaks off" in cause.advice


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("report", [[ASGI], [API + "request failed"]], ids=["uvicorn", "vllm"])
def test_the_traceback_of_a_request_is_shown_and_accuses_nobody(error, report):
    cause = verdict(*SERVE, *report, *trace(error))
    assert (cause.reason, cause.evidence) == ("healthy", error)


@pytest.mark.parametrize("error", ERRORS)
def test_what_goes_on_after_a_traceback_has_not_ended(error):
    cause = verdict(*SERVE, ASGI, *trace(error), ACCESS)
    assert (cause.reason, cause.evidence) == ("healthy", "")


@pytest.mark.parametrize("before", [[], LOAD], ids=["alone", "loading"])
def test_a_stop_on_request_and_an_ignored_exception_are_no_failure(before):
    assert verdict(*before, *trace("KeyboardInterrupt: terminated")).reason == "healthy"
    ignored = verdict(*LOAD, *before, "Exception ignored in: <function f>", *trace("MemoryError"))
    assert ignored.reason == "healthy"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_gets_the_verdict_of_the_running_supervisor(path):
    splitter = Splitter()
    lines = splitter.feed(path.read_bytes()) + splitter.flush()
    scanner = Scanner()
    for line in lines:
        scanner.feed(line)
    assert verdict(*lines) == scanner.verdict()


@pytest.mark.parametrize("lines", [LOAD, SERVE], ids=["loading", "serving"])
def test_every_beginning_of_a_log_of_an_engine_is_one(lines):
    for end in range(1, len(lines) + 1):
        assert not isinstance(verdict(*lines[:end]), NoLog), lines[:end]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], NoLog(0)),
        (["", " "], NoLog(0)),
        (["hello", "", "world"], NoLog(2, "world")),
        (["exit 1"], NoLog(1, "exit 1")),
        (["INFO: a program of somebody else"], NoLog(1, "a program of somebody else")),
        (["vllm-supervisor: refused (exit 78)"], NoLog(1, "vllm-supervisor: refused (exit 78)", "refused (exit 78)")),
    ],
)
def test_a_text_without_an_engine_is_no_log(lines, found):
    assert verdict(*lines) == found
