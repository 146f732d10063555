"""What a whole daemon saves of failures and hangs, what it believes of the kernel, and that no secret gets out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from process.daemon_tools import ended, incident, rows, running, told, until_ready, verb
from process.harness import SOURCE

TP2 = {"args": {"tensor-parallel-size": 2}}


def journal(folder: Path) -> tuple[Path, dict[str, str]]:
    """A `journalctl` that follows a file of messages; the file, and the environment in which it is found."""
    lines = folder / "kernel.txt"
    lines.touch()
    tools = folder / "tools"
    tools.mkdir()
    program = tools / "journalctl"
    program.write_text(
        f"#!{sys.executable}\nimport json, time\n"
        f"with open({str(lines)!r}) as file:\n"
        "    while True:\n"
        "        line = file.readline()\n"
        "        if line:\n            print(json.dumps({'MESSAGE': line.strip()}), flush=True)\n"
        "        else:\n            time.sleep(0.01)\n"
    )
    program.chmod(0o755)
    return lines, {"PATH": f"{tools}:/usr/bin:/bin"}


def say(lines: Path, text: str) -> None:
    with lines.open("a") as file:
        file.write(text + "\n")


def incident_verb(*words: str) -> subprocess.CompletedProcess[str]:
    """The verb by itself."""
    code = (
        "import argparse, sys; from vllm_supervisor.commands import incident; top = argparse.ArgumentParser();"
        "incident.add_parser(top.add_subparsers(dest='verb')); sys.exit(incident.run(top.parse_args(sys.argv[1:])))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "incident", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def saved(daemon) -> Path:
    (path,) = (daemon.state / "incidents").iterdir()
    return path


def test_an_xid_of_the_hardware_ends_with_69_and_names_the_card(tmp_path):
    lines, env = journal(tmp_path)
    with running(tmp_path, {"pace": 0}, engine=TP2, env=env) as daemon:
        until_ready(daemon)
        worker = daemon.control("stats")["workers"][0]
        daemon.wait(lambda: str(worker) in daemon.status()["engine"]["processes"], "a look at the processes")
        say(lines, f"NVRM: Xid (PCI:0000:41:00): 13, pid={worker}, Graphics Exception")  # of a program: evidence only
        daemon.wait(lambda: "Xid (PCI:0000:41:00): 13" in daemon.log(), "a word about the Xid")
        assert daemon.status()["phase"] == "ready"
        say(lines, f"NVRM: Xid (PCI:0000:41:00): 79, pid={worker}, GPU has fallen off the bus.")
        row = ended(daemon, 69, "gpu-lost")
        assert "Xid 79 on GPU 0000:41:00" in row["sentence"]
        assert incident(daemon)["cause"]["evidence"].startswith("kernel: NVRM: Xid (PCI:0000:41:00): 79")
        assert (saved(daemon) / "evidence.txt").read_text().count("Xid (PCI:0000:41:00)") == 3
        assert "GPU has fallen off" in (saved(daemon) / "kernel.log").read_text()


def test_an_xid_of_a_process_of_others_is_evidence_and_no_fault(tmp_path):
    lines, env = journal(tmp_path)
    with running(tmp_path, {"pace": 0}, env=env) as daemon:
        until_ready(daemon)
        say(lines, "NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=other, GPU has fallen off the bus.")
        daemon.wait(lambda: "Xid (PCI:0000:41:00): 79" in daemon.log(), "a word about the Xid")
        daemon.sigterm()
        ended(daemon, 0)


def test_a_kill_that_the_kernel_admits_is_host_out_of_memory(tmp_path):
    lines, env = journal(tmp_path)
    with running(tmp_path, {"pace": 0}, engine=TP2, env=env) as daemon:
        until_ready(daemon)
        worker = daemon.control("stats")["workers"][1]
        daemon.wait(lambda: str(worker) in daemon.status()["engine"]["processes"], "a look at the processes")
        say(lines, f"Memory cgroup out of memory: Killed process {worker} (VLLM::Worker_TP) total-vm:1kB")
        daemon.control("die", who="w1")
        row = ended(daemon, 75, "host-out-of-memory")
        assert f"pid {worker}" in row["sentence"]


def test_a_kill_without_a_word_of_the_kernel_is_no_lack_of_memory(tmp_path):
    _, env = journal(tmp_path)
    with running(tmp_path, {"pace": 0, "exit_at": "compiling", "exit_code": -9}, env=env) as daemon:
        row = ended(daemon, 75, "engine-died")
        assert "signal 9" in row["sentence"]


def test_a_hang_keeps_the_stacks_of_every_process(tmp_path):
    with running(
        tmp_path,
        {"pace": 0, "workers": 2},
        engine=TP2,
        liveness={"hang_after_s": 3.0, "canary_every_s": 1.0},
        incident={"keep": 3, "max_mib": 4},
    ) as daemon:
        until_ready(daemon)
        daemon.control("hang")
        ended(daemon, 75, "engine-hung", timeout=60.0)
    path = saved(daemon)
    stacks = (path / "stacks.txt").read_text()
    assert stacks.count("=== VLLM::Worker") == 2, stacks
    assert "most recent call first" in stacks
    tree = (path / "processes.txt").read_text()
    assert "gone" in tree  # SIGABRT ended them
    assert rows(daemon)[-1]["incident"] == str(path)


SECRETS = {
    "environment": "sesame-environment-1",
    "file": "sesame-envfile-22",
    "argument": "sesame-argument-333",
    "url": "sesame-url-4444",
    "header": "sesame-header-55555",
    "engine-env": "sesame-engine-666666",
    "printed-url": "sesame-printed-7777777",
    "printed-bearer": "sesameBearer88888888",
    "printed-named": "sesame-named-999999999",
    "command": "sesame-command-0000000",
}


def test_no_secret_gets_out_by_any_way(tmp_path):
    """Put in by every door that there is; looked for in everything that we write and show."""
    printed = (
        f"ERROR fetching https://me:{SECRETS['printed-url']}@hub/x with Authorization: Bearer {SECRETS['printed-bearer']} "
        f"and hub_token={SECRETS['printed-named']} "
        + " ".join(
            SECRETS[name] for name in ("environment", "file", "argument", "url", "header", "engine-env", "command")
        )
    )
    fake = {
        "pace": 0,
        "faults": [{"at": "configuring", "kind": "text", "text": f"RuntimeError: {printed}"}],
        "exit_after": 4.0,
        "exit_code": 1,
    }
    (tmp_path / "fake.env").write_text(f"HF_TOKEN={SECRETS['file']}\n")
    engine = {
        "args": {"api-key": SECRETS["argument"], "otlp-traces-endpoint": f"http://me:{SECRETS['url']}@127.0.0.1:1/v1"},
        "env": {
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {SECRETS['header']}",
            "SOME_SECRET": SECRETS["engine-env"],
            "HTTP_PROXY": f"http://me:{SECRETS['command']}@proxy:1",
        },
    }
    shown: dict[str, str] = {}
    with running(tmp_path, fake, engine=engine, env={"AWS_SECRET_ACCESS_KEY": SECRETS["environment"]}) as daemon:
        until_ready(daemon)
        for path in ("/status", "/metrics", "/", "/readyz"):
            shown[path] = daemon.get(path).text
        ended(daemon, 75, "engine-died")
        shown["STATUS"] = "\n".join(told(daemon, "STATUS"))
        shown["log"] = daemon.log()
        for path in daemon.state.rglob("*"):
            if path.is_file():
                shown[str(path.relative_to(daemon.state))] = path.read_bytes().decode(errors="replace")
        where = ("--state-dir", str(daemon.state), "--runtime-dir", str(daemon.runtime), str(daemon.config))
        for words in (("status", "--json"), ("history", "--json")):
            shown[" ".join(words)] = verb(*words, *where).stdout
    assert "verdict.json" in str(sorted(shown))
    assert "fetching https://***@hub/x" in shown["log"]
    config = next(text for name, text in shown.items() if name.endswith("config.json"))
    assert '"HF_TOKEN": "***"' in config
    leaks = [(name, which) for name, text in shown.items() for which, secret in SECRETS.items() if secret in text]
    assert leaks == []


def test_an_incident_is_listed_shown_and_packed(tmp_path):
    with running(tmp_path, {"pace": 0, "exit_at": "compiling", "exit_code": 3}) as daemon:
        ended(daemon, 75, "engine-died")
    name = saved(daemon).name
    where = ("--state-dir", str(daemon.state), "--runtime-dir", str(daemon.runtime), str(daemon.config))
    listed = incident_verb("list", *where)
    assert (listed.returncode, listed.stdout.count(name)) == (0, 1), listed.stderr
    shown = incident_verb("show", *where)
    assert "(exit status 3)" in shown.stdout, shown.stdout
    assert "compiling" in shown.stdout
    as_json = json.loads(incident_verb("show", *where, name[:12], "--json").stdout)
    assert as_json["cause"]["reason"] == "engine-died"
    target = tmp_path / "report.tar.gz"
    packed = incident_verb("export", *where, "-o", str(target))
    assert packed.returncode == 0, packed.stderr
    with tarfile.open(target) as tar:
        names = set(tar.getnames())
    wanted = {"verdict.json", "timeline.txt", "output.log", "config.json", "versions.json", "output/main.log"}
    assert {f"{name}/{each}" for each in wanted} <= names
    assert target.stat().st_mode & 0o777 == 0o600
    missing = incident_verb("show", *where, "2001")
    assert missing.returncode == 1
    assert missing.stderr.startswith("vllm-supervisor incident: there is no incident '2001' of ")
