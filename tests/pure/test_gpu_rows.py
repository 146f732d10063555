"""What people see of each GPU: none that is there, or was, is left out."""

from vllm_supervisor.core.gpu import GpuLost, GpuReport, GpuSample, GpuTable
from vllm_supervisor.core.gpu_records import advance, aged
from vllm_supervisor.core.gpu_rows import gpu_rows
from vllm_supervisor.core.plain import status_lines

A = GpuSample(0, "GPU-a", "card", memory_used_bytes=100, memory_total_bytes=200, processes=((7, 60), (8, 40)))
B = GpuSample(1, "GPU-b", "card", power_watts=90.0)
BOTH = GpuReport(1.0, 1001.0, True, "", (A, B))


def table(*reports):
    found = GpuTable()
    for report in reports:
        found = advance(found, report)
    return found


def test_a_gpu_that_is_read_has_its_readings():
    first, second = gpu_rows(table(BOTH), frozenset({7}))
    assert (first["memory_used_bytes"], first["engine_bytes"]) == (100, 60)
    assert (second["power_watts"], second["memory_total_bytes"]) == (90.0, None)
    assert "trouble" not in first | second


def test_a_lost_gpu_keeps_its_row_in_its_place_and_says_why():
    lost = table(BOTH, GpuReport(2.0, 1002.0, True, "", (B,), (GpuLost(0, "GPU-a", "card", "lost"),)))
    first, second = gpu_rows(lost, frozenset())
    assert first == {"index": 0, "name": "card", "trouble": "lost: it fell off the bus"}
    assert second["power_watts"] == 90.0


def test_words_of_the_driver_stand_as_they_are():
    odd = table(BOTH, GpuReport(2.0, 1002.0, True, "", (B,), (GpuLost(0, "GPU-a", "card", "Unknown Error"),)))
    assert gpu_rows(odd, frozenset())[0]["trouble"] == "Unknown Error"


def test_when_the_driver_does_not_answer_every_gpu_says_so():
    silent = table(BOTH, GpuReport(2.0, 1002.0, ok=False, error="NVML: Driver Not Loaded"))
    assert [row["trouble"] for row in gpu_rows(silent, frozenset())] == ["NVML: Driver Not Loaded"] * 2
    assert [row["trouble"] for row in gpu_rows(aged(table(BOTH), 11.0), frozenset())] == ["no sample for 10 s"] * 2


def test_nothing_known_is_no_row():
    assert gpu_rows(GpuTable(), frozenset()) == []


def test_the_terminal_names_a_gpu_that_cannot_be_read():
    from lab.situations import degraded

    lines = status_lines(degraded(), 0.0)
    assert "GPU 5      cannot be read: lost: it fell off the bus" in lines
    assert [line.split() for line in lines if line.startswith("5 ")] == [["5", *["-"] * 6]]
