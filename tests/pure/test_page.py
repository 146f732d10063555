"""The page for people: well-formed, said in words, closed to what the engine's text could smuggle in."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from lab.page_server import render
from lab.situations import FAILURE, SITUATIONS, degraded, loading, ready, trend, waiting
from vllm_supervisor.core import several
from vllm_supervisor.core.overview import mood
from vllm_supervisor.core.plain import status_lines
from vllm_supervisor.daemon.page_engines import engines as engines_card
from vllm_supervisor.daemon.page_html import CSS, POLICY, SCRIPT, page
from vllm_supervisor.daemon.page_svg import bar, ceiling, chart
from vllm_supervisor.daemon.trend import Point, Trend

VOID = {"meta", "link"}


class Tree(HTMLParser):
    """Checks that every element is closed where it should be; keeps elements and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_is_well_formed_and_readable_without_seeing_it(name):
    tree = Tree(render(name).decode())
    assert tree.all("html") == [{"lang": "en"}]
    assert len(tree.all("h1")) == 1
    ids = [attrs["id"] for _, attrs in tree.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for drawing in tree.all("svg"):
        assert drawing["role"] == "img"
        assert drawing["aria-label"]
    assert {attrs["scope"] for attrs in tree.all("th")} == {"col", "row"}
    assert all("id" in attrs for _, attrs in tree.elements if "data-live" in attrs)


@pytest.mark.parametrize("name", SITUATIONS)
def test_nothing_comes_from_elsewhere_and_nothing_is_inline(name):
    tree = Tree(render(name).decode())
    for tag, attrs in tree.elements:
        assert not {key for key in attrs if key.startswith("on") or key == "style"}, (tag, attrs)
        for key in ("src", "href"):
            if key in attrs:
                other = tag == "a" and attrs[key] == "http://127.0.0.1:9478/"  # the page of another instance
                assert other or re.match(r"/[a-z.]+$|#main$|data:,$", str(attrs[key])), attrs
    assert "'unsafe" not in POLICY
    assert b"url(" not in CSS
    assert b"http" not in SCRIPT


def test_nothing_moves_by_itself():
    """Who asked for reduced motion gets what everybody gets; a bar without a value would run to and fro."""
    assert not re.search(rb"animation|transition|@keyframes|scroll-behavior", CSS)
    assert b"smooth" not in SCRIPT
    for name in SITUATIONS:
        assert all("value" in bar for bar in Tree(render(name).decode()).all("progress"))


def test_it_is_fetched_again_without_scripts_only():
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in render("loading").decode()


def test_text_of_the_engine_is_text():
    evil = "<script>alert(1)</script>\"'&"
    status = {
        **loading(),
        "status": evil,
        "instance": evil,
        "model": evil,
        "figures": {"architecture": evil},
        "warnings": [evil],
        "fault": {"reason": evil, "class": evil, "phase": evil, "summary": evil, "evidence": evil, "advice": evil},
        "smoke": {"passed": False, "verdict": evil, "seconds": 1.0},
        "gpus": [{"index": 0, "name": evil}],
    }
    text = page(status, [Point(0.0, 1.0, 1.0, 1.0)], {**FAILURE, "sentence": evil}, 1.0).decode()
    assert "<script>alert" not in text
    assert Tree(text).text.count("<script>alert(1)</script>") >= 10


def test_a_load_shows_progress_and_what_is_slow():
    tree = Tree(render("loading").decode())
    assert tree.all("progress")[0]["value"] == "0.4860"
    assert "49 % of the start, shard 54 of 119, about 5 min 56 s left, 5 min 36 s so far" in tree.text
    assert [attrs for attrs in tree.all("tr") if attrs.get("aria-current") == "step"] == [
        {"class": "now", "aria-current": "step"}
    ]
    assert "connecting slow" in tree.text
    assert "GPUs: 8 × NVIDIA RTX PRO 6000" in tree.text


def test_a_failure_says_what_to_do():
    assert "set NCCL_DEBUG=INFO" in Tree(render("waiting").decode()).text
    fault = {"reason": "r", "class": "permanent", "phase": "compiling", "summary": "s", "evidence": "e", "advice": "a!"}
    text = page({**loading(), "phase": "failed", "fault": fault}, [], FAILURE, 0.0).decode()
    assert "This start fails" in text
    assert "<pre>e</pre>" in text
    assert '<p class="advice">a!</p>' in text
    assert "None is remembered" in page(ready(), [], None, 0.0).decode()


def test_a_lost_gpu_and_no_gpu_are_said():
    assert "GPU 5It cannot be read: lost: it fell off the bus" in Tree(render("degraded").decode()).text
    assert "None is read here" in page({**ready(), "gpus": []}, [], None, 0.0).decode()


def test_the_mood_has_a_word_of_its_own():
    assert mood(ready()) == ("good", "ready")
    assert mood(degraded()) == ("bad", "degraded")
    assert mood({**ready(), "liveness": {"hung": True}}) == ("bad", "hung")
    assert mood(loading()) == ("busy", "loading-weights")
    assert mood(waiting()) == ("warn", "waiting")
    assert mood({**ready(), "phase": "failed"}) == ("bad", "failed")


def test_a_gap_in_the_figures_is_a_gap_in_the_line():
    drawn = chart("words", [("generation", [(-30.0, 5.0), (-20.0, None), (-10.0, 8.0), (0.0, 9.0)])], 60.0)
    assert drawn.count("<polyline") == 2
    assert 'points="500.0,24.0 600.0,12.0"' in drawn
    assert chart("words", [("generation", [])], 60.0).count("<polyline") == 0


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.5, 2), (143.2, 200), (205, 300), (9001, 10000)])
def test_the_scale_is_a_round_figure(value, top):
    assert ceiling(value) == top


def test_bars_never_run_over():
    drawn = bar("w", [("a", 0.7), ("b", 0.7)], mark=3.0)
    assert 'class="a" x="0.00" width="70.00"' in drawn
    assert 'class="b" x="70.00" width="30.00"' in drawn
    assert 'class="mark" x="99.00"' in drawn


def test_the_trend_keeps_ten_minutes_of_serving_only():
    kept, shown = Trend(), ("ready", "rates", "requests")
    kept.add(0.0, **{name: loading()[name] for name in shown})
    assert kept.points() == []
    for second in range(1000):
        kept.add(float(second), **{name: ready()[name] for name in shown})
    assert len(kept.points()) == 300
    assert kept.points()[-1] == Point(999.0, 143.2, 3.0, 1.0)
    assert len(trend(0.0, "ready")) == 300


def test_each_of_several_engines_has_a_line_everywhere_and_one_alone_has_none():
    engines = {
        "0": {"last_proof_seconds": 1.2, "running": 3.0, "waiting": 0.0, "kv_usage": 0.25, "hung": False},
        "1": {"last_proof_seconds": 71.0, "running": 2.0, "waiting": 1.0, "kv_usage": None, "hung": True},
    }
    two = {**ready(), "liveness": {"hung": True, "engines": engines}}
    assert several.rows(two) == [("0", "3", "0", "25 %", "1.2 s ago"), ("1", "2", "1", "-", "hung, 1 min 11 s ago")]
    said = engines_card(two)[2]
    assert "<dt>engine 0</dt><dd>3 running, 0 waiting, KV cache 25 % used, last moved 1.2 s ago</dd>" in said
    assert '<span class="problem">hung, 1 min 11 s ago</span>' in said
    assert "hung, 1 min 11 s ago" in "\n".join(status_lines(two, 0.0))
    assert engines_card(ready()) == ("engines", "", "")
    assert "last moved" not in "\n".join(status_lines(ready(), 0.0))
