"""The GPU helper as a process: what it prints, what it costs, and when it ends."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fake.gpu_helper import DEADLINE, Helper
from fake.gpus import FakeGpus
from vllm_supervisor.adapters.gpu_stream import helper_command

LARGEST = 20 << 20
"""Bytes resident, of a budget of 100 MB for daemon and helper together."""


@pytest.fixture
def gpus(tmp_path):
    return FakeGpus(tmp_path)


@pytest.mark.parametrize(
    ("call", "gone"),
    [
        ("nvmlDeviceGetMemoryInfo", {"memory_used_bytes", "memory_total_bytes"}),
        ("nvmlDeviceGetComputeRunningProcesses", {"processes"}),
        ("nvmlDeviceGetUtilizationRates", {"utilization_ratio"}),
        ("nvmlDeviceGetPowerUsage", {"power_watts"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_watts"}),
        ("nvmlDeviceGetTemperature", {"temperature_celsius"}),
        ("nvmlDeviceGetClockInfo", {"clocks_hertz"}),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"throttled"}),
        ("nvmlDeviceGetTotalEccErrors", {"ecc_errors"}),
        ("nvmlDeviceGetRemappedRows", {"remapped_rows"}),
        ("nvmlDeviceGetCurrPcieLinkGeneration", {"pcie_link_generation"}),
        ("nvmlDeviceGetCurrPcieLinkWidth", {"pcie_link_width"}),
        ("nvmlDeviceGetMaxPcieLinkGeneration", {"pcie_link_generation_max"}),
        ("nvmlDeviceGetMaxPcieLinkWidth", {"pcie_link_width_max"}),
        ("nvmlDeviceGetPcieReplayCounter", {"pcie_replays"}),
        ("nvmlDeviceGetMigMode", {"mig"}),
    ],
)
@pytest.mark.parametrize("code", [3, 999], ids=["not supported", "unknown error"])
def test_a_call_that_fails_takes_only_its_own_fields(gpus, call, gone, code):
    gpus.card(1, errors={call: code})
    with Helper(gpus.environment) as helper:
        whole, other = json.loads(helper.line())["samples"][:2]
    assert whole.keys() - other.keys() == gone
    assert all(value is not None for value in other.values())


def test_a_refused_call_is_not_asked_again_but_a_failed_one_is(gpus):
    gpus.card(0, errors={"nvmlDeviceGetTemperature": 3, "nvmlDeviceGetPowerUsage": 999})
    with Helper(gpus.environment) as helper:
        assert helper.report().samples[0].power_watts is None
        gpus.card(0, errors={})
        report = helper.until(lambda r: r.samples[0].power_watts is not None)
        assert report.samples[0].temperature_celsius is None


def test_a_partitioned_card_shows_the_processes_of_its_partitions(gpus):
    mine = os.getpid()
    gpus.card(0, mig=[[[mine, 100]], None, [[mine, 20], [1, 3]]])
    with Helper(gpus.environment) as helper:
        card = helper.report().samples[0]
    assert card.mig is True
    assert card.processes == ((1, 3), (mine, 120))
    assert card.memory_total_bytes


def test_one_hidden_size_hides_the_sum(gpus):
    gpus.card(0, mig=[[[os.getpid(), None]], [[os.getpid(), 20]]])
    with Helper(gpus.environment) as helper:
        assert helper.report().samples[0].processes == ((os.getpid(), None),)


def test_pids_of_another_namespace_are_hidden_pids(gpus):
    gpus.card(0, processes=[[4194305, 70 << 30]])  # beyond the highest pid that Linux gives
    gpus.card(1, processes=[[4194305, 70 << 30], [os.getpid(), 5]])
    with Helper(gpus.environment) as helper:
        cards = helper.report().samples
    assert cards[0].processes is None
    assert cards[1].processes == ((os.getpid(), 5), (4194305, 70 << 30))


def test_xid_events_are_told_once_with_their_card(gpus):
    gpus.write(xid=[[1, 2, 94], [2, 7, 79]])
    with Helper(gpus.environment) as helper:
        told = [event for _ in range(20) for event in helper.report().xid_events]
    assert sorted(told) == [(2, 94), (7, 79)]


def test_cards_without_events_are_read_all_the_same(gpus):
    for index in range(8):
        gpus.card(index, errors={"nvmlDeviceRegisterEvents": 3})
    gpus.write(errors={"nvmlEventSetWait_v2": 3})
    with Helper(gpus.environment) as helper:
        assert all(len(helper.report().samples) == 8 for _ in range(5))


def test_a_card_lost_before_the_start_is_told_by_number(gpus):
    gpus.card(6, lost=True)
    with Helper(gpus.environment) as helper:
        report = helper.report()
    assert [(gone.index, gone.uuid, gone.reason) for gone in report.lost] == [(6, "", "lost")]
    assert len(report.samples) == 7


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"errors": {"nvmlDeviceGetCount": 999}}, "NVML: Unknown Error"),
        ({"errors": {"nvmlInit": 18}}, "NVML: RM has detected an NVML/RM version mismatch."),
        ({"gpus": []}, "NVML sees no GPU"),
        ({"gpus": [{"errors": {"nvmlDeviceGetHandleByIndex": 999}}]}, "Unknown Error"),
    ],
)
def test_when_nvml_as_a_whole_fails_it_says_why_and_ends(gpus, changes, error):
    gpus.write(**changes)
    with Helper(gpus.environment) as helper:
        report = helper.until(lambda r: not r.ok)
        assert report.error == error
        assert helper.process.wait(DEADLINE) == 3
        assert helper.process.stderr.read() == b""


def test_it_ends_when_its_reader_is_gone(gpus):
    with Helper(gpus.environment, period=3600) as helper:
        helper.report()
        helper.process.stdout.close()
        assert helper.process.wait(DEADLINE) == 0
        assert helper.process.stderr.read() == b""


def test_it_ends_when_its_reader_is_gone_while_a_call_hangs(gpus):
    with Helper(gpus.environment, period=3600) as helper:
        helper.report()
        gpus.card(0, hang=["nvmlDeviceGetPowerUsage"])
        helper.process.stdout.close()
        assert helper.process.wait(DEADLINE) == 0


PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([str(os.getpid()) if one == "PID" else one for one in sys.argv[1:]])
print(child.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_parent_even_if_somebody_else_still_reads(gpus):
    command = ["PID" if one == str(os.getpid()) else one for one in helper_command(3600)]
    with Helper(gpus.environment, command=[sys.executable, "-c", PARENT, *command]) as parent:
        child = os.pidfd_open(int(parent.process.stderr.readline()))
        try:
            assert parent.report().ok
            parent.process.send_signal(signal.SIGKILL)
            assert select.select([child], [], [], DEADLINE)[0], "the helper outlives its parent"
        finally:
            os.close(child)


def test_it_does_not_begin_for_a_parent_that_is_not_there(gpus):
    command = [argument if argument != str(os.getpid()) else "1" for argument in helper_command(0.02)]
    with Helper(gpus.environment, command=command) as helper:
        assert helper.process.wait(DEADLINE) == 0
        assert helper.process.stdout.read() == b""


def test_it_is_small_and_cheap(gpus):
    with Helper(gpus.environment) as helper:
        helper.report()
        before = _cpu(helper.process.pid)
        for _ in range(100):
            helper.report()
        spent = _cpu(helper.process.pid) - before
        assert int(helper.status("VmHWM")) * 1024 < LARGEST
        assert spent / 100 < 0.010, "a report a second costs more than one percent of a core"


def _cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_it_imports_nothing_heavy(gpus):
    loaded = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            (
                "import sys, vllm_supervisor.adapters.nvml.__main__, pynvml\n"
                "print(*(sys.modules.keys() & {'asyncio', 'dataclasses', 'inspect', 'typing', 'pathlib', 'logging'}))"
            ),
        ],
        env={key: value for key, value in gpus.environment.items() if key != "PYTHONPATH"}
        | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    assert loaded.stdout.split() == []


def test_the_real_binding_is_understood():
    """With the real pynvml: on a machine with GPUs a sample, elsewhere one sentence that says why not."""
    with Helper(dict(os.environ)) as helper:
        report = helper.report()
        if Path("/dev/nvidiactl").exists():
            assert report.ok
            assert all(sample.memory_total_bytes for sample in report.samples)
        else:
            assert report.error == "NVML: NVML Shared Library Not Found"
        assert int(helper.status("VmHWM") if report.ok else 0) * 1024 < LARGEST
