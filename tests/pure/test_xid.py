import pytest

from vllm_supervisor.core import xid
from vllm_supervisor.core.causes import REASONS, CauseClass


@pytest.mark.parametrize(
    ("number", "slug"),
    [
        (79, "gpu-lost"),
        (48, "gpu-fault"),
        (64, "gpu-fault"),
        (94, "gpu-fault"),
        (95, "gpu-fault"),
        (119, "gpu-fault"),
        (120, "gpu-fault"),
        (74, "nvlink-fault"),
        (13, "cuda-fault"),
        (31, "cuda-fault"),
        (43, None),
        (45, None),
        (63, None),
        (92, None),
        (154, None),
        (99999, None),
    ],
)
def test_an_xid_names_the_cause_that_it_proves(number, slug):
    assert xid.lookup(number).slug == slug
    assert xid.lookup(number).meaning


def test_every_slug_of_the_catalogue_exists_and_hardware_is_hardware():
    for entry in xid.CATALOGUE.values():
        if entry.slug:
            assert (REASONS[entry.slug] is CauseClass.HARDWARE) is (entry.slug in xid.HARDWARE)
