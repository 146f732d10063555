"""The committed units come from their template, say what the daemon relies on, and stay tight."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from lab.units import FETCH, FETCH_FINAL, render
from vllm_supervisor.core.caches import caches
from vllm_supervisor.core.exits import EXEC_FAILURES, NO_RESTART, RESTARTED, ExitCode

ROOT = Path(__file__).resolve().parent.parent.parent
UNITS = ROOT / "units"
NAMES = ["kimi.service", "vllm@.service"]
WEIGHTS = ["kimi-weights.service", "vllm-weights@.service"]
MOST_EXPOSED = 2.0


def settings(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", [*NAMES, *WEIGHTS, FETCH])
def test_the_committed_unit_is_what_the_template_gives(name: str) -> None:
    assert (UNITS / name).read_text() == render(name), "run `make units`"
    assert "@" not in re.sub(
        r"(?m)^#.*|vllm(-weights)?@kimi\.service|modprobe@nvidia_uvm\.service|vllm(-weights)?@(%i|NAME)(\.service)?|[@~]+(system-service|privileged)",
        "",
        render(name),
    )


def test_both_units_differ_in_nothing_but_the_name_and_the_mounts() -> None:
    kimi, any_name = (settings(name) for name in NAMES)
    assert kimi.pop("Conflicts") == ["vllm@kimi.service"]
    assert kimi.pop("RequiresMountsFor") == ["/opt/vllm /shared/kimi-k2.5-nvfp4"]
    assert any_name.pop("RequiresMountsFor") == ["/opt/vllm"]
    for one in (kimi, any_name):
        one.pop("Description")
    fixed = {key: [value.replace("%i", "kimi") for value in values] for key, values in any_name.items()}
    assert fixed == kimi


@pytest.mark.parametrize("name", NAMES)
def test_the_exit_codes_without_a_restart_are_those_of_the_enum(name: str) -> None:
    listed = {int(code) for code in settings(name)["RestartPreventExitStatus"][0].split()}
    assert listed == NO_RESTART
    assert not listed & {int(code) for code in RESTARTED}


@pytest.mark.parametrize("name", NAMES)
def test_what_the_daemon_relies_on(name: str) -> None:
    wanted = {
        "Type": "notify",
        "NotifyAccess": "main",
        "KillMode": "mixed",
        "Restart": "on-failure",
        "StartLimitIntervalSec": "0",
        "TimeoutStartSec": "3min",
        "OOMPolicy": "continue",
        "LogRateLimitIntervalSec": "1s",
        "LogRateLimitBurst": "10000000",
        "LimitMEMLOCK": "infinity",
        "LimitNOFILE": "1048576",
        "LimitCORE": "0",
        "ProtectSystem": "strict",
        "ProtectProc": "default",
        "ProcSubset": "all",
    }
    found = settings(name)
    assert {key: found[key] for key in wanted} == {key: [value] for key, value in wanted.items()}
    assert "systemd-journal" in found["SupplementaryGroups"][0].split()
    assert "nvidia-persistenced.service" in found["After"][0].split()
    assert not {"MemoryDenyWriteExecute", "PrivateDevices", "EnvironmentFile", "PrivateUsers"} & set(found)


@pytest.mark.parametrize("name", NAMES)
def test_directories_of_the_engine_are_inside_what_the_unit_makes(name: str) -> None:
    found = settings(name)
    instance = found["StateDirectory"][0]
    assert found["CacheDirectory"] == found["RuntimeDirectory"] == [instance]
    environment = dict(value.split("=", 1) for value in found["Environment"])
    assert environment.pop("TMPDIR") == "/tmp"
    for value in environment.values():
        assert value.startswith((f"%S/{instance}", f"%C/{instance}"))
    assert {
        "HOME",
        "XDG_CACHE_HOME",
        "VLLM_CACHE_ROOT",
        "HF_HOME",
        "TRITON_CACHE_DIR",
        "FLASHINFER_WORKSPACE_BASE",
        "CUDA_CACHE_PATH",
    } <= set(environment)
    # TMPDIR is emptied with every stop, so that no cache may lie there; nor anywhere the sandbox closes.
    kept = caches({**environment, "TMPDIR": "/tmp"})
    assert {cache.name: cache.path for cache in kept if not cache.path.startswith(f"%C/{instance}/")} == {}


@pytest.mark.parametrize(("name", "serves"), list(zip(WEIGHTS, NAMES, strict=True)))
def test_the_unit_of_the_weights_differs_only_where_it_must(name: str, serves: str) -> None:
    holder, engine = settings(name), settings(serves)
    instance = "kimi" if serves == "kimi.service" else "%i"
    assert holder.pop("ExecStart") == [value.replace("run ", "run --weights ") for value in engine.pop("ExecStart")]
    assert holder["ExecReload"] == [f"{value}-weights" for value in engine["ExecReload"]]
    partner = serves.replace("@", f"@{instance}") if instance == "%i" else serves
    assert holder.pop("Before") == holder.pop("WantedBy") == [partner]
    own = {"StateDirectory", "RuntimeDirectory", "WorkingDirectory"}
    assert {holder.pop(key)[0] for key in own} == {
        f"vllm-supervisor/{instance}-weights",
        f"%S/vllm-supervisor/{instance}-weights",
    }
    # The engine finds what was tuned for it, so that the caches are the same; its home is not.
    homes = ("HOME=", "XDG_CONFIG_HOME=")
    left, right = ([v for v in each.pop("Environment") if not v.startswith(homes)] for each in (holder, engine))
    assert left == right
    for key in (*own, "ExecReload", "WantedBy", "Conflicts", "Description"):
        holder.pop(key, None)
        engine.pop(key, None)
    assert holder == engine


def test_either_name_of_the_same_instance_excludes_the_other() -> None:
    assert settings("kimi.service")["Conflicts"] == ["vllm@kimi.service"]
    assert settings("kimi-weights.service")["Conflicts"] == ["vllm-weights@kimi.service"]


def test_the_unit_that_fetches_is_wanted_and_nothing_waits_for_it() -> None:
    found = settings(FETCH)
    assert found["WantedBy"] == ["kimi.service"]
    # Ordered before nothing, and started with its first moment: neither a boot nor a start of kimi has a job to wait for.
    assert found["Type"] == ["exec"]
    assert not {"Before", "Requires", "RequiredBy", "BindsTo", "PartOf", "ExecStartPre", "ExecStartPost"} & set(found)
    kimi = settings("kimi.service")
    assert not [value for key in ("After", "Requires", "BindsTo") for value in kimi.get(key, []) if "fetch" in value]
    (mounts,) = found["RequiresMountsFor"]
    assert mounts in kimi["RequiresMountsFor"][0]
    assert found["ReadWritePaths"] == [mounts]
    assert found["LoadCredential"] == ["hub-token:kimi.hub-token"]
    (command,) = found["ExecStart"]
    assert command.endswith(f" fetch nvidia/Kimi-K2.5-NVFP4 --to {mounts} --rate 200MiB")
    listed = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    assert listed == FETCH_FINAL | EXEC_FAILURES
    assert int(ExitCode.TRANSIENT) not in listed


@pytest.mark.parametrize("name", [*NAMES, *WEIGHTS, FETCH])
def test_systemd_finds_nothing_to_complain_about(name: str, tmp_path: Path) -> None:
    # The one thing that only an installation has is the command itself.
    copy = tmp_path / name
    copy.write_text((UNITS / name).read_text().replace("/usr/local/bin/vllm-supervisor", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", [*NAMES, *WEIGHTS, FETCH])
def test_the_sandbox_stays_tight(name: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", UNITS / name],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) <= MOST_EXPOSED
