"""The steps of an upgrade of the engine: the second environment, the link, and the way back."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_supervisor.adapters import environment
from vllm_supervisor.adapters.engine_info import read_version
from vllm_supervisor.core.held import holder_of

from .ahead import Ahead
from .doing import Doing
from .served import StepError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_supervisor.adapters.steps_journal import StepsJournal

    from .runner import Doer, Say
    from .served import Served


def link_of(it: Served) -> Path:
    """The link through which the configured engine is reached.

    Raises:
        StepError: the configuration names an environment directly, which cannot be turned.
    """
    command = it.instance().settings.engine.command
    link = Path(command[0]).parent.parent
    if Path(command[0]).name != "vllm" or not link.is_symlink():
        raise StepError(
            f"engine.command is {command[0]}, which goes through no link: let it be /opt/vllm/bin/vllm with /opt/vllm "
            "a link to the environment"
        )
    return link


def place_of(link: Path, version: str) -> Path:
    """Where the environment of a version lies: beside the link."""
    return link.with_name(f"{link.name}-{version}")


class Upgrading:
    """Upgrades one instance.

    Args:
        it: The instance.
        journal: The record; its head has `version`, `link`, `python` and `pip_args`.
    """

    def __init__(self, it: Served, journal: StepsJournal) -> None:
        self.it, self.journal = it, journal
        self.params = (journal.head() or {})["params"]
        self.link = Path(self.params["link"])
        self.place = place_of(self.link, self.params["version"])
        # A version that fails once for whatever reason is not tried again while nobody serves.
        self.forward, self.backward = Doing(it, journal, attempts=1), Doing(it, journal)

    def install(self, _: str, say: Say) -> str:
        """Make the environment, or find it made."""
        if (self.place / "bin/vllm").exists():
            return f"{self.place} is there already"
        try:
            environment.make(
                self.place,
                self.params["version"],
                python=self.params["python"],
                pip_args=shlex.split(self.params["pip_args"]),
                log=self.journal.directory / "pip.log",
                say=say,
            )
        except environment.InstallError as error:
            raise StepError(str(error)) from None
        return str(self.place)

    def check(self, step: str, say: Say) -> str:
        """Check with the new engine's program, as the service's user."""
        if self.it.instance().settings.weights.held:
            raise StepError(
                f"the weights that {holder_of(self.it.name)} holds are of the old vLLM, and the new one does not take "
                "them: set weights.held = false for the upgrade, then true again, and restart both units"
            )
        program = str(self.place / "bin/vllm")
        found = read_version([program], os.environ) or ""
        if found.split("+")[0] != self.params["version"].split("+")[0]:
            raise StepError(f"{self.place} holds vLLM {found or 'of no known version'}, not {self.params['version']}")
        return self.forward.check(step, say, program)

    def switch(self, _: str, __: Say) -> str:
        """Turn the link; where it pointed is kept for the way back."""
        before = environment.current(self.link)
        if self.journal.fact("before") is None:
            self.journal.keep_fact("before", str(before))
        self._turn(self.place)
        return f"{self.link} -> {self.place}, it was {self.journal.fact('before')}"

    def back(self, _: str, __: Say) -> str:
        """Turn it back, and keep what is known of the failure where no later incident displaces it."""
        before = Path(self.journal.fact("before"))
        self._turn(before)
        kept = self._keep_incident()
        return f"{self.link} -> {before}{f'; incident kept in {kept}' if kept else ''}"

    def _turn(self, target: Path) -> None:
        try:
            environment.turn(self.link, target)
        except environment.InstallError as error:
            raise StepError(str(error)) from None

    def _keep_incident(self) -> str:
        rows = [row for row in self.it.history() if row.get("incident")]
        if not rows or rows[-1]["began_at"] < (self.journal.head() or {}).get("at", 0.0):
            return ""
        source = Path(rows[-1]["incident"])
        target = self.journal.directory / f"incident-{self.params['version']}-{source.name}"
        try:
            # The directory is the service user's: no link in it is followed.
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        except (OSError, shutil.Error):
            return str(source)
        return str(target)


def upgrade_doers(it: Served, journal: StepsJournal) -> Mapping[str, Doer]:
    """Who takes which step."""
    own = Upgrading(it, journal)
    return {
        "install": own.install,
        "check": own.check,
        "ahead": Ahead(it).read,
        "switch": own.switch,
        "restart": own.forward.restart,
        "wait": own.forward.wait,
        "smoke": own.forward.smoke,
        "back": own.back,
        "back-restart": own.backward.restart,
        "back-wait": own.backward.wait,
        "back-smoke": own.backward.smoke,
    }
