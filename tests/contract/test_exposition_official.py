"""Whatever the readings are, the official parser reads them from our page as they were."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.snapshots import CARDS, FULL, parsed
from vllm_supervisor.adapters.exposition import render
from vllm_supervisor.core.gpu import GpuReport, GpuTable
from vllm_supervisor.core.gpu_records import advance
from vllm_supervisor.core.metrics import METRICS, Snapshot
from vllm_supervisor.core.readings import readings


def same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


def survives(snapshot):
    expected = {
        (metric.full_name, tuple(sorted(zip(metric.labels, labels, strict=True)))): float(value)
        for metric, series in readings(snapshot)
        for labels, value in series
    }
    read = parsed(render(snapshot))
    assert read.keys() == expected.keys()
    assert not {key: (read[key], value) for key, value in expected.items() if not same(read[key], value)}


def test_every_metric_of_the_table_is_on_the_page():
    assert {metric.name for metric, _ in readings(FULL)} == METRICS.keys(), "a metric without a reading"
    survives(FULL)


VALUE, TEXT = st.floats(), st.text()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(figure=VALUE, text=TEXT, shares=st.dictionaries(TEXT, VALUE, max_size=3), count=st.integers(0))
def test_whatever_the_readings_are_the_parser_finds_them(figure, text, shares, count):
    card = replace(CARDS[0], uuid=text, name=text, power_watts=figure, pcie_replays=count, clocks_hertz=shares)
    survives(
        Snapshot(
            phase=text,
            version=text,
            load_eta_seconds=figure,
            phase_seconds=shares,
            starts_total={text: count},
            failures_total={(text, text): count},
            gpu=advance(GpuTable(), GpuReport(1.0, 1.8e9, True, "", (card,))),
        )
    )
