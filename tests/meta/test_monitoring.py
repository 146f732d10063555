"""Alerts, recording rules and dashboard: current, valid, tried, and only about metrics that exist."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_supervisor.core.counters import OLD_NAMES, READ
from vllm_supervisor.core.metrics import FULL_NAMES, METRICS, PREFIX
from vllm_supervisor.core.phases import LOADING, ORDER

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "monitoring"


def load(name):
    sys.path.insert(0, str(MONITORING))
    try:
        spec = importlib.util.spec_from_file_location(name, MONITORING / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(MONITORING))


WRITTEN = load("generate")
RECORDED = sys.modules["recording"].RECORDED
ALERTS = [alert for group in WRITTEN.ALERTS.values() for alert in group]
QUERIES = {
    **{f"alert {alert.name}": alert.expr for alert in ALERTS},
    **{f"record {name}": expr for name, expr in RECORDED.items()},
    **{
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in WRITTEN.dashboard()["panels"]
        for target in panel.get("targets", ())
    },
}
CORPUS = "\n".join(path.read_text() for path in (ROOT / "tests" / "corpus" / "metrics").glob("*.txt"))
ENGINE = set(re.findall(r"^([a-zA-Z_:][\w:]*)[{ ]", CORPUS, re.MULTILINE)) | set(OLD_NAMES) | set(READ)
WORDS = {"by", "on", "and", "or", "unless", "offset", "group_left", "group_right", "ignoring", "without", "bool"}


def asked(expr):
    """The metrics that a query asks for, and the labels that it names beside each."""
    bare = re.sub(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)", " ", expr)
    bare = re.sub(r"\[[^\]]*\]|\boffset \w+", " ", bare)
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", '""', bare)
    found = {}
    for match in re.finditer(r"([a-zA-Z_:][\w:]*)\s*(\(|\{[^}]*\})?", bare):
        name, rest = match[1], match[2] or ""
        if rest != "(" and name not in WORDS and not re.fullmatch(r"\d.*|e\d+", name):
            found.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", rest))
    return found


def test_a_query_is_taken_apart_rightly():
    expr = 'sum by (job) (rate(vllm:a_total{x="b(c)", y=~"z"}[5m])) > 4e9 and on (job) up unless c offset 5m == 1'
    assert asked(expr) == {"vllm:a_total": {"x", "y"}, "up": set(), "c": set()}


@pytest.mark.parametrize("name", QUERIES)
def test_no_query_asks_for_a_metric_or_label_that_does_not_exist(name):
    metrics = asked(QUERIES[name])
    assert metrics
    for metric, labels in metrics.items():
        assert metric in FULL_NAMES | ENGINE | set(RECORDED) | {"up"}, metric
        if metric in FULL_NAMES:
            known = {"job", "instance", *METRICS[metric.removeprefix(PREFIX)].labels}
            assert labels <= known, (metric, labels - known)


def test_the_phases_that_are_no_part_of_a_start_are_the_supervisor_s_own():
    named = sys.modules["alerts_engine"].NOT_LOADING.split("|")
    assert set(named) == {phase.value for phase in ORDER if phase not in LOADING}


def test_labels_in_a_summary_exist():
    for alert in ALERTS:
        used = set(re.findall(r"\$labels\.(\w+)", alert.summary))
        known = {"instance", "job"} | set().union(
            *(METRICS[name.removeprefix(PREFIX)].labels for name in asked(alert.expr) if name in FULL_NAMES),
            re.findall(r"\w+", " ".join(RECORDED[name] for name in asked(alert.expr) if name in RECORDED)),
        )
        assert used <= known, alert.name


@pytest.mark.parametrize("name", WRITTEN.files())
def test_the_written_file_is_current(name):
    assert (MONITORING / name).read_text() == WRITTEN.files()[name], "run python monitoring/generate.py"


def promtool(*arguments):
    return subprocess.run(
        ["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )


def test_promtool_accepts_the_rules():
    done = promtool("check", "rules", "alerts.yml", "recording.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_every_alert_fires_when_it_should_and_only_then():
    done = promtool("test", "rules", "tests/alerts.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires():
    tried = set(re.findall(r'alertname="(\w+)"', (MONITORING / "tests" / "alerts.yml").read_text()))
    assert tried == {alert.name for alert in ALERTS}
    assert len(ALERTS) >= 15


def test_alert_names_are_unique_and_severities_known():
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    assert {alert.severity for alert in ALERTS} <= {"critical", "warning", "info"}


def anchors(path):
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_leads_to_a_section_of_a_runbook(alert):
    file, _, anchor = alert.runbook.partition("#")
    assert anchor in anchors(ROOT / file)


def test_the_links_lead_to_where_make_install_puts_the_runbook_or_where_one_says():
    def links(text):
        return re.findall(r'runbook_url: "(.*)"', text)

    (installed,) = re.findall(r"^DOCDIR \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert links((MONITORING / "alerts.yml").read_text()) == [f"{installed}/{alert.runbook}" for alert in ALERTS]
    assert installed in (ROOT / "units" / "install.sh").read_text(), "another DOCDIR is written into the rules"
    for base in ("https://git.example.org/main", "https://git.example.org/main/"):
        written = WRITTEN.files(base)["alerts.yml"]
        assert links(written) == [f"https://git.example.org/main/{alert.runbook}" for alert in ALERTS]


def test_the_rules_are_written_elsewhere_and_checked_there(tmp_path, capsys):
    assert WRITTEN.main(["--runbooks", "https://x.example", "--to", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(WRITTEN.files())
    assert WRITTEN.main(["--check", "--runbooks", "https://x.example", "--to", str(tmp_path)]) == 0
    assert WRITTEN.main(["--check", "--to", str(tmp_path)]) == 1
    assert "not current: alerts.yml;" in capsys.readouterr().err


def test_prometheus_takes_the_configuration_of_the_readme(tmp_path):
    page = (MONITORING / "README.md").read_text()
    block = page[page.index("    scrape_configs:") :].partition("\n\n")[0]
    text = "\n".join(line[4:] for line in block.splitlines())
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("/usr/local/share/doc/vllm-supervisor", str(ROOT)))
    done = promtool("check", "config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


def test_the_dashboard_is_laid_out_without_overlap():
    taken = set()
    panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
