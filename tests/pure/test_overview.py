"""What people are shown of a start: phases against the usual, the pace, tables for pipes."""

from __future__ import annotations

import pytest

from lab.situations import FAILURE, SITUATIONS, USUAL, loading, ready, waiting
from vllm_supervisor.core.overview import Standing, last_failure, load_seconds, medians, pace, phase_rows, slower
from vllm_supervisor.core.plain import HISTORY_COLUMNS, ago, history_cells, printable, remarks, status_lines, table
from vllm_supervisor.daemon.page_cluster import nodes as page_nodes

NOW = 1_800_000_000.0


def row(began, seconds, *, config="a", outcome="stopped", **phases):
    return {
        "began_at": began,
        "ready_at": began + seconds if seconds else None,
        "ended_at": began + 5000,
        "config_hash": config,
        "outcome": outcome,
        "exit_code": 0 if outcome == "stopped" else 75,
        "reason": "" if outcome == "stopped" else "nccl-error",
        "sentence": "stopped on request",
        "phases": phases or {"launching": 10.0, "loading-weights": seconds - 30.0, "capturing-graphs": 20.0},
    }


def test_phases_are_done_here_or_to_come():
    rows = {row.phase.value: row for row in phase_rows(loading())}
    assert [name for name, row in rows.items() if row.standing is Standing.DONE] == [
        "preflight",
        "launching",
        "configuring",
        "connecting",
    ]
    assert rows["loading-weights"].standing is Standing.NOW
    assert rows["compiling"].standing is Standing.TODO
    assert (rows["compiling"].seconds, rows["compiling"].usual) == (None, 38.0)
    assert [name for name, row in rows.items() if row.slow] == ["connecting"]


def test_without_history_nothing_is_known_of_what_comes():
    rows = phase_rows({**loading(), "expected": {}})
    assert rows[-1].phase == "loading-weights"
    assert not any(row.slow for row in rows)


def test_the_phase_in_which_a_start_failed_is_marked():
    status = {**loading(), "phase": "failed", "fault": {"phase": "loading-weights"}}
    standings = {row.phase.value: row.standing for row in phase_rows(status)}
    assert standings["loading-weights"] is Standing.FAILED
    assert "compiling" not in standings


def test_a_ready_engine_shows_its_start():
    assert {row.standing for row in phase_rows(ready())} == {Standing.DONE}
    assert phase_rows(waiting())[1].phase == "waiting"


def test_a_slow_start_is_named_with_its_phase():
    spent = {"launching": 10.0, "loading-weights": 100.0, "capturing-graphs": 190.0}
    usual = {"launching": 10.0, "loading-weights": 100.0, "capturing-graphs": 20.0}
    assert slower(spent, usual, 5) == (
        "2.3 times as long as the last five, most of it in capturing-graphs (3 min 10 s instead of 20 s)"
    )
    assert slower(usual, usual, 5) == ""
    assert slower(spent, {}, 0) == ""


def test_an_unfinished_start_is_compared_as_far_as_it_is():
    usual = {"launching": 10.0, "loading-weights": 100.0, "capturing-graphs": 900.0}
    assert slower({"launching": 40.0}, usual, 5).startswith("4.0 times as long as the last five")


def test_seconds_are_no_matter():
    assert slower({"launching": 4.0}, {"launching": 1.0}, 5) == ""


def test_only_successful_starts_of_the_same_configuration_are_compared():
    rows = [
        row(0, 130),
        row(1, 130, config="b", launching=1.0),
        row(2, 0, outcome="failed", launching=1.0),
        row(3, 300, **{"launching": 10.0, "loading-weights": 100.0, "capturing-graphs": 190.0}),
    ]
    assert pace(rows, 3).startswith("2.3 times as long as the one before")
    assert pace(rows, 0) == ""
    assert pace(rows, 2) == ""
    assert remarks(rows, 2) == [f"This start took {pace(rows, 3)}."]
    assert remarks([*rows, row(4, 130)], 2)[0].startswith("Start -1 (counted from the last) took 2.3")


def test_medians_and_ends():
    assert medians([{"a": 1.0}, {"a": 5.0, "b": 2.0}, {"a": 3.0}]) == {"a": 3.0, "b": 2.0}
    assert medians([{"a": 1.0}, {"a": 2.0}]) == {"a": 1.5}
    assert load_seconds(row(10, 130)) == 130
    assert load_seconds(row(10, 0, outcome="failed", launching=1.0)) is None
    assert last_failure([row(0, 1), FAILURE, row(1, 1)]) is FAILURE
    assert last_failure([row(0, 1)]) is None


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_plain_lines(name):
    lines = status_lines(SITUATIONS[name](), NOW)
    assert all(line == line.rstrip() for line in lines)
    assert SITUATIONS[name]()["status"] in lines[1]
    assert sum(line.startswith(tuple("01234567")) for line in lines) == 8


def test_a_load_says_what_is_left_and_what_is_slow():
    text = "\n".join(status_lines(loading(), NOW))
    assert text.startswith("kimi: loading-weights, not ready\n")
    assert "ready in   about 5 min 56 s" in text
    assert ">  loading-weights   3 min 58 s" in text
    assert "1 min 1 s (slow)" in text


def test_a_dead_daemon_is_told_from_its_history():
    last = {**FAILURE, "began_at": NOW - 7200, "ended_at": NOW - 3600}
    lines = status_lines({"instance": "kimi", "running": False, "ready": False, "phase": "", "last": last}, NOW)
    text = "\n".join(lines)
    assert lines[0] == "kimi: not running"
    assert "started    2 h ago" in text
    assert "outcome    failed (exit 75), 60 min ago" in text or "outcome    failed (exit 75), 1 h ago" in text
    assert "cause      nccl-error: unhandled cuda error" in text
    assert "incident   /var/lib/vllm-supervisor/kimi/incidents/" in text
    never = status_lines({"instance": "kimi", "running": False, "ready": False, "phase": "", "last": None}, NOW)
    assert never == ["kimi: not running, never started"]


def test_a_start_that_was_cut_off_is_called_so():
    last = {**FAILURE, "ended_at": None, "exit_code": None, "outcome": ""}
    status = {"instance": "kimi", "running": False, "ready": False, "phase": "", "last": last}
    assert "cut off" in "\n".join(status_lines(status, NOW))
    assert history_cells(last, "x")[1] == "cut off"


def test_the_table_of_starts():
    cells = history_cells({**row(0, 700), "phases": USUAL | {"ready": 9999.0}}, "when")
    assert cells == (
        "when",
        "stopped",
        "11 min 40 s",
        "loading-weights 8 min 43 s, compiling 38 s, launching 21 s",
        "0",
        "-",
    )
    lines = table([HISTORY_COLUMNS, cells])
    assert lines[0].split()[0] == "started"
    assert len(lines) == 2


def test_ages_are_coarse_and_text_cannot_paint_the_terminal():
    assert [ago(0, at) for at in (5, 90, 7200, 86400 * 3)] == ["5 s", "2 min", "2 h", "3 days"]
    assert printable("a\x1b[2Jb\x07\tc\nd") == "a?[2Jb?\tc\nd"


def test_all_nodes_of_a_cluster_are_in_one_table():
    nodes = [
        {"rank": 0, "host": "gpu01", "phase": "waiting", "here": True, "quiet_seconds": 0.0},
        {"rank": 1, "host": "gpu02", "phase": "loading-weights", "here": False, "quiet_seconds": 0.4},
        {"rank": 2, "host": "", "phase": "missing", "here": False, "quiet_seconds": 0.0},
    ]
    lines = status_lines({**waiting(), "cluster": {"nnodes": 3, "rank": 0, "nodes": nodes}}, NOW)
    start = lines.index("node    machine  phase            heard")
    assert lines[start + 1 : start + 4] == [
        "1 of 3  gpu01    waiting          here",
        "2 of 3  gpu02    loading-weights  0.4 s ago",
        "3 of 3  -        missing          never",
    ]
    other = status_lines({**waiting(), "cluster": {"nnodes": 3, "rank": 1, "nodes": nodes}}, NOW)
    assert any("answered by node 1 of 3" in line for line in other)
    nodes[1]["host"] = "<b>gpu02</b>"
    card = page_nodes({"cluster": {"nnodes": 3, "rank": 0, "nodes": nodes}})[2]
    assert "<dt>2 of 3 <small>&lt;b&gt;gpu02&lt;/b&gt;</small></dt><dd>loading-weights, heard 0.4 s ago</dd>" in card
    assert '<dd><span class="problem">missing</span></dd>' in card
    assert page_nodes({"cluster": None}) == ("nodes", "", "")
    assert not any(line.startswith("node ") for line in status_lines({**waiting(), "cluster": None}, NOW))
