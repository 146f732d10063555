"""The sentences of STATUS=, word for word: operators and their scripts read them."""

from dataclasses import replace

import pytest

from pure.start import BUSY, Start, draining, gone, launched, loading, reach, ready
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.eta import bar_left, last_load, launched_at, ratio, start_left
from vllm_supervisor.core.facts import Figure, FigureName, PhaseSeen, Progress
from vllm_supervisor.core.phases import Phase
from vllm_supervisor.core.policy import Policy
from vllm_supervisor.core.retry import PastStart
from vllm_supervisor.core.status import LIMIT, sentence
from vllm_supervisor.core.words import ascii_only, duration, size

STOP = ev.StopRequested("SIGTERM")
HISTORY = Policy(expected={Phase.LOADING_WEIGHTS: 500.0, Phase.COMPILING: 60.0, Phase.VERIFYING: 20.0})


def shards(done, total=119):
    return ev.Output((Progress(Phase.LOADING_WEIGHTS, done, total),))


def say(start, **more):
    return sentence(start.state, start.now, **more)


def half_loaded(policy=None):
    return loading(Phase.LOADING_WEIGHTS, policy).do(shards(0)).do(shards(54), after=200.0)


def test_before_the_engine():
    assert say(Start()) == "Checking configuration, checkpoint and GPUs"
    policy = Policy(wait_s=20.0, attempt=2, last_reason="nccl-error: ring broke")
    start = Start(policy).do(ev.Begin()).wait(5.0)
    assert say(start) == "Waiting 15 s before attempt 2 of 5; the last one failed: nccl-error: ring broke"


@pytest.mark.parametrize(
    ("phase", "title"),
    [
        (Phase.CONFIGURING, "Reading the configuration"),
        (Phase.CONNECTING, "Connecting the workers"),
        (Phase.LOADING_WEIGHTS, "Loading weights"),
        (Phase.COMPILING, "Compiling and profiling"),
        (Phase.SIZING_KV_CACHE, "Sizing the KV cache"),
        (Phase.CAPTURING_GRAPHS, "Capturing CUDA graphs"),
        (Phase.STARTING_SERVER, "Starting the server"),
        (Phase.VERIFYING, "Waiting for the first answer"),
    ],
)
def test_a_phase_without_history_says_what_it_knows_and_no_more(phase, title):
    start = loading(phase)
    assert say(start) == f"{title}, {duration(start.now - start.state.started)} so far"


def test_loading_with_history():
    assert say(half_loaded(HISTORY)) == "Loading weights: shard 54 of 119 (45 %), about 5 min 21 s left"


def test_loading_without_history_knows_this_step_only():
    assert say(half_loaded()) == "Loading weights: shard 54 of 119 (45 %), about 4 min 1 s left for this step"


def test_the_first_shard_promises_nothing():
    start = loading(Phase.LOADING_WEIGHTS).do(shards(1), after=2.0)
    assert say(start) == "Loading weights: shard 1 of 119 (1 %), 38 s so far"


def test_no_progress_is_said_from_half_a_minute_on():
    start = launched().wait(31.0)
    assert say(start) == "Starting the engine's processes, 49 s so far; no progress for 31 s"


def test_longer_than_usual():
    start = loading(Phase.VERIFYING, HISTORY).wait(25.0)
    assert say(start) == "Waiting for the first answer, 1 min 31 s so far, longer than usual"


def test_a_death_is_said_while_its_last_words_are_awaited():
    start = half_loaded().do(ev.ProcessDied(12, ev.Role.WORKER, "VLLM::Worker_TP0"))
    assert say(start) == "Loading weights: shard 54 of 119 (45 %); VLLM::Worker_TP0 (pid 12) is gone"


def test_graphs_are_steps():
    start = loading(Phase.CAPTURING_GRAPHS).do(ev.Output((Progress(Phase.CAPTURING_GRAPHS, 3, 67),)))
    assert say(start).startswith("Capturing CUDA graphs: step 3 of 67 (4 %), ")


def test_ready():
    start = ready()
    assert say(start) == "Ready"
    start.do(BUSY, ev.Output((Figure(FigureName.MAX_MODEL_LEN, 131072.0),)))
    rates = {"generation": 41.26, "prompt": 812.0}
    assert say(start, rates=rates) == (
        "Ready: 41.3 tokens/s generated, 812.0 read, 2 running, 0 waiting, context 131072"
    )
    start.do(ev.SmokeDone(passed=False, verdict="the answer was empty"))
    assert say(start).endswith("; smoke test failed: the answer was empty")


def test_ready_but_something_is_wrong():
    start = ready(Policy(liveness="report")).do(BUSY)
    started = start.now
    start.wait(25.0)
    assert say(start) == "Ready, but nothing has moved for 25 s; asking for one token"
    start.do(ev.CanaryDone(answered=False, seconds=1.0, detail="HTTP 500"))
    assert say(start) == "Ready, but one-token requests fail: HTTP 500"
    start.wait(60.0)
    assert say(start) == f"Hung: nothing has moved for {duration(start.now - started)}"
    dying = ready().do(ev.ProcessDied(12, ev.Role.WORKER, "VLLM::Worker_TP0"))
    assert say(dying) == "Degraded: VLLM::Worker_TP0 (pid 12) is gone"


def test_endings():
    grace = ready(Policy(grace_s=20.0)).do(STOP).wait(8.0)
    assert say(grace) == "Not ready any more (SIGTERM); draining begins in 12 s"
    assert say(draining().wait(10.0)) == "Draining (SIGTERM): running requests have 20 s left"
    stopping = loading(Phase.COMPILING).do(STOP)
    assert say(stopping) == "Stopping: SIGTERM"
    stopping.do(ev.EngineExited(-2), ev.Swept(alive=("pid 7 (vllm)",)))
    assert say(stopping) == "Stopping: SIGTERM; still there: pid 7 (vllm)"
    assert say(gone(stopping)) == "Stopped (SIGTERM)"
    failing = launched().do(ev.Faulted(Cause("disk-full", evidence="No space left on device\n", advice="Make room.")))
    assert say(failing) == "Stopping: disk-full: No space left on device. Make room."
    failing.do(ev.IncidentSaved(), ev.Swept())
    assert say(failing) == "Failed: disk-full: No space left on device. Make room."


def test_a_note_of_our_own_is_part_of_it():
    assert say(ready(), note="127.0.0.1:9477 is busy") == "Ready; 127.0.0.1:9477 is busy"


def test_status_is_ascii_on_one_line_and_bounded():
    start = launched().do(ev.Faulted(Cause("unknown", summary="kaputt: Größe\t→ ∞\r\n" + "x" * 1000)))
    text = say(start)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) == LIMIT


def test_a_bar_that_begins_again_has_its_own_rate():
    start = half_loaded().do(ev.Output((Progress(Phase.LOADING_WEIGHTS, 0, 3, bar="draft"),)), after=1.0)
    assert bar_left(start.state, start.now) is None
    start.do(ev.Output((Progress(Phase.LOADING_WEIGHTS, 1, 3, bar="draft"),)), after=4.0)
    assert bar_left(start.state, start.now) == 8.0


def test_what_is_left_and_the_share_of_a_start():
    start = half_loaded(HISTORY)
    left = start_left(start.state, start.now)
    assert left == pytest.approx(65 * 200 / 54 + 60 + 20)
    since = start.now - start.state.timeline[1][1]
    assert ratio(start.state, start.now) == pytest.approx(since / (since + left))
    assert start_left(half_loaded().state, start.now) is None
    assert ratio(half_loaded().state, start.now) == pytest.approx(54 / 119)
    assert ratio(launched().state, start.now) is None
    assert ratio(reach("preflight").state, start.now) is None
    assert ratio(ready().state, start.now) == 1.0
    assert start_left(ready(HISTORY).state, start.now) is None


def test_time_spent_is_summed_over_a_phase_that_came_back():
    start = loading(Phase.CONNECTING).do(ev.Tick(), after=4.0)
    for phase in (Phase.LOADING_WEIGHTS, Phase.CONNECTING):
        start.do(ev.Output((PhaseSeen(phase),)))
    spent = start.state.phase_seconds(start.now + 5.0)
    assert spent[Phase.CONNECTING] == 4.0 + 5.0
    assert sum(spent.values()) == start.now + 5.0 - start.state.timeline[0][1]
    assert launched_at(start.state) == start.state.timeline[1][1]
    assert launched_at(Start().state) == Start().now


def test_a_share_is_never_more_than_all_and_starts_at_nothing():
    unknown = replace(Policy(), expected={Phase.COMPILING: 0.0})
    start = Start(unknown).do(ev.Begin(), ev.PreflightDone())
    assert ratio(start.state, start.now) == 0.0
    assert ratio(start.do(ev.Launched(1)).state, start.now + 10.0) == 1.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1.0, "0.0 s"), (0.0, "0.0 s"), (0.44, "0.4 s"), (8.04, "8.0 s"), (10.0, "10 s"), (59.4, "59 s"),
        (59.6, "1 min"), (60.0, "1 min"), (280.0, "4 min 40 s"), (3600.0, "1 h 0 min"), (3725.0, "1 h 2 min"),
    ],
)  # fmt: skip
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (900, "900 B"),
        (1536, "1.5 KiB"),
        (512 << 20, "512.0 MiB"),
        (70.8 * 2**30, "70.8 GiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_sizes(count, words):
    assert size(count) == words


def test_ascii():
    assert ascii_only("a\nb→c\td") == "a b?c?d"


def test_the_last_load_is_that_of_the_newest_start_that_was_ready_without_the_pause_before_it():
    spent = {Phase.PREFLIGHT: 1.0, Phase.WAITING: 600.0, Phase.LAUNCHING: 20.0, Phase.LOADING_WEIGHTS: 500.0}
    ready = PastStart(began_at=0.0, ready_at=1121.0, phases={**spent, Phase.READY: 9000.0, Phase.STOPPING: 3.0})
    failed = PastStart(began_at=20000.0, outcome="failed", phases={Phase.LAUNCHING: 7.0})
    older = PastStart(began_at=-9000.0, ready_at=-8000.0, phases={Phase.LAUNCHING: 999.0})
    assert last_load([older, ready, failed]) == 520.0
    assert last_load([failed]) is None
    assert last_load([PastStart(began_at=0.0, ready_at=5.0)]) is None
