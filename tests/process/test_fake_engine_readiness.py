"""The fake's knobs of readiness and of early ends."""

from __future__ import annotations

import json

import pytest

from process.fakes import Fake
from process.waiting import http_get, refused


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("uvicorn", "INFO:     Application startup complete.\n"),
        ("prefixed", ") INFO:     Application startup complete.\n"),
        ("rust", "OpenAI server is ready to accept requests"),
        ("json", '"message": "Application startup complete."'),
    ],
)
def test_says_that_it_is_ready_in_every_form(tmp_path, form, text):
    with Fake(tmp_path, load="none", readiness_line_form=form) as fake:
        fake.wait_ready()
        assert text in fake.output()


def test_prints_json_records(tmp_path):
    with Fake(tmp_path, "--logging-config.formatter", "json", pace=0) as fake:
        fake.wait_ready()
        records = [json.loads(line) for line in fake.out.read_text().splitlines()]
    assert {"asctime", "levelname", "name", "process", "message", "vllm_process_name"} <= set(records[0])
    assert any(record["vllm_process_name"] == "EngineCore" for record in records)


def test_hides_the_line_as_the_log_level_does(tmp_path):
    with Fake(tmp_path, "--uvicorn-log-level", "warning", load="none") as fake:
        fake.wait_ready()
        assert fake.get("/health").status == 200
        assert "INFO:  " not in fake.output()


def test_answers_without_the_line_and_says_the_line_without_an_answer(tmp_path):
    (tmp_path / "a").mkdir()
    with Fake(tmp_path, load="none", no_readiness_line=True) as fake:
        fake.wait_ready()
        assert fake.get("/health").status == 200
        assert "startup complete" not in fake.output()
    with Fake(tmp_path / "a", load="none", never_listen=True) as fake:
        fake.wait_ready()
        assert "startup complete" in fake.output()
        assert refused(fake.port)


def test_dies_between_line_and_answer(tmp_path):
    with Fake(tmp_path, load="none", die_between_line_and_answer=True, exit_code=1) as fake:
        assert fake.wait_exit() == 1
        assert "startup complete" in fake.output()


def test_listens_elsewhere(tmp_path):
    with Fake(tmp_path, load="none", listen_elsewhere=0) as fake:
        port = fake.wait_ready()["port"]
        assert refused(fake.port)
        assert http_get(port, "/health").status == 200


def test_a_second_one_fails_at_once_on_the_port(tmp_path):
    (tmp_path / "b").mkdir()
    with Fake(tmp_path, load="none") as fake:
        fake.wait_ready()
        with Fake(tmp_path / "b", "--port", str(fake.port), pace="manual") as second:
            second.control("advance")
            assert second.wait_exit() == 1
            assert "OSError: [Errno 98] Address already in use" in second.err.read_text()
            assert second.out.read_text().count("\n") <= 7


@pytest.mark.parametrize(
    ("knobs", "code"),
    [
        ({"exit_at": "loading-weights", "exit_code": 1}, 1),
        ({"exit_after": 0.05, "exit_code": 7}, 7),
        ({"exit_at": "compiling", "exit_code": -11}, -11),
    ],
)
def test_exits_when_the_script_says(tmp_path, knobs, code):
    with Fake(tmp_path, pace=0.1, **knobs) as fake:
        assert fake.wait_exit() == code


def test_exits_zero_unasked_with_the_servers_farewell(tmp_path):
    with Fake(tmp_path, load="none", exit_zero_unasked=True) as fake:
        assert fake.wait_exit() == 0
        assert "Application shutdown complete." in fake.output()
