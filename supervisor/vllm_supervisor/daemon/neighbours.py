"""The other instances of this machine, as the daemon and the command line look at them."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_supervisor.adapters import neighbours as files
from vllm_supervisor.adapters.engine_info import find_program
from vllm_supervisor.adapters.model_path import locate as model_path
from vllm_supervisor.config import load, load_env
from vllm_supervisor.core import neighbours as core
from vllm_supervisor.core.check.neighbours import needs_of
from vllm_supervisor.core.check.observed import EngineView
from vllm_supervisor.core.events import Turn
from vllm_supervisor.core.heldfit import HeldSeen, differing, wanted
from vllm_supervisor.core.neighbours import Claim, Needs, Neighbour, Standing
from vllm_supervisor.core.phases import WEIGHTS_TO_COME, Phase

from .instance import Instance
from .locate import SYSTEM_CONFIG, runtime_roots

if TYPE_CHECKING:
    from vllm_supervisor.core.state import State

TURN_EVERY_S = 1.0


def view_of(instance: Instance) -> EngineView:
    """The engine of an instance as the check sees it."""
    engine, cluster = instance.settings.engine, instance.settings.cluster
    args = {name: list(value) if isinstance(value, list) else value for name, value in engine.args.items()}
    further: tuple[tuple[str, str], ...] = ()
    if cluster.nnodes > 1:
        args |= {"nnodes": cluster.nnodes}
        if cluster.rank(socket.gethostname()) == 0:
            # The engines' meeting place listens on every address.
            meets = ("cluster.master_port", f"0.0.0.0:{cluster.master_port}")
            further = (("cluster.port", f"{cluster.head}:{cluster.port}"), meets)
    return EngineView(
        command=tuple(engine.command),
        model=engine.model,
        served_model_name=engine.served_model_name,
        host=engine.host,
        port=engine.port,
        device=engine.device,
        overlay=engine.overlay,
        args=args,
        env=instance.configured_env(),
        metrics_listen=instance.settings.metrics.listen,
        name=instance.name,
        further=further,
        weights="holder" if instance.holds_weights else "held" if instance.settings.weights.held else "",
    )


def configured(config_dir: Path = SYSTEM_CONFIG, *, but: str = "") -> dict[str, Needs]:
    """What each configured instance of the system takes, by name; files with problems are left out."""
    found: dict[str, Needs] = {}
    try:
        paths = sorted(path for path in config_dir.iterdir() if path.suffix == ".toml")
    except OSError:
        return found
    for path in paths:
        settings = load(path) if path.stem != but else []
        if not isinstance(settings, list):
            # The environment of another user's instance may be closed to us: then it counts as empty.
            env = load_env(path.with_suffix(".env"))
            nowhere = Path(os.devnull)
            instance = Instance(path.stem, path, settings, env if isinstance(env, dict) else {}, nowhere, nowhere)
            found[instance.name] = needs_of(instance.name, view_of(instance))
    return found


def neighbours_of(instance: Instance, config_dir: Path = SYSTEM_CONFIG) -> tuple[Neighbour, ...]:
    """Every other instance: what runs by its own word, what else is configured by its file."""
    # The two halves of an instance share their GPUs by design.
    partner = instance.partner if instance.settings.weights.held else ""
    claims = [claim for claim in files.read_claims(_roots(instance), but=instance.name) if claim.needs.name != partner]
    found = [Neighbour(claim.needs, Standing.RUNNING) for claim in claims]
    running = {claim.needs.name for claim in claims}
    for name, needs in configured(config_dir, but=instance.name).items():
        if name not in running and name != partner:
            found.append(Neighbour(needs, Standing.ENABLED if files.is_enabled(name) else Standing.CONFIGURED))
    return tuple(found)


def _roots(instance: Instance) -> list[Path]:
    return [instance.runtime_dir.parent, *runtime_roots(os.environ)]


def _weights_of(instance: Instance) -> dict[str, str]:
    """What decides whether weights fit, by this instance's settings."""
    engine = instance.settings.engine
    environment = {**os.environ, **instance.configured_env()}
    program = find_program(engine.command, environment) or engine.command[0]
    model = model_path(engine.model, environment)
    return wanted(os.path.realpath(program), os.path.realpath(model), engine.args)


def held_seen(instance: Instance, ours: Mapping[str, str] | None = None) -> HeldSeen | None:
    """What the unit says that holds the weights of this instance; None where none is to.

    Args:
        instance: The engine's.
        ours: What its engine wants of the weights, where that was found out before.
    """
    if instance.holds_weights or not instance.settings.weights.held:
        return None
    claim = next((claim for claim in files.read_claims(_roots(instance)) if claim.needs.name == instance.partner), None)
    if claim is None:
        return HeldSeen(instance.partner)
    theirs = claim.page.get("holds")
    others = differing(ours or _weights_of(instance), theirs) if isinstance(theirs, dict) else ()
    return HeldSeen(instance.partner, running=True, ready=claim.page.get("ready") is True, differing=others)


class Neighbours:
    """What this instance tells the others, and what it learns of them.

    Args:
        instance: Ours.
        environment: The engine's environment, in which its model is looked for.
    """

    def __init__(self, instance: Instance, environment: Mapping[str, str]) -> None:
        self._instance = instance
        self._environment = environment
        needs = needs_of(instance.name, view_of(instance))
        self._claim = Claim(needs, os.getpid(), files.born(os.getpid()))
        self._user = _user()
        self._weights = _weights_of(instance) if instance.settings.weights.held else {}

    def others(self) -> list[Claim]:
        """The instances that run now."""
        return files.read_claims(_roots(self._instance), but=self._instance.name)

    def held(self) -> HeldSeen | None:
        """The weights that another unit holds for this engine; None where none is to (reads a few small files)."""
        return held_seen(self._instance, self._weights)

    def ahead(self) -> str:
        """Whom this start has to let finish loading, in a few words; empty when it is its turn (blocks briefly)."""
        if not self._instance.settings.load.wait_s:
            return ""
        if not self._claim.since:
            model = model_path(self._instance.settings.engine.model, {**os.environ, **self._environment})
            size = files.weights_bytes(model)
            path = os.path.realpath(model)
            self._claim = replace(self._claim, waiting=True, since=time.monotonic(), checkpoint=path, size=size)
        # Said before the others are looked at: of two that ask at once at least one sees the other.
        self._write()
        other = core.ahead(self._claim, self.others(), files.cacheable_bytes())
        if other is None:
            # From here on this load has the disk: who asks now sees it.
            self._claim = replace(self._claim, waiting=False, loading=True)
            self._write()
            return ""
        return core.waiting_for(other)

    async def turn(self) -> Turn:
        """The same, after a moment."""
        await asyncio.sleep(TURN_EVERY_S)
        return Turn(await asyncio.to_thread(self.ahead))

    def tell(self, state: State, sentence: str, page: Mapping[str, Any]) -> None:
        """Say where this instance stands."""
        bar = state.shards
        shown = {
            "phase": state.phase.value,
            "ready": state.phase is Phase.READY,
            "status": sentence,
            "shards": {"loaded": bar.done, "total": bar.total} if bar is not None else None,
            "user": self._user,
            "at": time.time(),
            **page,
            **({"holds": self._weights} if self._instance.holds_weights else {}),
        }
        loading = state.phase in WEIGHTS_TO_COME or (self._claim.loading and state.phase is Phase.PREFLIGHT)
        waiting = state.phase is Phase.WAITING and bool(state.ahead)
        self._claim = replace(self._claim, page=shown, loading=loading, waiting=waiting)
        self._write()

    def _write(self) -> None:
        files.write_claim(self._instance.runtime_dir, self._claim)

    def withdraw(self) -> None:
        """Claim nothing any more."""
        files.withdraw_claim(self._instance.runtime_dir)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
