"""Starting the fake engine, alone or for a daemon, and driving it while it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from process.waiting import Reply, free_port, http_get, tail, wait_until

SEGMENT = re.compile(r"/dev/shm/psm_\w+")
FAKE = Path(__file__).resolve().parent.parent / "fake" / "fake_vllm.py"


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill_marked(mark: str) -> list[int]:
    """SIGKILL to every process whose environment holds `mark`; their pids. The segments that they map go too."""
    found, segments = [], set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() not in (entry / "environ").read_bytes() or gone(int(entry.name)):
                continue
            segments |= set(SEGMENT.findall((entry / "maps").read_text()))
        except OSError:
            continue
        found.append(int(entry.name))
        kill(int(entry.name))
    for segment in segments:
        Path(segment).unlink(missing_ok=True)
    return found


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def write_script(tmp_path: Path, fake: dict[str, Any]) -> Path:
    """The script file of a fake, with a control socket at `tmp_path`/control."""
    path = tmp_path / "fake.json"
    path.write_text(json.dumps({"control": str(tmp_path / "control"), **fake}))
    return path


def write_model(folder: Path) -> Path:
    """A checkpoint that is complete and tiny: config, tokenizer, one shard whose header fits its size."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 2, "vocab_size": 512,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}')
    size = 512 * 128 * 2
    header = json.dumps(
        {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [512, 128], "data_offsets": [0, size]}}
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return folder


def write_environment(folder: Path, version: str = "0.32.0") -> Path:
    """A virtual environment that looks as if it held vLLM of that version; its `bin/vllm`, which is the fake."""
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "vllm").mkdir(parents=True)
    (packages / "vllm" / "_version.py").write_text(f"__version__ = version = {version!r}\n")
    metadata = packages / f"vllm-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(sys.executable)
    command = folder / "bin" / "vllm"
    run = f"import runpy, sys\nsys.argv[0] = {str(FAKE)!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    command.write_text(f"#!{folder / 'bin' / 'python3'}\n{run}")
    command.chmod(0o755)
    return command


class Control:
    """The test's end of a fake's control socket; see tests/fake/fake_engine/control.py for the commands."""

    def __init__(self, path: Path, *logs: Path) -> None:
        self.path, self.logs = path, logs
        self._sock: socket.socket | None = None

    def __call__(self, do: str, timeout: float = 10.0, **more: Any) -> dict[str, Any]:
        """Runs a command; its answer. An `error` in it fails."""
        if self._sock is None:
            self._sock = wait_until(self._connect, timeout, f"control socket {self.path}", *self.logs)
        self._sock.settimeout(timeout)
        self._sock.sendall(json.dumps({"do": do, **more}).encode() + b"\n")
        data = b""
        try:
            while not data.endswith(b"\n"):
                if not (more_data := self._sock.recv(1 << 16)):
                    self.close()
                    return {}  # it died of the command
                data += more_data
        except TimeoutError:
            self.close()
            raise AssertionError(f"no answer to {do} within {timeout:g} s\n{tail(*self.logs)}") from None
        result: dict[str, Any] = json.loads(data)
        assert "error" not in result, result
        return result

    def _connect(self) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(self.path))
        except OSError:
            sock.close()
            return None
        return sock

    def close(self) -> None:
        if self._sock:
            self._sock.close()
            self._sock = None


class Fake:
    """A fake engine by itself, its output in files; a context manager that leaves nothing behind."""

    def __init__(
        self, tmp_path: Path, *flags: str, env: dict[str, str] | None = None, tcp: bool = True, **script: Any
    ) -> None:
        self.port = free_port() if tcp else 0
        self.out, self.err = tmp_path / "fake.out", tmp_path / "fake.err"
        self.control = Control(tmp_path / "control", self.out, self.err)
        path = write_script(tmp_path, script)
        self.mark = f"FAKE_ENGINE={path}"
        where = ["--host", "127.0.0.1", "--port", str(self.port)] if tcp else []
        command = [sys.executable, str(FAKE), "serve", "tiny", *where, "--served-model-name", "kimi", *flags]
        environment = {**os.environ, "FAKE_ENGINE": str(path), "SPT_NOENV": "1", **(env or {})}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()
        if self.process.poll() is None:
            self.process.kill()
        kill_marked(self.mark)
        self.process.wait(10)
        for segment in self.segments:
            Path(segment).unlink(missing_ok=True)

    segments: tuple[str, ...] = ()

    def stats(self) -> dict[str, Any]:
        found = self.control("stats")
        self.segments = tuple(found.get("segments", ()))
        return found

    def printed(self, text: str) -> bool:
        return text in self.output()

    def output(self) -> str:
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    def get(self, path: str, **more: Any) -> Reply:
        return http_get(self.port, path, **more)

    def wait(self, fn: Any, what: str, timeout: float = 10.0) -> Any:
        return wait_until(fn, timeout, what, self.out, self.err)

    def wait_printed(self, text: str, timeout: float = 10.0) -> None:
        self.wait(lambda: self.printed(text), f"line {text!r}", timeout)

    def wait_ready(self, timeout: float = 10.0) -> dict[str, Any]:
        """Its stats, once it serves."""
        self.wait(lambda: self.stats()["mode"] == "ready", "mode ready", timeout)
        return self.stats()

    def wait_exit(self, timeout: float = 10.0) -> int:
        self.wait(lambda: self.process.poll() is not None, "exit", timeout)
        return int(self.process.returncode)

    def term(self) -> None:
        self.process.send_signal(signal.SIGTERM)
