"""Our writer of the text format against the official client, which checks every name and label anew."""

import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from contract.snapshots import CARDS, FULL, SNAPSHOT, parsed
from vllm_supervisor.adapters.exposition import render
from vllm_supervisor.core.gpu import GpuReport, GpuTable
from vllm_supervisor.core.gpu_records import advance
from vllm_supervisor.core.metrics import METRICS, Kind, Snapshot
from vllm_supervisor.core.readings import readings


class Collector:
    """The readings of a snapshot for the official client."""

    def __init__(self, snapshot):
        self.snapshot = snapshot

    def collect(self):
        for metric, series in readings(self.snapshot):
            family = (CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily)(
                metric.full_name, metric.help, labels=metric.labels
            )
            for labels, value in series:
                family.add_metric(labels, value)
            yield family


def official(snapshot):
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(snapshot))
    return generate_latest(registry)


def agree(snapshot):
    """Heads line by line; values as the official parser reads both, NaN being what it is not."""
    ours, theirs = render(snapshot), official(snapshot)
    assert [line for line in ours.splitlines() if line.startswith(b"#")] == [
        line for line in theirs.splitlines() if line.startswith(b"#")
    ]
    read, expected = ({key: repr(value) for key, value in parsed(page).items()} for page in (ours, theirs))
    assert read == expected
    # In the same order, every one once.
    names = [re.findall(rb"^(vllm_\w+)", page, re.MULTILINE) for page in (ours, theirs)]
    assert names[0] == names[1]


def test_the_page_says_what_the_official_client_would_say():
    agree(SNAPSHOT)
    every = {metric.name for metric, _ in readings(FULL)}
    assert every == METRICS.keys(), "a metric without a reading is not compared"
    agree(FULL)


VALUE, TEXT = st.floats(), st.text()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(figure=VALUE, text=TEXT, shares=st.dictionaries(TEXT, VALUE, max_size=3), count=st.integers(0))
def test_whatever_the_readings_are_the_official_client_agrees(figure, text, shares, count):
    card = replace(CARDS[0], uuid=text, name=text, power_watts=figure, pcie_replays=count, clocks_hertz=shares)
    agree(
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
