"""The fake's processes: tree, signals, deaths, leftovers, floods."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from process.fakes import Fake, gone
from process.waiting import refused

LONG = {"prompt": "x", "max_tokens": 100, "ignore_eos": True}


def test_has_the_real_tree_with_titles_and_segments(tmp_path):
    with Fake(tmp_path, "-tp", "2", load="none") as fake:
        stats = fake.wait_ready()
        core = psutil.Process(stats["core"])
        assert core.ppid() == fake.process.pid
        assert [core.name(), core.cmdline()[0]] == ["VLLM::EngineCor", "VLLM::EngineCore"] or core.cmdline()[
            0
        ] == "VLLM::EngineCore"
        assert Path(f"/proc/{stats['core']}/comm").read_text() == "VLLM::EngineCor\n"
        assert {child.pid for child in core.children()} == set(stats["workers"])
        assert [psutil.Process(pid).cmdline()[0] for pid in stats["workers"]] == [
            "VLLM::Worker_TP0",
            "VLLM::Worker_TP1",
        ]
        assert {os.getpgid(pid) for pid in (stats["core"], *stats["workers"])} == {fake.process.pid}
        assert len(stats["segments"]) == 3
        assert all(segment in Path(f"/proc/{stats['core']}/maps").read_text() for segment in stats["segments"])
        fake.term()
        assert fake.wait_exit() == 0
        assert [pid for pid in (stats["core"], *stats["workers"]) if not gone(pid)] == []
        assert [segment for segment in stats["segments"] if Path(segment).exists()] == []


@pytest.mark.parametrize("kept", [True, False])
def test_a_title_wipes_the_environment_unless_it_is_told_not_to(tmp_path, kept):
    with Fake(tmp_path, load="none", env={"SPT_NOENV": "1" if kept else ""}) as fake:
        worker = fake.wait_ready()["workers"][0]
        assert (b"FAKE_ENGINE" in Path(f"/proc/{worker}/environ").read_bytes()) is kept
        os.kill(worker, signal.SIGKILL)
        fake.wait_exit()


def test_sigterm_kills_at_once_during_the_imports(tmp_path):
    with Fake(tmp_path, pace="manual") as fake:
        assert fake.stats()["mode"] == "imports"
        fake.term()
        assert fake.wait_exit() == -signal.SIGTERM


def test_sigterm_interrupts_while_configuring(tmp_path):
    with Fake(tmp_path, pace="manual") as fake:
        fake.control("advance", to="configuring")
        fake.term()
        assert fake.wait_exit() == -signal.SIGINT
        assert "KeyboardInterrupt: terminated" in fake.err.read_text()


def test_the_first_sigterm_while_loading_is_lost_and_the_engine_becomes_ready(tmp_path):
    with Fake(tmp_path, pace="manual") as fake:
        fake.control("advance", to="loading-weights")
        before = fake.output()
        fake.term()
        fake.wait(lambda: fake.stats()["terms"], "the lost signal")
        assert fake.output() == before
        fake.control("finish")
        assert fake.get("/health").status == 200
        fake.term()
        assert fake.wait_exit() == 0


def test_a_second_sigterm_while_loading_ends_it_by_sigint(tmp_path):
    with Fake(tmp_path, pace="manual", second_term_gap_s=0.1) as fake:
        fake.control("advance", to="loading-weights")
        stats = fake.stats()
        fake.term()
        fake.wait(lambda: fake.stats()["terms"], "the lost signal")
        first = time.monotonic()
        fake.wait(lambda: time.monotonic() - first > 0.15, "the gap")
        fake.term()
        assert fake.wait_exit() == -signal.SIGINT
        assert gone(stats["core"])


def test_sigterm_to_the_whole_group_while_loading_leaves_main_hung(tmp_path):
    with Fake(tmp_path, "-tp", "2", pace="manual", second_term_gap_s=0.0) as fake:
        fake.control("advance", to="loading-weights")
        stats = fake.stats()
        # To the main process first: were its children quicker to die than it to hear the signal, it would end with them.
        fake.term()
        fake.wait(lambda: fake.stats()["terms"], "the lost signal")
        for pid in (stats["core"], *stats["workers"]):
            os.kill(pid, signal.SIGTERM)
        fake.wait(lambda: all(gone(pid) for pid in (stats["core"], *stats["workers"])), "dead children")
        fake.wait(lambda: fake.stats()["mode"] == "stranded", "main, stranded")
        assert fake.process.poll() is None
        fake.term()
        assert fake.wait_exit() == -signal.SIGINT


def test_ignores_sigterm_when_told(tmp_path):
    with Fake(tmp_path, load="none", ignore_sigterm=True, children_ignore_sigterm=True) as fake:
        stats = fake.wait_ready()
        for pid in (fake.process.pid, stats["core"], stats["workers"][0]):
            os.kill(pid, signal.SIGTERM)
        assert fake.get("/v1/completions", post={"prompt": "x", "max_tokens": 1}).status == 200
        assert fake.process.poll() is None


def test_aborts_what_runs_when_there_is_no_drain(tmp_path):
    with Fake(tmp_path, load="none", token_delay=0.05) as fake:
        fake.wait_ready()
        replies = ask_in_background(fake, {**LONG, "stream": True})
        fake.wait(lambda: fake.stats()["in_flight"], "a running request")
        fake.term()
        assert fake.wait_exit() == 0
        replies.join(5)
        assert replies.reply.status == 200
        assert replies.reply.text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' not in replies.reply.text


def test_drains_refuses_new_requests_and_stays_healthy(tmp_path):
    with Fake(tmp_path, "--shutdown-timeout", "20", load="none", token_delay=0.005) as fake:
        fake.wait_ready()
        replies = ask_in_background(fake, LONG)
        fake.wait(lambda: fake.stats()["in_flight"], "a running request")
        fake.term()
        fake.wait_printed("mode=drain timeout=20s")
        refusal = fake.get("/v1/completions", post={"prompt": "x", "max_tokens": 1})
        assert (refusal.status, refusal.json()["error"]["message"]) == (
            500,
            "cannot schedule new futures after shutdown",
        )
        assert fake.get("/health").status == 200
        assert fake.wait_exit() == 0
        replies.join(5)
        assert replies.reply.json()["usage"]["completion_tokens"] == 100


class ask_in_background(threading.Thread):  # noqa: N801
    def __init__(self, fake, post):
        super().__init__(daemon=True)
        self.fake, self.post, self.reply = fake, post, None
        self.start()

    def run(self):
        self.reply = self.fake.get("/v1/completions", post=self.post, timeout=20)


@pytest.mark.parametrize("who", ["w0", "core"])
def test_a_death_while_serving_ends_in_exit_zero(tmp_path, who):
    with Fake(tmp_path, "-tp", "2", load="none", death_poll_s=0.5) as fake:
        stats = fake.wait_ready()
        fake.control("die", who=who)
        fake.wait(lambda: fake.get("/health").status == 503, "a sick /health")
        assert fake.wait_exit() == 0
        assert all(gone(pid) for pid in (stats["core"], *stats["workers"]))
        assert fake.printed("died unexpectedly (exit code: -9)") is (who == "w0")
        assert "Finished server process" in fake.output()


def test_a_worker_that_dies_while_loading_ends_in_exit_one(tmp_path):
    with Fake(tmp_path, "-tp", "2", pace=0, worker_dies_at="compiling", worker_dies_rank=1) as fake:
        assert fake.wait_exit() == 1
        assert "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)" in fake.out.read_text()
        assert "RuntimeError: Engine core initialization failed." in fake.err.read_text()


def test_orphans_survive_the_kill_of_main_and_end_with_their_core(tmp_path):
    with Fake(tmp_path, "-tp", "2", load="none", double_fork=True) as fake:
        stats = fake.wait_ready()
        pids = [stats["core"], *stats["workers"]]
        assert os.getsid(stats["grandchild"]) != os.getsid(stats["core"])
        fake.process.kill()
        assert fake.wait_exit() == -signal.SIGKILL
        fake.wait(lambda: refused(fake.port), "a free port")
        assert [pid for pid in (*pids, stats["grandchild"]) if gone(pid)] == []
        assert all(Path(segment).exists() for segment in stats["segments"])
        os.kill(stats["core"], signal.SIGTERM)
        fake.wait(lambda: all(gone(pid) for pid in pids), "the end of the orphans")
        assert not any(Path(segment).exists() for segment in stats["segments"])
        assert not gone(stats["grandchild"])


def test_segments_stay_when_everything_is_killed(tmp_path):
    with Fake(tmp_path, load="none") as fake:
        stats = fake.wait_ready()
        os.killpg(fake.process.pid, signal.SIGKILL)
        fake.wait(lambda: all(gone(pid) for pid in (stats["core"], *stats["workers"])), "the end")
        assert all(Path(segment).exists() for segment in stats["segments"])


def test_floods_from_a_worker_and_says_when_it_is_done(tmp_path):
    with Fake(tmp_path, load="none") as fake:
        fake.wait_ready()
        fake.control(
            "fault", fault={"kind": "flood", "lines": 20_000, "length": 100, "who": "w0", "stream": 2}, timeout=20
        )
        text = fake.err.read_text()
    assert text.count("flood ") == 20_000
    assert text.endswith("fault-done\n")
    assert {len(line) for line in text.splitlines() if line.startswith("flood ")} == {99}


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("giant", {"bytes": 3_000_000}, b"x" * 2_000_000),
        ("invalid-utf8", {}, b"\xff\xfe broken \xc3("),
        ("ansi", {}, b"\x1b[31mINFO"),
        ("bars", {}, b"\rTuning:  50%|"),
        ("text", {"text": "hello"}, b"hello\n"),
    ],
)
def test_prints_what_no_log_should_hold(tmp_path, kind, more, expected):
    with Fake(tmp_path, pace=0, faults=[{"at": "compiling", "kind": kind, **more}]) as fake:
        fake.wait_ready()
        data = fake.out.read_bytes()
    assert expected in data
    assert b"fault-done\n" in data


def test_emits_and_exits_on_command(tmp_path):
    with Fake(tmp_path, load="none") as fake:
        fake.wait_ready()
        fake.control("emit", text="said by a worker", who="w0", stream=2)
        assert "said by a worker\n" in fake.err.read_text()
        fake.control("exit", code=9)
        assert fake.wait_exit() == 9
