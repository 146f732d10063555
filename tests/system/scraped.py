"""A real Prometheus beside a service of the machine: what it makes of the service's page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from system.service import Service

MONITORING = Path(__file__).parents[2] / "monitoring"
PLACE = "/srv/prometheus"
PORT = 9090
UNIT = "prometheus-under-test"
RULES = ("recording.yml", "alerts.yml")

NEEDS_A_GPU = re.compile(r"vllm_supervisor_gpu_")
NOT_WHILE_READY = {"Failures", "Time left"}
"""Panels that are empty where nothing failed, and where nothing is left to wait for."""

UNCERTAIN = re.compile(r"readahead_disk_bytes|canary_seconds|liveness_engine_")
"""A model that was in memory is not read from the disk; an engine that has just answered needs no canary; one engine
alone has no series of its own."""


class Prometheus:
    """Scrapes the service every two seconds and evaluates our rules every second.

    Args:
        service: The service; its metrics port is the only target.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def __enter__(self) -> Self:
        machine = self.service.machine
        for name in RULES:
            machine.put(MONITORING / name, f"{PLACE}/{name}")
        target = f"127.0.0.1:{self.service.metrics_port}"
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
            "rule_files": list(RULES),
            "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": [target]}]}],
        }
        machine.put(json.dumps(config), f"{PLACE}/prometheus.yml")
        machine.run(["promtool", "check", "config", f"{PLACE}/prometheus.yml"])
        program = ["/usr/bin/prometheus", f"--config.file={PLACE}/prometheus.yml"]
        program += [f"--storage.tsdb.path={PLACE}/data", f"--web.listen-address=127.0.0.1:{PORT}"]
        machine.run(["systemd-run", f"--unit={UNIT}", "--collect", *program])
        # It answers 503 while it reads its files.
        self.service.wait("Prometheus is ready", lambda: self.service.get("/-/ready", PORT)[0] == 200, 60)
        return self

    def __exit__(self, *_: object) -> None:
        self.service.machine.run(f"systemctl stop {UNIT}; rm -rf {PLACE}", check=False, timeout=60)

    def ask(self, what: str, **arguments: str) -> Any:
        """One call of the API; a query that Prometheus refuses fails the test."""
        given = [word for name, value in arguments.items() for word in ("--data-urlencode", f"{name}={value}")]
        url = f"http://127.0.0.1:{PORT}/api/v1/{what}"
        done = self.service.machine.run(["curl", "-s", "-m", "20", "--get", *given, url])
        answer = json.loads(done.stdout)
        assert answer["status"] == "success", (arguments, answer)
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that a query gives now."""
        return list(self.ask("query", query=expr)["result"])

    def until(self, expr: str, timeout: float = 60.0) -> list[dict[str, Any]]:
        """What a query gives, once it gives something."""
        return list(self.service.wait(f"an answer to {expr}", lambda: self.query(expr), timeout))

    def rules(self) -> list[dict[str, Any]]:
        """All rules, once each of them was evaluated."""

        def evaluated() -> list[dict[str, Any]]:
            rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
            return rules if all(rule["health"] != "unknown" for rule in rules) else []

        return list(self.service.wait("all rules evaluated", evaluated, 60))


def panels() -> list[tuple[str, str]]:
    """Title and query of every line of the dashboard, for all instances."""
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return [
        (
            panel["title"],
            target["expr"].replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", "1m"),
        )
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def prometheus_understands(service: Service) -> None:
    """Rules, alerts and panels on the page of an engine that serves on the CPU and has answered something."""
    with Prometheus(service) as prometheus:
        prometheus.until("count_over_time(vllm_supervisor_ready[1m]) >= 3")
        assert service.chat("What is the capital of France?")[0] == 200
        prometheus.until("instance:vllm_generation_tokens:rate5m > 0")
        rules = prometheus.rules()
        assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}

        def quiet() -> bool:
            alerts = [rule for rule in prometheus.rules() if rule["type"] == "alerting"]
            return len(alerts) >= 15 and {rule["state"] for rule in alerts} == {"inactive"}

        # A scrape that a busy host answered late makes one of them pending until the next one.
        service.wait("no alert, not even a pending one", quiet, 60)
        for title, expr in panels():
            if UNCERTAIN.search(expr):
                prometheus.query(expr)
            elif NEEDS_A_GPU.search(expr) or title in NOT_WHILE_READY:
                assert prometheus.query(expr) == [], (title, expr)
            else:
                prometheus.until(expr, 30)
