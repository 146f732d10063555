"""`make demo`: everything it promises, as an ordinary user, and nothing left behind whenever it is interrupted."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from lab import paths
from process.waiting import tail, wait_until

ROOT = Path(__file__).parents[2]
USER = 64_007
"""A user of its own: what it leaves in /dev/shm is told from everybody else's."""
DEADLINE_S = 300.0
pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("engine")]


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory of an ordinary user, outside of pytest's own, which is closed to others."""
    made = Path(tempfile.mkdtemp(prefix="demo-home."))
    made.chmod(0o755)
    (made / "tmp").mkdir()
    for path in (made, made / "tmp"):
        os.chown(path, USER, USER)
    yield made
    shutil.rmtree(made)
    # A demo that had to be killed leaves its segments to the next one's account.
    for path in segments():
        path.unlink(missing_ok=True)


def segments() -> list[Path]:
    """What this user has in shared memory."""
    return [path for path in Path("/dev/shm").iterdir() if path.stat().st_uid == USER]


class Demo:
    """The demo in a process group of its own, its output in files."""

    def __init__(self, home: Path, **env: str) -> None:
        self.home, self.out, self.err = home, home / "out", home / "err"
        # The checkout may lie under /root: reading everything is allowed to this user, writing is not.
        # A shell starts what runs in its background with Ctrl-C ignored, and children inherit that.
        command = ["env", "--default-signal=INT", "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        command += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
        command += [sys.executable, str(ROOT / "tests" / "lab" / "demo.py")]
        kept = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "tmp"), "LANG": "C.UTF-8"}
        kept |= {"USER": "demo", "LOGNAME": "demo"}  # this user stands in no list of users
        kept |= {"PYTHONPATH": str(ROOT / "supervisor"), "PYTHONDONTWRITEBYTECODE": "1", **env}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=kept, cwd=home, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Living processes that the demo started, the demo too."""
        mark = f"HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def wait_said(self, text: str) -> None:
        def said() -> bool:
            if self.process.poll() is not None and text not in self.out.read_text():
                raise AssertionError(f"it ended before {text!r}\n{tail(self.out, self.err)}")
            return text in self.out.read_text() or text in self.err.read_text(errors="replace")

        wait_until(said, DEADLINE_S, text, self.out, self.err)

    def wait_exit(self) -> int:
        wait_until(lambda: self.process.poll() is not None, DEADLINE_S, "its end", self.out, self.err)
        return int(self.process.returncode)

    def left(self) -> dict[str, object]:
        """Whatever is still there: processes, temporary files, segments of shared memory of this user."""
        left = [path.name for path in segments()]
        return {"processes": self.processes(), "files": os.listdir(self.home / "tmp"), "segments": left}


NOTHING: dict[str, object] = {"processes": [], "files": [], "segments": []}


def test_an_ordinary_user_sees_a_start_an_answer_a_scrape_and_a_clean_stop(home):
    with Demo(home) as demo:
        assert demo.wait_exit() == 0, tail(demo.out, demo.err)
        out = demo.out.read_text()
        assert str(paths.vllm().parents[1]) in out
        assert re.search(r"READY after [\d.]+ s", out)
        assert "reasoning  The user asks for the capital of France. That is Paris." in out
        assert "content    The capital of France is Paris." in out
        assert re.search(r"\d+ tokens in [\d.]+ s: the first after [\d.]+ s, [\d.]+ tokens/s", out)
        counted = re.search(r"(\d+) tokens generated in all, (\d+) before", out)
        assert counted is not None, out
        answer = re.search(r"(\d+) tokens in", out)
        assert answer is not None
        assert int(counted[1]) - int(counted[2]) >= int(answer[1]) > 0
        assert "vllm_supervisor_ready 1.0" in out
        assert out.rstrip().endswith("nothing is left behind")
        assert demo.left() == NOTHING


@pytest.mark.parametrize("moment", ["demo: the model", "engine started as pid", "phase connecting"])
def test_ctrl_c_leaves_nothing_behind(home, moment):
    with Demo(home) as demo:
        demo.wait_said(moment)
        # A terminal sends it to the whole foreground group.
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.wait_exit() == 130, tail(demo.out, demo.err)
        assert "Traceback" not in demo.out.read_text() + demo.err.read_text(errors="replace")
        assert demo.left() == NOTHING


@pytest.mark.long
def test_keep_stays_up_until_ctrl_c(home):
    with Demo(home, KEEP="1") as demo:
        demo.wait_said("KEEP=1: it stays up until Ctrl-C")
        assert demo.process.poll() is None
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.wait_exit() == 130, tail(demo.out, demo.err)
        assert demo.left() == NOTHING
