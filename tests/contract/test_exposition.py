"""The page of /metrics, judged by the official client, the official parser and promtool."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from contract.snapshots import SNAPSHOT, parsed
from vllm_supervisor.adapters.exposition import merge, render
from vllm_supervisor.core.gpu import GpuRecord, GpuTable
from vllm_supervisor.core.metrics import FULL_NAMES, METRICS
from vllm_supervisor.core.readings import readings

ENGINE = (Path(__file__).parents[1] / "corpus" / "metrics" / "vllm-0.24-gpu-tp2.txt").read_bytes()


def declared(page):
    return re.findall(rb"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)


def test_the_parser_finds_every_reading():
    expected = {
        (metric.full_name, tuple(sorted(zip(metric.labels, labels, strict=True)))): value
        for metric, series in readings(SNAPSHOT)
        for labels, value in series
    }
    assert parsed(render(SNAPSHOT)) == expected
    assert len(expected) > 150


def test_every_family_has_its_help_and_type_once():
    page = render(SNAPSHOT)
    assert len(declared(page)) == len(set(declared(page)))
    for name, kind in declared(page):
        assert METRICS[name.decode().removeprefix("vllm_supervisor_")].kind.value == kind.decode()


def test_promtool_has_nothing_to_say():
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=render(SNAPSHOT), capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


NASTY = 'a "quoted" \\ back\\nslash\nnewline {brace} ü'


def test_labels_survive_whatever_they_hold():
    record = GpuRecord(0, NASTY, NASTY)
    page = render(replace(SNAPSHOT, engine_version=NASTY, gpu=GpuTable(records=(record,))))
    labels = [dict(key[1]) for key in parsed(page) if key[0] == "vllm_supervisor_gpu_up"]
    assert labels == [{"gpu": "0", "uuid": NASTY, "name": NASTY}]
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_neither_process_nor_python_metrics_are_ours():
    assert not re.search(rb"^(# TYPE )?(process|python)_", render(SNAPSHOT), re.MULTILINE)


def test_the_engines_page_stands_behind_ours_unchanged():
    page = merge(render(SNAPSHOT), ENGINE)
    assert page == render(SNAPSHOT) + ENGINE
    both = parsed(page)
    assert both == parsed(render(SNAPSHOT)) | parsed(ENGINE)
    assert ("process_open_fds", ()) in both


@pytest.mark.parametrize("engine", [b"", b"# EOF\n", b"\n"])
def test_an_engine_without_a_page_leaves_ours(engine):
    assert parsed(merge(render(SNAPSHOT), engine)) == parsed(render(SNAPSHOT))


def test_the_end_mark_of_openmetrics_is_left_out():
    assert merge(b"a 1\n", b"b 2\n# EOF\n") == b"a 1\nb 2\n"


def test_a_family_that_is_ours_stays_ours():
    rival = b"# HELP vllm_supervisor_ready x\n# TYPE vllm_supervisor_ready counter\nvllm_supervisor_ready 7\nother 1\n"
    page = merge(render(SNAPSHOT), rival)
    assert parsed(page)["vllm_supervisor_ready", ()] == 1.0
    assert page.endswith(b"\nother 1\n")
    assert page.count(b"vllm_supervisor_ready ") == render(SNAPSHOT).count(b"vllm_supervisor_ready ")


def test_a_name_that_only_looks_like_ours_is_kept():
    assert "vllm_supervisor_readyness" not in FULL_NAMES
    assert merge(b"", b"vllm_supervisor_readyness 1\n") == b"vllm_supervisor_readyness 1\n"


@pytest.mark.parametrize(
    "engine",
    [
        b"<html><body>502 Bad Gateway</body></html>",
        b"<html>\n<body>502 Bad Gateway</body>\n</html>\n",
        ENGINE[: len(ENGINE) // 2],
        ENGINE[: ENGINE.index(b'le="') + 3],
        b"\xff\xfe\x00\n",
        b'name{label="open\n',
        b"name\n",
        b"name value\n",
    ],
)
def test_a_broken_page_never_breaks_the_scrape(engine):
    page = merge(render(SNAPSHOT), engine)
    assert parsed(render(SNAPSHOT)).items() <= parsed(page).items()
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
    assert b"error while linting" not in done.stderr
    assert b"parse error" not in done.stderr


def test_what_was_whole_of_a_page_that_was_cut_off_is_kept():
    assert merge(b"", b"a 1\nb 2\nc{x") == b"a 1\nb 2\n"
