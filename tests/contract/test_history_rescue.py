"""A disk that takes no more: the earlier starts are still known, and secrets never reach the file."""

import os
import subprocess
import sys
from pathlib import Path

from vllm_supervisor.adapters.history import History

SOURCE = Path(__file__).parents[2] / "supervisor"

FULL = """
import resource, signal, sys
from pathlib import Path
from vllm_supervisor.adapters.history import History
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
history = History(Path(sys.argv[1]))
print(history.trouble)
print([start.reason for start in history.past()], history.totals("failures"))
history.begin(began_at=9.0, boot_id="b", config_hash="c", version="1", attempt=2)
history.update(outcome="failed")
history.count("failures", "nccl-error/transient")
print([start.outcome for start in history.past()], history.totals("failures"))
"""


def test_on_a_full_disk_the_earlier_starts_are_still_known(tmp_path):
    path = tmp_path / "history.sqlite"
    history = History(path)
    history.begin(began_at=1.0, boot_id="b", config_hash="c", version="1", attempt=1)
    history.update(outcome="failed", reason="nccl-error", exit_code=75)
    history.count("failures", "nccl-error/transient")
    history.close()
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        capture_output=True, text=True, timeout=30, check=False, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    trouble, before, after = ran.stdout.splitlines()
    assert "this start is not remembered" in trouble
    assert before == "['nccl-error'] {'nccl-error/transient': 1}"
    assert after == "['failed'] {'nccl-error/transient': 2}"


def test_no_secret_is_written(tmp_path):
    path = tmp_path / "history.sqlite"
    history = History(path, redact=lambda text: text.replace("sesame", "***"))
    history.begin(began_at=1.0, boot_id="b", config_hash="c", version="1", attempt=1)
    history.update(sentence="with sesame", figures={"model": "a/sesame"}, exit_code=1)
    (row,) = history.rows()
    assert (row["sentence"], row["figures"], row["exit_code"]) == ("with ***", {"model": "a/***"}, 1)
    history.close()
    assert not [file for file in tmp_path.iterdir() if b"sesame" in file.read_bytes()]
