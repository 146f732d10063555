"""What a manifest says of later differences."""

import pytest

from vllm_supervisor.core.manifest import ManifestError, differences, manifest, read_manifest

PARTS = {
    "versions": {"vllm": "0.32.0", "torch": "2.13.0", "driver": "590.1"},
    "packages": {"torch": "2.13.0", "anyio": "4.0"},
    "configuration": {"/etc/kimi.toml": "aa"},
    "units": {},
    "checkpoint": {"config.json": {"size": 10, "sha256": "ab"}, "1.safetensors": {"size": 99, "modified": 5}},
    "gpus": {},
    "last_start": {"ready_after_s": 523.0, "figures": {"weights_gib": 70.81, "kv_cache_dtype": "auto"}},
}
BEFORE = manifest("kimi", "2026-01-01T00:00:00Z", stopped=True, parts=PARTS)


def test_nothing_differs_from_itself():
    assert differences(BEFORE, PARTS) == []


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"versions": {**PARTS["versions"], "driver": "600"}}, "versions: driver is 600, it was 590.1"),
        ({"packages": {"torch": "2.13.0"}}, "packages: anyio is gone (it was 4.0)"),
        ({"configuration": {"/etc/kimi.toml": "bb"}}, "configuration: /etc/kimi.toml is bb, it was aa"),
        ({"units": {"/run/x.conf": "1"}}, "units: /run/x.conf is new (1)"),
        (
            {"checkpoint": {**PARTS["checkpoint"], "1.safetensors": {"size": 98, "modified": 5}}},
            "checkpoint: 1.safetensors is [size 98, modified 5], it was [size 99, modified 5]",
        ),
        ({"last_start": {"ready_after_s": 900.0}}, "last_start: it took 15 min, it was 8 min 43 s"),
        ({"last_start": {"figures": {"kv_cache_dtype": "fp8"}}}, "last_start: kv_cache_dtype is fp8, it was auto"),
        ({"last_start": {"ready_after_s": 700.0}}, None),
    ],
)
def test_each_difference_is_a_line(part, told):
    assert differences(BEFORE, {**PARTS, **part}) == ([told] if told else [])


@pytest.mark.parametrize("found", [None, [], {}, {"instance": "kimi"}, {"instance": "kimi", "format": 99}])
def test_what_is_no_manifest_is_said(found):
    with pytest.raises(ManifestError):
        read_manifest(found)


@pytest.mark.parametrize(("old", "new", "told"), [(0.6, 2.0, 0), (0.6, 12.0, 1), (523.0, 700.0, 0), (523.0, 900.0, 1)])
def test_a_start_that_is_seconds_longer_is_as_long_as_before(old, new, told):
    assert len(differences({"last_start": {"ready_after_s": old}}, {"last_start": {"ready_after_s": new}})) == told
