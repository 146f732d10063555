"""For which engine what is read ahead, in which order; and the sentence for every case in which nothing is."""

import pytest

from vllm_supervisor.core.engineflags import effective
from vllm_supervisor.core.plan.sizes import GIB
from vllm_supervisor.core.readahead.amounts import parse_amount
from vllm_supervisor.core.readahead.order import (
    WORKER_BYTES,
    Order,
    chosen,
    from_line,
    in_load_order,
    index_name,
    order_for,
    to_line,
    unwanted,
)


@pytest.mark.parametrize(
    ("text", "count"), [("64GiB", 64 * GIB), ("1.5 TiB", 3 << 39), ("500MB", 500_000_000), ("7B", 7), ("2 kB", None)]
)
def test_a_size_has_a_unit(text, count):
    if count is None:
        with pytest.raises(ValueError, match='such as "64GiB"'):
            parse_amount(text)
    else:
        assert parse_amount(text) == count


def order(setting="auto", device="cuda", version=(0, 32, 0), command=("vllm", "serve"), **options):
    args = {name.replace("_", "-"): value for name, value in options.items()}
    return order_for("/m", effective(command, args), setting, device=device, version=version)


def test_an_ordinary_engine_is_read_ahead_for():
    found = order(tensor_parallel_size=8, cpu_offload_gb=2)
    assert found == Order("/m", engine_bytes=8 * (WORKER_BYTES + 2 * GIB))
    assert from_line(to_line(found)) == found


def test_of_several_machines_only_the_workers_of_this_one_count():
    assert order(tensor_parallel_size=8, nnodes=2).engine_bytes == 4 * WORKER_BYTES
    assert order(nnodes=2).engine_bytes == WORKER_BYTES


def test_without_a_gpu_the_weights_stay_in_memory():
    assert order(device="cpu").weights_stay


def test_a_size_bounds_the_reading_and_is_an_order():
    found = order("64GiB", load_format="runai_streamer")
    assert (found.limit_bytes, found.forced) == (64 * GIB, True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"load_format": "dummy"}, "no weights"),
        ({"load-format": "ipc_cache"}, "processes that hold them"),
        ({"load_format": "modelexpress"}, "replica"),
        ({"load_format": "instanttensor"}, "directly"),
        ({"load_format": "runai_streamer"}, "by itself"),
        ({"load_format": "tensorizer"}, "by itself"),
        ({"load_format": "fastsafetensors"}, "GPUDirect"),
        ({"load_format": "my_plugin"}, "my_plugin reads is not known"),
        ({"command": ("vllm", "serve", "--load-format=dummy")}, "no weights"),
    ],
)
def test_some_loaders_are_left_alone_with_a_reason(options, word):
    assert word in order(**options)


def test_off_is_off():
    assert order("off") == "load.readahead is off"


def test_a_size_helps_nobody_who_reads_no_files():
    assert "no weights" in order("64GiB", load_format="dummy")


def test_fastsafetensors_of_several_workers_reads_through_the_page_cache():
    assert order(load_format="fastsafetensors", tensor_parallel_size=2).load_format == "fastsafetensors"


def test_a_multithreaded_loader_takes_the_order_of_the_directory():
    assert order(model_loader_extra_config='{"enable_multithread_load": true}').unordered
    assert not order(model_loader_extra_config='{"enable_multithread_load": "x"').unordered


@pytest.mark.parametrize("value", ["many", [], True, 1 << 40])
def test_options_that_make_no_sense_are_the_engines_affair(value):
    assert order(tensor_parallel_size=value).engine_bytes == WORKER_BYTES


def test_an_order_of_another_version_is_refused():
    for line in (b"{}", b"[]", b'{"model": "/m", "colour": 1}', b"x"):
        with pytest.raises(ValueError):
            from_line(line)


def test_shards_come_in_the_order_in_which_the_engine_loads_them():
    names = ["model-10.safetensors", "model-9.safetensors", "a-1.safetensors", "1.safetensors"]
    assert in_load_order(names) == ["1.safetensors", "a-1.safetensors", "model-9.safetensors", "model-10.safetensors"]


@pytest.mark.parametrize(
    ("names", "load_format", "files"),
    [
        (["b.safetensors", "a.safetensors", "c.bin", "x.json"], "auto", ["b.safetensors", "a.safetensors"]),
        (["c.bin", "optimizer.bin", "y.pt"], "auto", ["c.bin"]),
        (["y.pt", "scheduler.pt"], "auto", ["y.pt"]),
        (["consolidated.safetensors", "model.safetensors"], "auto", ["consolidated.safetensors"]),
        (["consolidated.safetensors", "model.safetensors"], "hf", ["consolidated.safetensors", "model.safetensors"]),
        (["c.bin"], "safetensors", []),
        (["c.bin", "y.pt"], "pt", ["y.pt"]),
    ],
)
def test_the_files_are_those_that_the_loader_takes(names, load_format, files):
    assert chosen(names, load_format) == files


def test_mistral_has_an_index_of_its_own():
    assert index_name("auto", ["consolidated-1.safetensors"]).startswith("consolidated")
    assert index_name("auto", ["model.safetensors"]) == "model.safetensors.index.json"


def test_file_systems_that_need_nothing():
    plain, forced = Order("/m"), Order("/m", limit_bytes=1, forced=True)
    assert "already (tmpfs)" in unwanted(plain, "tmpfs")
    assert "already" in unwanted(forced, "tmpfs")
    assert "by itself" in unwanted(plain, "nfs4")
    assert "by itself" in unwanted(Order("/m", strategy="prefetch"), "lustre")
    assert unwanted(forced, "nfs4") == ""
    assert unwanted(Order("/m", strategy="lazy"), "nfs4") == ""
    assert unwanted(Order("/m", prefetches=False), "nfs4") == ""
    assert unwanted(plain, "nfs4", fits=False) == ""
    assert "by itself" in unwanted(Order("/m", strategy="prefetch"), "nfs4", fits=False)
    assert unwanted(plain, "ext4") == unwanted(plain, "fuse.sshfs") == unwanted(plain, "") == ""
