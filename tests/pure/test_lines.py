import json

import pytest

from vllm_supervisor.core.lines import Source, peel

RECORD = "INFO 05-11 04:02:39 [model.py:733] Resolved architecture: KimiK25ForConditionalGeneration"
MESSAGE = "Resolved architecture: KimiK25ForConditionalGeneration"


@pytest.mark.parametrize(
    ("raw", "process", "pid"),
    [
        (f"(APIServer pid=3310) {RECORD}", "APIServer", 3310),
        (f"\x1b[1;36m(APIServer pid=3310)\x1b[0;0m {RECORD}\r", "APIServer", 3310),
        (f"\x1b[1;36m(VllmWorker rank=3 pid=44)\x1b[0;0m {RECORD}", "VllmWorker rank=3", 44),
        (f"\x1b[1;36m(EngineCore_0 pid=44)\x1b[0;0m {RECORD}", "EngineCore_0", 44),
        (f"(EngineCore_DP0 pid=1) (Worker_TP0_EP0 pid=2) {RECORD}", "Worker_TP0_EP0", 2),
        (f"[prod] kimi: (Worker_DP0_PP0_TP3_EP3 pid=9) {RECORD}", "Worker_DP0_PP0_TP3_EP3", 9),
        (f"(Worker_TP3 pid=9) [prod] {RECORD}", "Worker_TP3", 9),
        (f"(Worker_TP3 pid=9) prod-{RECORD}", "Worker_TP3", 9),
        (f"(RayWorkerWrapper pid=81, ip=192.0.2.7) {RECORD}", "RayWorkerWrapper", 81),
        (RECORD, None, None),
        (f"May 05 05:05:20 gpu2 vllm[6600]: (APIServer pid=6601) {RECORD}", "APIServer", 6601),
        (f"May  5 05:05:20 gpu2 vllm[6600]: {RECORD}", None, 6600),
        (f"2026-05-05T05:05:20+0200 gpu2 kimi[6600]: {RECORD}", None, 6600),
        (
            "(APIServer pid=7) \x1b[32mINFO\x1b[0m \x1b[90m04-01 17:30:22\x1b[0m \x1b[90m[model.py:529]\x1b[0m "
            + MESSAGE,
            "APIServer",
            7,
        ),
    ],
)
def test_the_prefixes_of_every_version_come_off(raw, process, pid):
    line = peel(raw)
    assert (line.process, line.pid, line.level, line.message) == (process, pid, "INFO", MESSAGE)
    assert (line.source, line.origin) == (Source.VLLM, "model.py")
    assert "\x1b" not in line.text
    assert not line.text.endswith("\r")


def test_a_path_of_a_debug_record_is_its_origin():
    assert peel("(A pid=1) DEBUG 05-11 04:02:39 [v1/engine/core.py:733] x").origin == "v1/engine/core.py"


def test_the_indentation_of_a_traceback_is_kept():
    assert peel('(W pid=2) ERROR 05-11 04:03:18 [m.py:953]   File "x.py", line 3').message == '  File "x.py", line 3'
    assert peel("(APIServer pid=7350)   Value error, no").message == "  Value error, no"
    assert peel("(W pid=2) ERROR 05-11 04:03:18 [m.py:953] ").message == ""


@pytest.mark.parametrize(
    ("raw", "level", "message", "source", "origin"),
    [
        ("INFO:     Application startup complete.", "INFO", "Application startup complete.", Source.UVICORN, ""),
        ("(APIServer pid=8) ERROR:    [Errno 98] x", "ERROR", "[Errno 98] x", Source.UVICORN, ""),
        (
            "(W pid=1) 2026-07-01 10:06:26,994 - INFO - autotuner.py:972 - flashinfer.jit: [Autotuner]: go",
            "INFO",
            "[Autotuner]: go",
            Source.FLASHINFER,
            "autotuner.py",
        ),
        (
            '2026-07-01T10:06:26.994123Z  INFO vllm_server: ready bind_address="[::1]:8000"',
            "INFO",
            'ready bind_address="[::1]:8000"',
            Source.RUST,
            "vllm_server",
        ),
        ("2026-07-01T10:06:26.994123Z  WARN vllm_server::tls: old", "WARNING", "old", Source.RUST, "vllm_server::tls"),
        (
            '{"timestamp":"2026","level":"INFO","fields":{"message":"ready"},"target":"vllm_server"}',
            "INFO",
            "ready",
            Source.RUST,
            "",
        ),
        (
            "May 05 05:09:08 gpu2 kernel: NVRM: Xid (PCI:0000:41:00): 79",
            None,
            "NVRM: Xid (PCI:0000:41:00): 79",
            Source.KERNEL,
            "kernel",
        ),
        (
            "[ 1234.567890] NVRM: Xid (PCI:0000:41:00): 79",
            None,
            "NVRM: Xid (PCI:0000:41:00): 79",
            Source.KERNEL,
            "kernel",
        ),
        ("[Mon May  5 05:09:08 2026] NVRM: x", None, "NVRM: x", Source.KERNEL, "kernel"),
        (
            "May 05 05:09:08 gpu2 systemd[1]: kimi.service: Stopped",
            None,
            "kimi.service: Stopped",
            Source.SYSTEMD,
            "systemd",
        ),
        (
            "gpu1:1:1 [0] NCCL INFO Using network Socket",
            None,
            "gpu1:1:1 [0] NCCL INFO Using network Socket",
            Source.BARE,
            "",
        ),
        ("(just text pid=no) x", None, "(just text pid=no) x", Source.BARE, ""),
        ("", None, "", Source.BARE, ""),
        ("{'not': 'json'}", None, "{'not': 'json'}", Source.BARE, ""),
        ('{"message": "somebody else\'s"}', None, '{"message": "somebody else\'s"}', Source.BARE, ""),
    ],
)
def test_other_loggers_keep_their_shape(raw, level, message, source, origin):
    line = peel(raw)
    assert (line.level, line.message, line.source, line.origin) == (level, message, source, origin)


def test_a_json_record_names_its_process_and_carries_its_traceback():
    record = {
        "asctime": "05-11",
        "levelname": "ERROR",
        "name": "vllm.v1.engine.core",
        "processName": "MainProcess",
        "process": 44,
    }
    line = peel(
        json.dumps(
            {**record, "message": "failed", "vllm_process_name": "EngineCore", "exc_info": "Traceback\nValueError: x"}
        )
    )
    assert (line.process, line.pid, line.level, line.message) == ("EngineCore", 44, "ERROR", "failed")
    assert (line.source, line.origin, line.detail) == (Source.JSON, "vllm.v1.engine.core", "Traceback\nValueError: x")


def test_a_quoted_record_does_not_hide_the_real_one():
    line = peel("(A pid=1) INFO 05-11 04:02:39 [logger.py:40] prompt: '(B pid=2) ERROR 05-11 04:02:39 [x.py:1] no'")
    assert (line.process, line.level, line.origin) == ("A", "INFO", "logger.py")


def test_a_header_far_into_a_line_is_text():
    assert peel("x" * 500 + f"(A pid=1) {RECORD}").source is Source.BARE
