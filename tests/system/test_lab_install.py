"""`make install`, `make uninstall` and `make engine`: what is installed works from its final place, and configuration is the operator's."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lab.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "opt/vllm-supervisor"

pytestmark = pytest.mark.timeout(300)


def make(*arguments: str, check: bool = True, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # Run by `make test`, the outer make's flags and job server are none of this one's business.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    }
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stage")
    make("install", f"DESTDIR={directory}")
    return directory


@pytest.fixture(scope="module")
def installed(stage: Path, tmp_path_factory: pytest.TempPathFactory):
    """A machine on which the staged files lie where they belong, and the sources to uninstall them with."""
    sources = tmp_path_factory.mktemp("sources")
    shutil.copytree(ROOT / "units", sources / "srv/checkout/units")
    shutil.copy(ROOT / "Makefile", sources / "srv/checkout/Makefile")
    with Machine(layers=[stage, sources]) as machine:
        yield machine


def test_no_file_names_the_place_where_it_was_staged(stage: Path) -> None:
    for needle in (str(stage), f"{PREFIX}.new", str(ROOT)):
        found = subprocess.run(["grep", "-rlF", needle, stage], capture_output=True, text=True, check=False)
        assert (found.returncode, found.stdout) == (1, ""), needle
    assert (stage / "usr/local/bin/vllm-supervisor").readlink() == Path("/opt/vllm-supervisor/bin/vllm-supervisor")
    assert (stage / PREFIX / "bin/vllm-supervisor").read_text().startswith("#!/opt/vllm-supervisor/bin/python")
    assert sorted(path.name for path in (stage / "opt").iterdir()) == ["vllm-supervisor"]


def test_every_pinned_version_is_installed(stage: Path) -> None:
    site = next((stage / PREFIX).glob("lib/python3*/site-packages"))
    for line in (ROOT / "supervisor/runtime.lock").read_text().splitlines():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue  # for another platform or Python
        name, version = line.split(" ")[0].split("==")
        assert list(site.glob(f"{name.replace('-', '_')}-{version}*-info")), line


def test_a_second_installation_keeps_the_configuration(stage: Path, tmp_path: Path) -> None:
    assert (stage / "etc/vllm-supervisor/kimi.toml").read_bytes() == (ROOT / "env/kimi.toml").read_bytes()
    assert (stage / "etc/vllm-supervisor/kimi.env").stat().st_mode & 0o777 == 0o640
    (tmp_path / "etc/vllm-supervisor").mkdir(parents=True)
    (tmp_path / "etc/vllm-supervisor/kimi.toml").write_text("mine")
    said = make("install", f"DESTDIR={tmp_path}").stdout
    assert "kept      /etc/vllm-supervisor/kimi.toml" in said
    assert "installed /etc/vllm-supervisor/kimi.env" in said
    assert (tmp_path / "etc/vllm-supervisor/kimi.toml").read_text() == "mine"


def test_what_was_staged_works_from_its_final_place(installed: Machine) -> None:
    assert set(installed.run("id -nG vllm").stdout.split()) == {"vllm", "video", "systemd-journal", "render"}
    assert "vllm-supervisor" in installed.run(["vllm-supervisor", "--help"], user="vllm").stdout
    assert installed.run("stat -c '%U %G %a' /etc/vllm-supervisor/kimi.env").stdout.strip() == "root vllm 640"
    assert installed.run("stat -c '%U %a' /etc/credstore").stdout.strip() == "root 700"
    verify = installed.run("systemd-analyze verify kimi.service vllm@x.service kimi-fetch.service")
    assert verify.stdout + verify.stderr == ""


def test_an_uninstallation_waits_for_a_stop_and_leaves_configuration_and_state(installed: Machine) -> None:
    installed.put(
        "[Service]\nType=exec\nExecStart=\nExecStart=sleep 600\n", "/run/systemd/system/kimi.service.d/stand-in.conf"
    )
    installed.run("systemctl daemon-reload && systemctl start kimi")
    refused = installed.run("make -C /srv/checkout --no-print-directory uninstall", check=False)
    assert refused.returncode != 0
    assert "systemctl disable --now kimi.service" in refused.stderr
    assert installed.run("ls /usr/local/bin/vllm-supervisor").stdout
    installed.run("systemctl stop kimi && systemctl enable --quiet kimi-fetch")
    said = installed.run("make -C /srv/checkout --no-print-directory uninstall").stdout
    assert "left      /etc/vllm-supervisor, /var/lib/vllm-supervisor" in said
    installed.run("test -e /etc/vllm-supervisor/kimi.toml && test -d /var/lib/vllm-supervisor/kimi")
    gone = "/opt/vllm-supervisor /usr/local/bin/vllm-supervisor /usr/lib/systemd/system/kimi.service /usr/lib/systemd/system/kimi-fetch.service /etc/systemd/system/kimi.service.wants/kimi-fetch.service /usr/lib/sysusers.d/vllm-supervisor.conf"
    assert installed.run(f"ls -d {gone} 2>/dev/null", check=False).stdout == ""
    assert installed.show("vllm@x.service", "LoadState") == "not-found"


def test_a_python_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = make("install", f"DESTDIR={tmp_path}", "PYTHON=/usr/bin/python9", check=False)
    assert done.returncode != 0
    assert "make: /usr/bin/python9 is not there: install the system's python3 and python3-venv" in done.stderr
    assert not (tmp_path / PREFIX).exists()


def fake_engine(directory: Path, version: str) -> None:
    """A wheel that calls itself vllm and brings a command of that name."""
    info = f"vllm-{version}.dist-info"
    with zipfile.ZipFile(directory / f"vllm-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("fake_vllm.py", f"def main():\n    print('fake {version}')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nvllm = fake_vllm:main\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_an_engine_of_each_version_has_its_own_place_and_one_link_names_the_one_in_use(tmp_path: Path) -> None:
    for version in ("0.0.1", "0.0.2"):
        fake_engine(tmp_path, version)
    link = tmp_path / "vllm"
    common = (f"ENGINE_DIR={link}", f"PIP_ARGS=--no-index --find-links={tmp_path}")
    for version in ("0.0.1", "0.0.2", "0.0.1"):
        make("engine", f"VLLM={version}", *common)
        assert link.readlink() == tmp_path / f"vllm-{version}"
        assert subprocess.check_output([link / "bin/vllm"], text=True) == f"fake {version}\n"
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".whl") == [
        "vllm",
        "vllm-0.0.1",
        "vllm-0.0.2",
    ]

    before = sorted(tmp_path.iterdir())
    absent = make("engine", "VLLM=0.0.3", *common, check=False)
    assert absent.returncode != 0
    assert "No matching distribution" in absent.stderr
    assert link.readlink() == tmp_path / "vllm-0.0.1"
    assert sorted(tmp_path.iterdir()) == before, "what was begun is gone"


def test_an_engine_is_staged_like_everything_and_what_fails_leaves_no_directory(tmp_path: Path) -> None:
    fake_engine(tmp_path, "0.0.1")
    stage = tmp_path / "stage"
    common = (f"DESTDIR={stage}", "ENGINE_DIR=/opt/x/vllm", f"PIP_ARGS=--no-index --find-links={tmp_path}")
    absent = make("engine", "VLLM=0.0.3", *common, check=False)
    assert absent.returncode != 0
    assert not stage.exists()
    assert "installed /opt/x/vllm -> /opt/x/vllm-0.0.1\n" in make("engine", "VLLM=0.0.1", *common).stdout
    assert (stage / "opt/x/vllm").readlink() == Path("/opt/x/vllm-0.0.1")
    first = (stage / "opt/x/vllm-0.0.1/bin/vllm").read_text().splitlines()[0]
    assert first.startswith("#!/opt/x/vllm-0.0.1/bin/python")
    assert not Path("/opt/x").exists()


@pytest.mark.parametrize("version", ["newest", "../evil", "0.32 --pre", "0.32/x"])
def test_what_is_no_version_makes_no_engine(tmp_path: Path, version: str) -> None:
    done = make("engine", f"VLLM={version}", f"ENGINE_DIR={tmp_path / 'in/vllm'}", check=False)
    assert done.returncode != 0
    assert f"make: VLLM={version} is no version: such as VLLM=0.32.0" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_engine_needs_a_version_and_a_place_that_is_a_link(tmp_path: Path) -> None:
    assert "say which version" in make("engine", check=False).stderr
    (tmp_path / "vllm").mkdir()
    assert (
        "is a directory, not a link"
        in make("engine", "VLLM=0.0.1", f"ENGINE_DIR={tmp_path / 'vllm'}", check=False).stderr
    )


def test_make_alone_lists_every_target() -> None:
    listed = {line.split()[0] for line in make().stdout.splitlines() if line and not line.startswith("Variables")}
    assert {
        "test",
        "test-fast",
        "lint",
        "install",
        "uninstall",
        "engine",
        "engine-dev",
        "units",
        "demo",
        "bench",
        "clean",
        "deps",
    } <= listed
