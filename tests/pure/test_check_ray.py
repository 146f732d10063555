"""Findings about Ray as the engine's executor."""

import json

from vllm_supervisor.core.check.findings import findings
from vllm_supervisor.core.check.observed import EngineView, Observed, ObservedEngine
from vllm_supervisor.core.events import Role
from vllm_supervisor.core.ownership import RAY_JOB, START_ID, Seen, owned, ray_marks, role_of
from vllm_supervisor.daemon.instance import read_instance


def check(*, device="cuda", ray=True, backend="ray"):
    view = EngineView(
        ("/opt/vllm/bin/vllm", "serve"), "/m", device=device, args={"distributed-executor-backend": backend}
    )
    seen = Observed(engine=ObservedEngine("/opt/vllm/bin/vllm", version="0.32.0", ray=ray))
    return [str(item) for item in findings(view, seen) if item.check == "ray"]


def test_ray_that_cannot_work_is_refused_with_the_remedy():
    (text,) = check(device="cpu")
    assert text.startswith("refuse: ray: vLLM for the CPU does not support Ray; set distributed-executor-backend")
    refused, _ = check(ray=False)
    assert "Ray is not installed in the engine's environment" in refused
    assert "run /opt/vllm/bin/python -m pip install 'ray[cgraph]'" in refused


def test_ray_that_can_work_is_a_warning_and_other_executors_are_nothing():
    (text,) = check()
    assert text.startswith("warn: ray: Ray's workers are no children of ours")
    assert check(backend="mp", ray=False) == []


def test_the_workers_of_a_ray_job_carry_the_start_id():
    marks = ray_marks("aabb", {})
    assert json.loads(marks[RAY_JOB]) == {"runtime_env": {"env_vars": {START_ID: "aabb", "SPT_NOENV": "1"}}}
    assert marks["RAY_USAGE_STATS_ENABLED"] == "0"
    assert ray_marks("aabb", {RAY_JOB: "{}"}) == {}
    worker = Seen(9, 8, "ray::RayWorkerP", "ray::RayWorkerProc", cgroup="/system.slice/ray.service", start_id="aabb")
    stranger = Seen(10, 8, "ray::RayWorkerP", "ray::RayWorkerProc", start_id="other")
    raylet = Seen(8, 1, "raylet", "raylet", cgroup="/system.slice/ray.service")
    found = owned((worker, stranger, raylet), self_pid=2, start_id="aabb", unit_cgroup="/system.slice/kimi.service")
    assert found == (worker,)
    assert role_of(worker, None) is Role.WORKER


def test_only_an_engine_with_ray_gets_the_marks(tmp_path):
    path = tmp_path / "x.toml"
    for backend, wanted in (("ray", True), ("mp", False)):
        path.write_text(f'[engine]\nmodel = "/m"\nargs = {{distributed_executor_backend = "{backend}"}}\n')
        instance = read_instance(path, state_dir=tmp_path, runtime_dir=tmp_path)
        assert not isinstance(instance, list)
        assert (RAY_JOB in instance.engine_environment({}, "aabb")) is wanted
