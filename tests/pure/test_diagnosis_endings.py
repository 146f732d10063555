"""What ends a log, and what only looks like an end: no start that did not fail is accused."""

import pytest

from pure.logstyles import FRAME, HEADER, prologue
from vllm_supervisor.core.causes import CauseClass
from vllm_supervisor.core.scanner import Scanner

WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
DIED = "(EngineCore pid=9) ERROR 05-11 04:03:18 [multiproc_executor.py:315] Worker proc VllmWorker-5 died unexpectedly (exit code: {}), shutting down executor."
FATAL = "(EngineCore pid=9) ERROR 05-11 04:03:18 [core.py:1510] EngineCore encountered a fatal error."
CUDA = "(Worker_TP6 pid=8) ERROR 05-11 04:03:18 [x.py:1] torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
LOAD = prologue("loading-weights")
SERVE = prologue("serving")


def verdict(*lines):
    scanner = Scanner()
    for line in lines:
        scanner.feed(line)
    return scanner.verdict()


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(LOAD, id="still loading"),
        pytest.param([], id="empty"),
        pytest.param([*SERVE, "INFO:     Shutting down", "INFO:     Application shutdown complete."], id="clean stop"),
        pytest.param(
            [
                *SERVE,
                "(APIServer pid=1) INFO 05-11 04:02:31 [launcher.py:254] [shutdown] API server: shutdown triggered",
                DIED.format(-9),
            ],
            id="worker gone after a stop",
        ),
        pytest.param([*LOAD, HEADER, FRAME, "KeyboardInterrupt: terminated"], id="stopped while loading"),
        pytest.param(
            [
                *LOAD,
                "(Worker_TP0 pid=2) ERROR 05-11 04:03:18 [x.py:1] OSError: [Errno 28] No space left on device",
                *SERVE,
            ],
            id="an error that did not hinder the start",
        ),
        pytest.param(
            [
                *SERVE,
                "(APIServer pid=1) ERROR 05-11 04:03:18 [serving.py:1] FileNotFoundError: No such file or directory: '/lora/a.safetensors'",
            ],
            id="a failed request",
        ),
        pytest.param(
            [*SERVE, HEADER, FRAME, "OSError: [Errno 98] Address already in use"], id="a bare traceback while serving"
        ),
        pytest.param([*SERVE, CUDA], id="a worker's exception that the engine survives"),
        pytest.param(
            [*SERVE, "Exception ignored in: <function f>", HEADER, FRAME, "MemoryError"], id="an ignored exception"
        ),
        pytest.param(
            [*LOAD, "Exception ignored in: <function f>", HEADER, FRAME, "RuntimeError: CUDA out of memory"],
            id="ignored, loading",
        ),
        pytest.param(
            [
                *SERVE,
                "May 05 05:09:08 gpu2 kernel: Out of memory: Killed process 4242 (chrome) total-vm:1kB, anon-rss:1kB",
            ],
            id="the memory killer took a stranger",
        ),
        pytest.param(
            [*SERVE, "May 05 05:09:08 gpu2 kernel: NVRM: Xid (PCI:0000:c1:00): 45, pid=4900, name=python3, Ch 10"],
            id="Xid 45",
        ),
        pytest.param(
            [*SERVE, "May 05 05:09:08 gpu2 kernel: NVRM: Xid (PCI:0000:c1:00): 63, Row Remapper: New row"], id="Xid 63"
        ),
        pytest.param(
            [*SERVE, "May 05 05:09:08 gpu2 kernel: NVRM: Xid (PCI:0000:c1:00): 792, nothing"],
            id="a number that begins with 79",
        ),
        pytest.param(
            [
                *SERVE,
                "(W pid=1) INFO 05-11 04:03:18 [gpu_worker.py:1012] Free memory on device (90.1/94.97 GiB) on startup. Desired GPU memory utilization is (0.9, 85.5 GiB).",
            ],
            id="the healthy twin of gpu-busy",
        ),
        pytest.param(
            [
                *SERVE,
                "(E pid=1) INFO 05-11 04:03:18 [shm.py:1] No available shared memory broadcast block found in 60 seconds.",
            ],
            id="broadcast notice",
        ),
        pytest.param(
            [*SERVE, "gpu1:1:1 [0] NCCL WARN NET/OFI aws-ofi-nccl initialization failed"], id="an NCCL warning"
        ),
        pytest.param(
            [
                *SERVE,
                "(APIServer pid=1) INFO 05-11 04:03:18 [x.py:1] port 8000 is used by process VLLM launched with command: x",
            ],
            id="port note",
        ),
    ],
)
def test_nothing_is_accused(lines):
    cause = verdict(*lines)
    assert (cause.reason, cause.cause_class, cause.evidence) == ("healthy", CauseClass.NONE, "")


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*LOAD, HEADER, FRAME, WRAPPER], id="only the wrapper"),
        pytest.param([*LOAD, "rc 1"], id="an exit code"),
        pytest.param(
            [
                *LOAD,
                "May 05 05:09:09 gpu2 systemd[1]: kimi.service: Main process exited, code=exited, status=1/FAILURE",
            ],
            id="systemd",
        ),
        pytest.param([*SERVE, FATAL], id="a fatal error without an error"),
    ],
)
def test_an_end_without_a_cause_is_unknown(lines):
    cause = verdict(*lines)
    assert (cause.reason, cause.evidence) == ("unknown", "")


def test_an_error_that_no_rule_knows_is_unknown_and_quoted():
    line = "(Worker_TP0 pid=2) ERROR 05-11 04:03:18 [x.py:1] RuntimeError: the flux capacitor is not aligned"
    cause = verdict(*LOAD, line, HEADER, FRAME, WRAPPER)
    assert (cause.reason, cause.evidence) == ("unknown", line)


@pytest.mark.parametrize(
    ("code", "reason"),
    [("-9", "worker-killed"), ("137", "engine-died"), ("None", "worker-killed"), ("-11", "worker-killed")],
)
def test_an_exit_code_alone_never_proves_a_full_memory(code, reason):
    assert verdict(*SERVE, DIED.format(code)).reason == reason


def test_the_engines_death_makes_an_earlier_exception_the_cause():
    cause = verdict(*SERVE, CUDA, DIED.format("None"), FATAL)
    assert (cause.reason, cause.evidence) == ("cuda-fault", CUDA)


def test_later_and_louder_errors_do_not_displace_the_root():
    root = "(Worker_TP2 pid=7) ERROR 05-11 04:03:18 [x.py:1] ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(a=1). Reasons: {}"
    other = "(Worker_TP3 pid=8) ERROR 05-11 04:03:19 [x.py:1] OSError: [Errno 28] No space left on device"
    cause = verdict(*LOAD, root, *[CUDA] * 50, other, DIED.format("-9"), HEADER, FRAME, WRAPPER)
    assert (cause.reason, cause.evidence) == ("unsupported-kernel", root)


def test_the_kernels_line_explains_what_the_engine_says():
    kernel = "May 05 05:09:08 gpu2 kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=8, name=VLLM::Worker_TP, GPU has fallen off the bus."
    cause = verdict(*SERVE, CUDA, FATAL, kernel)
    assert (cause.reason, cause.evidence) == ("gpu-lost", kernel)


def test_interleaved_tracebacks_are_told_apart():
    def bare(pid, text):
        return f"(Worker_TP{pid} pid={pid}) {text}"

    lines = [
        bare(1, HEADER),
        bare(2, HEADER),
        bare(1, FRAME),
        "(Worker_TP3 pid=3) CUDA out of memory is what they fear",
        bare(2, FRAME),
    ]
    end = bare(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")
    cause = verdict(*LOAD, *lines, end, bare(1, "torch.OutOfMemoryError: CUDA out of memory."))
    assert (cause.reason, cause.evidence) == ("gpu-out-of-memory", end)


def test_the_memory_killer_took_a_process_whose_pid_the_log_knows():
    line = "May 05 05:09:08 gpu2 kernel: Out of memory: Killed process 3837 (sglang) total-vm:1kB"
    assert verdict(*LOAD, line).reason == "host-out-of-memory"


def test_a_death_after_an_error_that_no_rule_knows_is_its_consequence():
    line = "(EngineCore pid=9) ERROR 05-11 04:03:18 [core.py:1] ValueError: the flux capacitor is not aligned"
    cause = verdict(*LOAD, line, DIED.format("None"), HEADER, FRAME, WRAPPER)
    assert (cause.reason, cause.evidence) == ("unknown", line)
    assert verdict(*LOAD, line, DIED.format("-9"), HEADER, FRAME, WRAPPER).reason == "worker-killed"
    assert verdict(*SERVE, line, *["INFO:     x"] * 501, DIED.format("None"), FATAL).reason == "worker-killed"


def test_an_error_of_a_request_does_not_explain_a_later_death():
    request = "(APIServer pid=1) ERROR 05-11 04:03:18 [serving.py:1] FileNotFoundError: No such file or directory: '/lora/a.safetensors'"
    assert verdict(*SERVE, request, DIED.format("-9"), FATAL).reason == "worker-killed"


def test_the_frames_of_one_worker_do_not_explain_another_ones_error():
    def logged(pid, text):
        return f"(Worker_TP{pid} pid={pid}) ERROR 05-11 04:03:18 [x.py:1] {text}"

    shm = '  File "/usr/lib/python3.12/multiprocessing/shared_memory.py", line 129, in __init__'
    lines = [logged(1, HEADER), logged(2, HEADER), logged(1, shm), logged(2, FRAME)]
    full = "OSError: [Errno 28] No space left on device"
    assert verdict(*LOAD, *lines, logged(2, full)).reason == "disk-full"
    assert verdict(*LOAD, *lines, logged(1, full)).reason == "shm-too-small"


def test_a_bare_line_of_a_process_without_a_traceback_is_text():
    lines = ["(Worker_TP1 pid=1) " + HEADER, "(Worker_TP1 pid=1) " + FRAME]
    assert verdict(*LOAD, *lines, "(Worker_TP2 pid=2) MemoryError: was in the prompt").reason == "healthy"


def test_a_traceback_that_is_glued_to_an_unfinished_bar_is_one():
    bar = "Capturing CUDA graphs (PIECEWISE):   0%|          | 0/7 [00:00<00:07,  1.00it/s]"
    full = "OSError: [Errno 28] No space left on device: '/var/cache/vllm/x'"
    assert verdict(*LOAD, bar + HEADER, FRAME, full).reason == "disk-full"
    assert verdict(*LOAD, "somebody wrote " + HEADER, FRAME, full).reason != "disk-full"
