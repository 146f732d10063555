"""A signal that comes while the fake engine changes what it does about signals leaves no line among the engine's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAKE = Path(__file__).parents[1] / "fake"

# A child sends SIGTERM without a pause; python drops one now and then where signal.signal is called bare, and says so on stderr.
FLOOD = """
import os, signal
from fake_engine.system import disposition

me = os.getpid()
disposition(signal.SIGTERM, signal.SIG_IGN)
if not (child := os.fork()):
    while os.getppid() == me:
        os.kill(me, signal.SIGTERM)
    os._exit(0)
for _ in range(1500):
    disposition(signal.SIGTERM, lambda *_: None)
    disposition(signal.SIGTERM, signal.SIG_IGN)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("changed")
"""


def test_a_signal_in_the_middle_of_a_change_is_not_spoken_of():
    done = subprocess.run(
        [sys.executable, "-c", FLOOD],
        check=False,
        env={"PYTHONPATH": str(FAKE)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "changed\n", "")
