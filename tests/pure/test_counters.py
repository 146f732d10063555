"""The light read of the engine's page, with the official parser as the judge."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vllm_supervisor.core.counters import OLD_NAMES, EngineCounters, read_counters

CORPUS = sorted((Path(__file__).parents[1] / "corpus" / "metrics").glob("*.txt"))


def series(text, name):
    """All series of a name."""
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return [one for one in samples if one.name == name]


def oracle(text, *names):
    """The sum over all series of the first name that the page has."""
    for name in names:
        if found := series(text, name):
            return sum(one.value for one in found)
    return None


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_it_reads_what_the_official_parser_reads(path):
    text = path.read_text()
    got = read_counters(text)
    assert got.counted
    assert got.generation_tokens == oracle(text, "vllm:generation_tokens_total") > 0
    assert got.prompt_tokens == oracle(text, "vllm:prompt_tokens_total") > 0
    assert got.running == oracle(text, "vllm:num_requests_running")
    assert got.waiting == oracle(text, "vllm:num_requests_waiting")
    usage = [one.value for one in series(text, "vllm:kv_cache_usage_perc")]
    assert (got.kv_usage_max, got.kv_usage_mean) == (max(usage), sum(usage) / len(usage))
    assert got.iterations == oracle(text, "vllm:iteration_tokens_total_count") > 0
    assert got.preemptions == oracle(text, "vllm:num_preemptions_total")
    assert got.finished == oracle(text, "vllm:request_success_total") > 0
    every = {one.labels["engine"]: one.value for one in series(text, "vllm:generation_tokens_total")}
    begun = {one.labels["engine"]: one.value for one in series(text, "vllm:generation_tokens_created")}
    assert {label: one.generation_tokens for label, one in got.engines.items()} == every
    assert {label: one.created for label, one in got.engines.items()} == {label: begun.get(label) for label in every}
    for name, full in (("running", "vllm:num_requests_running"), ("finished", "vllm:request_success_total")):
        of = {label: sum(s.value for s in series(text, full) if s.labels["engine"] == label) for label in every}
        assert {label: getattr(one, name) for label, one in got.engines.items()} == of


def test_two_engines_behind_two_api_servers_as_they_are():
    text = (CORPUS[0].parent / "vllm-0.32-cpu-dp2-two-api-servers.txt").read_text()
    got = read_counters(text)
    assert (len(got.engines), got.generation_tokens, got.prompt_tokens, got.finished) == (2, 154.0, 164.0, 8.0)
    assert [(one.generation_tokens, one.prompt_tokens, one.finished) for one in got.engines.values()] == [
        (66.0, 71.0, 4.0),
        (88.0, 93.0, 4.0),
    ]
    assert got.kv_cache_tokens == 2 * 2_097_152
    # Several API servers share their figures by files: no process tells when its counters began.
    assert got.created is None
    assert not series(text, "process_start_time_seconds")


def test_an_engine_that_was_stopped_under_load_beside_one_that_has_nothing_left_to_do():
    # The core of engine 1 got SIGSTOP; 14 s later engine 0 had finished its requests.
    text = (CORPUS[0].parent / "vllm-0.32-cpu-dp2-one-stopped.txt").read_text()
    got = {label: (one.running, one.generation_tokens) for label, one in read_counters(text).engines.items()}
    assert got == {"0": (0.0, 16009.0), "1": (2.0, 4441.0)}


def test_there_is_a_page_to_read():
    assert CORPUS


def test_size_of_the_cache_comes_from_the_labels_of_the_information():
    text = (CORPUS[0].parent / "vllm-0.24-gpu-tp2.txt").read_text()
    assert read_counters(text).kv_cache_tokens == 21658368.0


def test_several_engines_are_summed_and_their_usage_is_mean_and_maximum():
    page = b"""\
vllm:generation_tokens_total{engine="0",model_name="kimi"} 5.0
vllm:generation_tokens_total{engine="1",model_name="kimi"} 15.0
vllm:kv_cache_usage_perc{engine="0",model_name="kimi"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="kimi"} 0.6
vllm:cache_config_info{engine="0",kv_cache_size_tokens="1048576",num_gpu_blocks="16384"} 1.0
vllm:cache_config_info{engine="1",kv_cache_size_tokens="1048576",num_gpu_blocks="16384"} 1.0
"""
    got = read_counters(page)
    assert (got.generation_tokens, list(got.engines), got.kv_cache_tokens) == (20.0, ["0", "1"], 2097152.0)
    assert [(one.generation_tokens, one.kv_usage_mean) for one in got.engines.values()] == [(5.0, 0.2), (15.0, 0.6)]
    assert (got.kv_usage_mean, got.kv_usage_max) == (pytest.approx(0.4), 0.6)


@pytest.mark.parametrize(
    "name", [r"a\"b", r"a\\", r"a\nb", "a}b", "a{b,c", 'vllm:x 3"'.replace('"', r"\""), r"engine=\"7\""]
)
def test_no_model_name_confuses_it(name):
    text = f'vllm:generation_tokens_total{{model_name="{name}",engine="0"}} 7.0 1700000000000\n'
    assert oracle(text, "vllm:generation_tokens_total") == 7.0
    got = read_counters(text)
    assert (got.generation_tokens, list(got.engines)) == (7.0, ["0"])


def test_names_that_only_begin_alike_are_left_alone():
    page = (
        "# HELP vllm:generation_tokens_total vllm:generation_tokens_total 9\n"
        'vllm:prompt_tokens_by_source_total{source="local_compute"} 3\n'
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 3\n'
        'vllm:iteration_tokens_total_bucket{le="+Inf"} 3\n'
        "xvllm:generation_tokens_total 3\n"
        " vllm:generation_tokens_total 3\n"
    )
    assert read_counters(page) == EngineCounters()


@pytest.mark.parametrize(("old", "new"), [pair for pair in OLD_NAMES.items() if pair[1] == "vllm:kv_cache_usage_perc"])
def test_an_old_name_is_read_and_never_counted_beside_the_new_one(old, new):
    assert read_counters(f'{old}{{engine="0"}} 0.5\n').kv_usage_mean == 0.5
    both = read_counters(f'{old}{{engine="0"}} 0.5\n{new}{{engine="0"}} 0.7\n')
    assert (both.kv_usage_mean, both.kv_usage_max) == (0.7, 0.7)


def test_an_engine_that_does_not_count_is_told_from_one_at_zero():
    assert not read_counters("process_open_fds 61.0\n").counted
    assert read_counters("vllm:generation_tokens_total 0.0\n").counted


@pytest.mark.parametrize("value", ["NaN", "+Inf", "None", "-"])
def test_what_is_not_a_number_is_not_there(value):
    assert read_counters(f"vllm:num_requests_running {value}\n").running is None


def test_a_page_that_is_no_page_gives_nothing():
    assert read_counters(b"<html>\xff502 Bad Gateway</html>") == EngineCounters()
