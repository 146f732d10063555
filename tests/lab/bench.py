"""`make bench`: the targets of the design, each beside what a user would run otherwise, in one run.

Prints a table and, with `--write`, docs/benchmarks.md and its picture. Figures are for the machine that they were taken
on; what is compared is always taken in the same minutes, as a ratio or side by side. Each part's last figures are kept in
build/bench.json, so that one that something disturbed can be taken again with `--only`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
KEPT = ROOT / "build" / "bench.json"
sys.path[:0] = [str(HERE.parents[1])]

from lab.bench_cost import cost_rows  # noqa: E402 - only importable from here on
from lab.bench_life import death_rows, hang_rows, ready_rows, real_rows  # noqa: E402
from lab.bench_loading import readahead_rows  # noqa: E402
from lab.bench_output import output_rows  # noqa: E402
from lab.bench_page import page, picture  # noqa: E402
from lab.bench_parts import Row  # noqa: E402


def main() -> int:
    """Runs every part; 0 when all of them could be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20, help="starts of the scripted engine")
    parser.add_argument("--real", type=int, default=3, help="pairs of real starts; 0 leaves them out")
    parser.add_argument("--seconds", type=int, default=60, help="length of the measured stretch when ready")
    parser.add_argument("--only", metavar="PART", help="one part: ready, cost, output, deaths, hang, real, loading")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its picture")
    args = parser.parse_args()
    parts = {
        "output": output_rows,
        "ready": lambda: ready_rows(args.starts),
        "cost": lambda: cost_rows(args.seconds),
        "deaths": death_rows,
        "hang": hang_rows,
        "real": lambda: real_rows(args.real),
        "loading": lambda: readahead_rows() if args.real else [],
    }
    if args.only and args.only not in parts:
        parser.error(f"no such part: {args.only}; there are {', '.join(parts)}")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name, part in parts.items():
        if args.only not in (None, name):
            continue
        began = time.monotonic()
        rows = part()
        for row in rows:
            print(" | ".join(row.words), flush=True)
        print(f"# {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        kept[name] = rows
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    if args.write:
        if missing := [name for name in parts if name not in kept]:
            parser.error(f"not measured yet: {', '.join(missing)}; leave --only out")
        every = [Row(*row) for name in parts for row in kept[name]]
        (ROOT / "docs" / "benchmarks.md").write_text(page(every, "make bench ARGS=--write"))
        (ROOT / "docs" / "images" / "benchmarks.svg").write_text(picture(every))
    return 0


if __name__ == "__main__":
    sys.exit(main())
