"""The table of GPUs over reports: what adds up, what vanishes, what is never forgotten."""

from vllm_supervisor.core.gpu import GpuLost, GpuReport, GpuSample, GpuTable
from vllm_supervisor.core.gpu_records import advance, aged

A = GpuSample(0, "GPU-a", "card")
B = GpuSample(1, "GPU-b", "card")


def report(*samples, at=1.0, ok=True, error="", lost=(), xids=()):
    return GpuReport(at, 1000.0 + at, ok, error, samples, tuple(lost), tuple(xids))


def fold(*reports):
    table = GpuTable()
    for one in reports:
        table = advance(table, one)
    return table


def by_uuid(table):
    return {record.uuid or record.index: record for record in table.records}


def test_samples_are_counted_and_dated_by_gpu():
    table = fold(report(A, B, at=1), report(A, B, at=2))
    assert table.samples == (A, B)
    assert by_uuid(table)["GPU-b"].samples == {"ok": 2, "failed": 0}
    assert by_uuid(table)["GPU-b"].last_sample == 1002.0


def test_a_lost_gpu_stays_known_and_is_down():
    table = fold(report(A, B), report(A, at=2, lost=[GpuLost(1, "GPU-b", "card", "lost")]))
    gone = by_uuid(table)["GPU-b"]
    assert (gone.up, gone.samples, gone.last_sample) == (False, {"ok": 1, "failed": 1}, 1001.0)
    assert table.samples == (A,)
    assert [one.reason for one in table.lost] == ["lost"]


def test_a_gpu_that_is_not_listed_any_more_is_missing_even_when_numbers_shift():
    table = fold(report(A, B), report(GpuSample(0, "GPU-b", "card"), at=2))
    assert table.lost == (GpuLost(0, "GPU-a", "card", "missing"),)
    assert by_uuid(table)["GPU-b"].up
    assert by_uuid(table)["GPU-b"].index == 0


def test_a_fresh_helper_that_does_not_know_the_lost_gpu_gives_it_no_second_name():
    table = fold(report(A, B), report(A, at=2, lost=[GpuLost(1, "", "", "lost")]))
    assert table.lost == (GpuLost(1, "GPU-b", "card", "lost"),)
    assert set(by_uuid(table)) == {"GPU-a", "GPU-b"}


def test_a_gpu_lost_from_the_beginning_gets_its_name_when_it_comes_back():
    lost = report(A, lost=[GpuLost(1, "", "", "lost")], xids=[(1, 79)])
    assert by_uuid(fold(lost))[1].up is False
    table = fold(lost, report(A, B, at=2))
    assert set(by_uuid(table)) == {"GPU-a", "GPU-b"}
    assert by_uuid(table)["GPU-b"].xid_errors == {79: 1}


def test_xid_events_add_up_by_gpu_and_number_also_while_lost():
    table = fold(
        report(A, B, xids=[(1, 94), (1, 94)]),
        report(A, at=2, lost=[GpuLost(1, "GPU-b", "card", "lost")], xids=[(1, 79)]),
        report(A, B, at=3),
    )
    assert by_uuid(table)["GPU-b"].xid_errors == {94: 2, 79: 1}
    assert by_uuid(table)["GPU-a"].xid_errors == {}


def test_when_nvml_fails_as_a_whole_no_reading_stays_and_nobody_is_called_missing():
    table = fold(report(A, B), report(at=2, ok=False, error="NVML: Driver Not Loaded"))
    assert (table.ok, table.samples, table.lost, table.error) == (False, (), (), "NVML: Driver Not Loaded")
    assert [record.up for record in table.records] == [False, False]


def test_a_table_ages():
    table = fold(report(A, at=10))
    assert aged(table, 15.0, 5.0) is table
    old = aged(table, 15.1, 5.0)
    assert (old.samples, old.ok, old.error) == ((), False, "no sample for 5 s")
    assert not old.records[0].up
