"""What an incident holds, how it is named, cut and rotated."""

import json

from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.incident import NAME, Facts, directory_name, files, process_tree, to_remove
from vllm_supervisor.core.redact import redactor

CAUSE = Cause("worker-killed", "the line with sesame", "ready", "Look there.", "a worker is gone")


def facts(**more):
    values = {
        "cause": CAUSE,
        "began_at": 1000.0,
        "at": 1100.0,
        "timeline": [("launching", 1.0), ("ready", 60.0)],
        "state": {"figures": {"weights_gib": 70.8}},
        "evidence": [("kernel", "Xid 79 sesame")],
        "output": ["first", "last"],
        "lines": {"main": ["a"], "Worker_TP0-1": ["b sesame"]},
        "configuration": {"engine": {"env": {"ODD_NAME": "1"}, "args": {"api-key": "x"}}},
        "command": ["vllm", "serve", "--api-key", "hidden-by-its-option", "--port", "8000"],
        "environment": {"VLLM_API_KEY": "sesame", "NCCL_DEBUG": "INFO", "ODD_NAME": "1", "DBUS_X": "private"},
        "gpus": {"samples": []},
        "processes": ["1 vllm"],
        "kernel": ["line"],
        "versions": {"engine": "0.32.0"},
        "stacks": "Thread 1\n  File x",
    }
    return Facts(**{**values, **more})


def made(limit=1 << 20, **more):
    return dict(files(facts(**more), redactor(["sesame"]), limit))


def test_it_holds_everything_that_is_known():
    found = made()
    assert list(found) == [
        "verdict.json", "evidence.txt", "timeline.txt", "output.log", "versions.json", "config.json", "processes.txt",
        "gpus.json", "kernel.log", "stacks.txt", "output/main.log", "output/Worker_TP0-1.log",
    ]  # fmt: skip
    verdict = json.loads(found["verdict.json"])
    assert verdict["cause"]["reason"] == "worker-killed"
    assert verdict["cause"]["class"] == "transient"
    assert verdict["sentence"] == "worker-killed: a worker is gone. Look there."
    assert verdict["figures"] == {"weights_gib": 70.8}
    assert found["timeline.txt"].splitlines() == [
        "     1.000 s  launching          59 s",
        "    60.000 s  ready              40 s",
    ]
    config = json.loads(found["config.json"])
    assert config["environment"] == {"NCCL_DEBUG": "INFO", "ODD_NAME": "1", "VLLM_API_KEY": "***"}
    assert config["command"] == ["vllm", "serve", "--api-key", "***", "--port", "8000"]
    assert config["settings"]["engine"]["args"] == {"api-key": "***"}


def test_no_secret_is_left_in_any_file():
    assert "sesame" in repr(facts())
    assert not [name for name, text in made().items() if "sesame" in text]


def test_what_is_not_known_has_no_file():
    found = made(gpus=None, kernel=None, stacks="", processes=[], evidence=[])
    assert {"gpus.json", "kernel.log", "stacks.txt", "processes.txt", "evidence.txt"}.isdisjoint(found)


def test_lines_are_cut_from_their_begin_to_the_limit_and_fairly():
    flood = [f"flood {number}" for number in range(10_000)]
    found = made(limit=20_000, lines={"a": flood, "b": ["only one"]}, output=flood)
    assert sum(map(len, found.values())) <= 20_000
    assert found["output/a.log"].endswith("flood 9999\n")
    assert found["output/b.log"] == "only one\n"
    assert found["output.log"].endswith("flood 9999\n")


def test_a_name_is_never_given_twice_and_always_known_as_one():
    taken = set()
    for _ in range(3):
        name = directory_name("20260521T130542Z", "worker-killed", taken.__contains__)
        assert NAME.fullmatch(name)
        taken.add(name)
    assert sorted(taken) == [
        "20260521T130542Z-worker-killed",
        "20260521T130542Z-worker-killed.2",
        "20260521T130542Z-worker-killed.3",
    ]
    assert not NAME.fullmatch("..")
    assert not NAME.fullmatch("20260521T130542Z-../x")


def test_the_oldest_go_first_by_count_and_by_size():
    sizes = {f"2026010{n}T000000Z-unknown": 10 for n in range(1, 6)}
    names = sorted(sizes)
    assert to_remove(sizes, 3, 1000) == names[:2]
    assert to_remove(sizes, 9, 25) == names[:3]
    assert to_remove(sizes, 9, 5) == names[:4]  # the newest stays
    assert to_remove(sizes, 9, 50) == []
    assert to_remove(sizes, 0, 50) == names
    assert to_remove({"notes of the operator": 10**9, **sizes}, 9, 50) == []


def test_processes_are_shown_as_a_tree():
    assert process_tree([(5, 3, "worker"), (2, 1, "main"), (3, 2, "core"), (9, 9, "own parent")]) == [
        "2 main", "  3 core", "    5 worker", "9 own parent",
    ]  # fmt: skip
