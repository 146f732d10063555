"""Proofs on a GPU machine, one script a call: `proof.py all-1 --out DIR`, `proof.py all-2 --out DIR`, or one alone.

Needs root only to become an ordinary user. Every result is a line of results.jsonl at once, so that a call that is
cut off keeps what it had. Rehearsal without a GPU: --device cpu with a CPU engine, or --fake with the fake engine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cost
import faults
import loading
import planning
import serving
from eyes import Nvml
from machine import CHECKOUT, HERE, Lab, Out, OutOfTimeError, left_over, own, smi

PROOFS = (
    "probe",
    "serve",
    "reload",
    "stop",
    *faults.KINDS,
    "faults",
    "plan-truth",
    "refusals",
    "cost",
    "readahead",
    "all-1",
    "all-2",
)
PROBE = """
import os, sys, time
began = time.monotonic()
import torch
print("torch", torch.__version__, torch.cuda.is_available(), torch.cuda.device_count(), round(time.monotonic()-began, 1))
if torch.cuda.is_available():
    x = torch.ones(4, device="cuda"); torch.cuda.synchronize(); print("cuda", float(x.sum()))
import vllm.entrypoints.cli.main, vllm.entrypoints.openai.api_server, vllm.v1.engine.core
print("vllm", vllm.__version__, round(time.monotonic()-began, 1))
"""


def main() -> int:
    """Run one proof, or the list of a call."""
    args = _arguments()
    out = Out(args.out)
    lab = _lab(args, out)
    lab.source()  # before any thread asks for it
    nvml = Nvml(out, lab.fake)
    lab.gpus = nvml.count
    tp = args.tp or min(2, max(nvml.count, 1))
    out.record(
        "machine", python=platform.python_version(), kernel=platform.release(), cores=os.cpu_count(), gpus=nvml.count,
        smi=smi("--query-gpu=index,name,memory.total,driver_version,power.draw"), tp=tp, argv=sys.argv[1:],
        commit=args.commit,
    )  # fmt: skip
    models = {"dense": args.dense, "mla": args.mla}
    wanted = {
        "all-1": ["probe", "serve", "cost", "reload", "stop"],
        "all-2": ["faults", "plan-truth", "refusals"],
        "reload": ["serve", "reload"],
        "stop": ["serve", "stop"],
        "cost": ["serve", "cost"],
        "readahead": ["probe", "readahead"],
    }.get(args.proof, [args.proof])
    held: list[serving.Instance] = []
    before: dict[str, object] = {}
    for step in wanted:
        out.say(f"--- {step} ({lab.left():.0f} s left)")
        try:
            if step == "probe":
                probe(lab)
            elif step == "serve":
                instance, before = serving.serve(lab, nvml, models["dense"], tp)
                held.append(instance)
                serving.answers(lab, instance)
                serving.memory(lab, instance)
                serving.rates(lab, nvml, instance, args.seconds)
            elif step == "cost" and held:
                cost.cost(lab, nvml, held[0], args.seconds / 2)
            elif step == "reload" and held:
                serving.reload(lab, held[0])
            elif step == "stop" and held:
                serving.stop(lab, nvml, held[0], before)
            elif step == "faults":
                faults.faults(lab, nvml, models["dense"], tp)
            elif step in faults.KINDS:
                faults.faults(lab, nvml, models["dense"], tp, (step,))
            elif step == "readahead":
                loading.readahead(lab, nvml, models["dense"], tp)
            elif step == "plan-truth":
                planning.plan_truth(lab, nvml, {k: v for k, v in models.items() if v and v.is_dir()}, args.caches)
            elif step == "refusals":
                planning.refusals(lab, nvml, models["dense"])
            else:
                out.record("skipped", what=step, why="no serving engine")
        except OutOfTimeError:
            continue
        except Exception as error:
            out.record("step-failed", step=step, error=f"{type(error).__name__}: {error}"[:2000])
            if args.trace:
                raise
        finally:
            if step == wanted[-1]:
                for instance in held:
                    instance.close()
    for line in left_over(lab.work):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)
        out.record("killed-at-the-end", process=line)
    out.record("end", seconds=round(time.monotonic() - out.began, 1))
    done = subprocess.run(
        [sys.executable, str(HERE / "report.py"), str(args.out)], capture_output=True, text=True, check=False
    )
    print(done.stdout + done.stderr)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("proof", choices=PROOFS)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "out"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/vp"), help="short: unix sockets lie below it")
    parser.add_argument("--site", default="/tmp/site", help="folder with vLLM for this Python; '' when not needed")
    parser.add_argument("--engine", help="the engine's program; default: one that is made for --site")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the supervisor")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=570, help="seconds after which nothing new is begun")
    parser.add_argument("--seconds", type=float, default=35, help="length of a measured stretch")
    parser.add_argument("--tp", type=int)
    parser.add_argument("--dense", type=Path, default=Path("/tmp/models/dense"))
    parser.add_argument("--mla", type=Path, default=Path("/tmp/models/mla"))
    parser.add_argument("--caches", nargs="*", default=["auto", "fp8"])
    parser.add_argument("--no-seccomp", action="store_true")
    parser.add_argument("--fake", action="store_true", help="rehearse with the fake engine and a fake NVML")
    parser.add_argument("--fast", action="store_true", help="rehearse with a hang that is named after 20 s")
    parser.add_argument("--engine-arg", action="append", default=[], metavar="NAME=JSON", help="for every engine")
    parser.add_argument("--trace", action="store_true", help="show where a step failed")
    parser.add_argument("--commit", default="")
    return parser.parse_args()


def _lab(args: argparse.Namespace, out: Out) -> Lab:
    if args.work.exists():
        shutil.rmtree(args.work / "src", ignore_errors=True)
    args.work.mkdir(parents=True, exist_ok=True)
    args.work.chmod(0o755)
    engine_args = {"enforce-eager": True, "max-model-len": 4096}
    engine_args |= {name: json.loads(value) for name, _, value in (given.partition("=") for given in args.engine_arg)}
    fake: dict[str, str] = {}
    engine = [args.engine] if args.engine else []
    if args.fake:
        fake = _fake(args.work, args.tp or 2)
        engine, args.site = [args.python, str(CHECKOUT / "tests" / "fake" / "fake_vllm.py"), "serve"], ""
        shutil.copytree(CHECKOUT / "tests" / "fake", args.work / "fake", dirs_exist_ok=True)
        engine[1] = str(args.work / "fake" / "fake_vllm.py")
        args.dense = args.mla = Path(fake["model"])
    elif not engine:
        program = args.work / "bin" / "vllm"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!{sys.executable}\nimport sys\n\nfrom vllm.entrypoints.cli.main import main\n\n"
            'if __name__ == "__main__":\n    sys.exit(main())\n'
        )
        program.chmod(0o755)
        engine = [str(program)]
    if engine[-1] != "serve":
        engine.append("serve")
    return Lab(
        out=out, work=args.work, python=args.python, engine=engine, site=args.site, device=args.device, gpus=0,
        seccomp=not args.no_seccomp, budget=args.budget, fake=fake, engine_args=engine_args, fast=args.fast,
    )  # fmt: skip


def _fake(work: Path, count: int) -> dict[str, str]:
    """A fake engine, fake GPUs and a fake checkpoint, for the rehearsal."""
    sys.path.insert(0, str(CHECKOUT / "tests"))
    from process.fakes import write_model

    shutil.copytree(CHECKOUT / "tests" / "lab" / "fake_nvml", work / "fake_nvml", dirs_exist_ok=True)
    (work / "script.json").write_text(json.dumps({"pace": 2.0, "token_delay": 0.01}))
    (work / "gpus.json").write_text(json.dumps({"gpus": [{"memory_used": 600 << 20} for _ in range(count)]}))
    model = write_model(work / "model")
    subprocess.run(["chmod", "-R", "a+rX", str(work)], check=False)
    return {
        "nvml": str(work / "fake_nvml"), "gpus": str(work / "gpus.json"), "script": str(work / "script.json"),
        "model": str(model),
    }  # fmt: skip


def probe(lab: Lab) -> None:
    """Whether the service's user can run everything, with and without the list of system calls; warms the disk."""
    if lab.fake:
        lab.out.record("probe", note="the fake engine needs none")
        return
    environment = {**lab.environment("probe"), **lab.engine_environment()}
    python = lab.python
    if not lab.site:
        environment.pop("PYTHONPATH", None)
        python = str(Path(lab.engine[0]).with_name("python"))
    own(lab.work / "cache")
    for seccomp in (True, False) if lab.seccomp else (False,):
        command = [lab.python, str(lab.source() / "gpu" / "confine.py"), *(["--seccomp"] if seccomp else []), "--"]
        began = time.monotonic()
        done = subprocess.run(
            [*command, python, "-c", PROBE], env=environment, capture_output=True, text=True, timeout=180, check=False,
            cwd=lab.work,
        )  # fmt: skip
        lab.out.record(
            "probe", seccomp=seccomp, exit=done.returncode, seconds=round(time.monotonic() - began, 1),
            said=done.stdout.strip().splitlines()[-6:], error=done.stderr[-600:] if done.returncode else "",
        )  # fmt: skip
        if done.returncode == 0:
            break
        lab.seccomp = False


if __name__ == "__main__":
    sys.exit(main())
