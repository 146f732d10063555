"""Which processes are ours: descendants, our unit's cgroup, our start id, and nothing weaker (design 10)."""

from dataclasses import replace

import pytest

from vllm_supervisor.core.events import Role
from vllm_supervisor.core.ownership import Seen, engines_of, owned, role_of, roles_of, unit_cgroup

ME, ID, UNIT = 100, "abc123", "/system.slice/kimi.service"


def pids(*processes, cgroup=UNIT):
    return {found.pid for found in owned(processes, self_pid=ME, start_id=ID, unit_cgroup=cgroup)}


ENGINE = Seen(200, ME, "vllm", "vllm serve /m", cgroup="/other")
CORE = Seen(201, 200, "VLLM::EngineCor", cgroup="/other")


def test_children_and_their_descendants_are_ours():
    assert pids(Seen(ME, 1, "python"), ENGINE, CORE, Seen(202, 201, "VLLM::Worker_TP")) == {200, 201, 202}


def test_the_cgroup_of_our_unit_is_ours_with_its_children_but_not_its_namesakes():
    inside = Seen(300, 1, "VLLM::Worker", cgroup=UNIT)
    below = Seen(301, 1, "VLLM::Worker", cgroup=f"{UNIT}/sub")
    namesake = Seen(302, 1, "VLLM::Worker", cgroup=f"{UNIT}2")
    assert pids(inside, below, namesake) == {300, 301}


def test_the_start_id_marks_orphans_wherever_they_are():
    assert pids(Seen(300, 1, "VLLM::Worker", start_id=ID), Seen(301, 1, "VLLM::Worker", start_id="older")) == {300}


@pytest.mark.parametrize(
    "stranger",
    [
        Seen(400, 1, "vllm", "vllm serve /m", cgroup="/user.slice"),
        Seen(400, 1, "VLLM::Worker_TP", "VLLM::Worker_TP0", cgroup="/system.slice/other.service"),
        Seen(400, 1, "vllm", start_id=None),
        Seen(400, 399, "vllm", start_id=""),
        Seen(400, 400, "loop"),
    ],
)
def test_the_same_program_elsewhere_is_a_stranger(stranger):
    assert pids(ENGINE, stranger) == {200}


def test_in_the_foreground_a_login_session_is_nobodys():
    shell = Seen(500, 1, "bash", cgroup="")
    assert pids(shell, ENGINE, cgroup="") == {200}


def test_we_ourselves_are_never_ours_even_in_our_own_cgroup():
    assert pids(Seen(ME, 1, "python", cgroup=UNIT, start_id=ID)) == set()


def test_a_circle_of_parents_ends():
    assert pids(Seen(1, 2, "a"), Seen(2, 1, "b")) == set()


@pytest.mark.parametrize(
    ("process", "role"),
    [
        (Seen(200, ME, "vllm", "python vllm serve"), Role.API_SERVER),
        (Seen(201, 200, "VLLM::EngineCor", "VLLM::EngineCore"), Role.ENGINE_CORE),
        (Seen(201, 200, "VLLM::EngineCor", "VLLM::EngineCore_DP0"), Role.ENGINE_CORE),
        (Seen(202, 201, "VLLM::Worker_TP", "VLLM::Worker_TP7"), Role.WORKER),
        (Seen(203, 200, "VLLM::APIServer", "VLLM::APIServer_1"), Role.API_SERVER),
        (Seen(204, 202, "ptxas", "ptxas -O3 k.ptx"), Role.COMPILER),
        (Seen(205, 202, "python3", "python3 -m torch._inductor.compile_worker"), Role.COMPILER),
        (Seen(206, 200, "python3", "python3 -B -c from multiprocessing.resource_tracker import main"), Role.OTHER),
        (Seen(207, 200, "Kimi::Worker_TP", "Kimi::Worker_TP0"), Role.WORKER),
    ],
)
def test_a_title_names_the_role(process, role):
    assert role_of(process, 200) is role


@pytest.mark.parametrize(
    "part",
    [
        Seen(201, 200, "VLLM::EngineCor", "VLLM::EngineCore"),
        Seen(202, 201, "VLLM::Worker_TP", "VLLM::Worker_TP1"),
        Seen(203, 200, "VLLM::APIServer", "VLLM::APIServer_1"),
    ],
)
def test_a_copy_between_fork_and_exec_is_no_part_of_the_engine(part):
    copy = replace(part, pid=300, ppid=part.pid)
    roles = roles_of([Seen(200, ME, "vllm", "python vllm serve"), part, copy], 200)
    assert roles[part.pid] is role_of(part, 200)
    assert roles[300] is Role.OTHER


def test_a_worker_is_one_although_its_parent_is_a_part_too():
    core = Seen(201, 200, "VLLM::EngineCor", "VLLM::EngineCore")
    workers = [
        Seen(202, 201, "VLLM::Worker_TP", "VLLM::Worker_TP0"),
        Seen(203, 201, "VLLM::Worker_TP", "VLLM::Worker_TP1"),
    ]
    assert [roles_of([core, *workers], 200)[pid] for pid in (201, 202, 203)] == [
        Role.ENGINE_CORE,
        Role.WORKER,
        Role.WORKER,
    ]


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("0::/system.slice/kimi.service", "/system.slice/kimi.service"),
        ("0::/system.slice/system-vllm.slice/vllm@kimi.service\n", "/system.slice/system-vllm.slice/vllm@kimi.service"),
        ("0::/system.slice/kimi.service/inner", "/system.slice/kimi.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-x.scope", ""),
        (
            "0::/user.slice/user-0.slice/user@0.service/app.slice/kimi.service",
            "/user.slice/user-0.slice/user@0.service/app.slice/kimi.service",
        ),
        ("0::/", ""),
        ("", ""),
    ],
)
def test_only_a_service_has_a_cgroup_of_its_own(line, path):
    assert unit_cgroup(line) == path


def test_each_of_several_engines_has_its_core_and_what_descends_from_it():
    # Seen with vLLM 0.32 and --data-parallel-size 2: a dense model's workers bear no rank in their titles.
    titles = ["DPCoordinator", "EngineCore_DP0", "EngineCore_DP1", "APIServer_0", "APIServer_1"]
    tree = [Seen(10 + n, 1, "VLLM", f"VLLM::{title}") for n, title in enumerate(titles)]
    tree += [Seen(20, 12, "VLLM::Worker", "VLLM::Worker"), Seen(21, 11, "VLLM::Worker", "VLLM::Worker")]
    tree.append(Seen(22, 20, "python", "python -c from multiprocessing"))
    assert engines_of(tree) == {"0": frozenset({11, 21}), "1": frozenset({12, 20, 22})}
    assert engines_of([Seen(2, 1, "VLLM::EngineCor", "VLLM::EngineCore")]) == {}
