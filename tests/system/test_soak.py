"""Three minutes of `make soak`: load, and a fault every minute."""

from __future__ import annotations

import pytest

from soak import soak
from system.service import Service

pytestmark = pytest.mark.timeout(1500)
MINUTES = 3.0
SEED = 17
"""One whose first two faults are of both kinds: the engine survives the first one, and is started again after the second."""


@pytest.mark.usefixtures("engine", "tiny_model")
def test_three_minutes_of_load_and_faults(service: Service) -> None:
    report = soak.Report(MINUTES, SEED)
    soak.run(service, report)
    assert report.good, report
    assert {fault["fault"] in soak.FATAL for fault in report.faults} == {True, False}, report
    assert report.load[0]["counts"]["short answered"] > 0, report
