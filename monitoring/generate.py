"""Writes alerts.yml, recording.yml and grafana-dashboard.json from the rules and the dashboard beside it.

`python monitoring/generate.py` writes, `--check` names what is not current; `--runbooks URL --to DIR` writes
them for a place where the documentation has an address of its own.
"""
# ruff: noqa: INP001 - a folder of files to run and to deploy, no package

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import alerts_engine  # noqa: E402 - neighbours, importable from here on
import alerts_machine  # noqa: E402
from alert import Alert  # noqa: E402
from dashboard import dashboard  # noqa: E402
from recording import RECORDED  # noqa: E402

ALERTS = alerts_engine.ALERTS | alerts_machine.ALERTS
DOCUMENTATION = "/usr/local/share/doc/vllm-supervisor/"
"""Where `make install` puts it; the alerts lead there."""

HEAD = "# Written by generate.py; edit the files in Python beside it instead.\n"


def files(documentation: str = DOCUMENTATION) -> dict[str, str]:
    """Every file by its name.

    Args:
        documentation: What stands in front of `docs/runbooks/…` in each alert's `runbook_url`.
    """
    return {
        "alerts.yml": _alerts(documentation.rstrip("/") + "/"),
        "recording.yml": _recording(),
        "grafana-dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
    }


def _text(value: str) -> str:
    """A YAML scalar: every JSON string is one."""
    return json.dumps(value, ensure_ascii=False)


def _alerts(documentation: str) -> str:
    groups = "".join(
        f"  - name: vllm-{name}\n    rules:\n" + "".join(_alert(alert, documentation) for alert in alerts)
        for name, alerts in ALERTS.items()
    )
    return f"{HEAD}groups:\n{groups}"


def _alert(alert: Alert, documentation: str) -> str:
    return (
        f"      - alert: {alert.name}\n"
        f"        expr: {_text(alert.expr)}\n"
        f"        for: {alert.hold}\n"
        f"        labels: {{severity: {alert.severity}}}\n"
        f"        annotations:\n"
        f"          summary: {_text(alert.summary)}\n"
        f"          runbook_url: {_text(documentation + alert.runbook)}\n"
    )


def _recording() -> str:
    rules = "".join(f"      - record: {name}\n        expr: {_text(expr)}\n" for name, expr in RECORDED.items())
    return f"{HEAD}groups:\n  - name: vllm-recording\n    rules:\n{rules}"


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` name those that are not current."""
    parser = argparse.ArgumentParser(description="Write the alert rules, the recording rules and the dashboard.")
    parser.add_argument("--check", action="store_true", help="write nothing, name what is not current")
    parser.add_argument("--runbooks", metavar="URL", default=DOCUMENTATION, help="where the documentation is")
    parser.add_argument("--to", metavar="DIR", type=Path, default=HERE, help="another directory to write to")
    args = parser.parse_args(arguments)
    old = []
    for name, text in files(args.runbooks).items():
        path = args.to / name
        if not args.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            old.append(name)
    if old:
        sys.stderr.write(f"not current: {', '.join(old)}; run python monitoring/generate.py\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
