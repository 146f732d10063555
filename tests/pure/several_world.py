"""Several engines as the supervisor sees them: their figures, and what becomes of a request sent to each."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pure.start import BUSY, IDLE
from vllm_supervisor.core import effects as fx
from vllm_supervisor.core import events as ev
from vllm_supervisor.core.phases import Phase

WORKING = "its own engine answers"
SILENT = "nobody answers"
ELSEWHERE = "another engine answers"
UNKNOWN = "the server has no such engine"
REFUSED = "the server has no such engine, and nobody answers the request without a rank"

CLIENTS = ev.Activity(gpu_power_watts=122.0, gpu_power_limit_watts=700.0, connections=4)
"""Idle GPUs, and clients that are connected."""


@dataclass
class Engine:
    """One engine: `figures` and `answers` are functions of the seconds since the beginning."""

    figures: Callable[[float], ev.Counted] = lambda t: IDLE
    answers: Callable[[float], str] = lambda t: WORKING
    canaries: int = 0

    def shown(self, t):
        seen = self.figures(t)
        return replace(seen, generation_tokens=seen.generation_tokens + self.canaries)


def busy(t):
    """An engine under load that works."""
    return replace(BUSY, generation_tokens=50 * t, iterations=t)


def fault(start):
    """Why the start was ended; empty when it was not."""
    return start.state.fault.summary if start.state.fault is not None else ""


def idle():
    return Engine()


def working():
    return Engine(busy)


def stopped(at=0.0, answers=SILENT):
    """An engine under load that stops at a time, and whose figures stay as they were then."""
    return Engine(lambda t: busy(min(t, at)), lambda t: answers if t >= at else WORKING)


def page(engines, t):
    """What the page shows of them all."""
    shown = {label: engine.shown(t) for label, engine in engines.items()}
    summed = {
        name: sum(getattr(one, name) for one in shown.values())
        for name in ("generation_tokens", "prompt_tokens", "running", "waiting", "iterations")
    }
    return ev.Counted(**summed, kv_usage=0.1, engines=shown if len(shown) > 1 else {})


def run(start, seconds, engines, activity=None, each=lambda start, t: None):
    """Time passes: a reading every two seconds, a request is answered after one; `engines` may be changed by `each`."""
    began, asked = start.now, {}
    while start.now < began + seconds and start.phase is Phase.READY:
        start.do(ev.Tick(), after=1.0)
        t = start.now - began
        asked |= {effect.engine: start.now for effect in start.fresh if isinstance(effect, fx.Canary)}
        each(start, t)
        if start.phase is Phase.READY and t % 2 == 0:
            if activity is not None:
                start.do(activity)
            start.do(page(engines, t))
        for label, at in list(asked.items()):
            how = engines[label].answers(t) if label in engines else UNKNOWN
            if start.phase is not Phase.READY or how == SILENT or start.now <= at:
                continue
            del asked[label]
            if how == WORKING:
                engines[label].canaries += 1
            done = ev.CanaryDone(how != REFUSED, 1.0, "" if how != REFUSED else "no answer in time", label)
            start.do(replace(done, known=how not in {UNKNOWN, REFUSED}), page(engines, t))
    return start
