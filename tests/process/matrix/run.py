"""`make matrix`: every cell, some side by side; the results as JSON, and a word about each that is wrong."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import tempfile
import time
from pathlib import Path

from process.matrix.cell import Measured, Neighbour, run
from process.matrix.faults import library_of_clock
from process.matrix.table import CELLS, FAULTS, PHASES, Cell, selection


def run_all(cells: tuple[Cell, ...], jobs: int, folder: Path) -> list[Measured]:
    """Run the cells, `jobs` at a time."""
    library_of_clock()
    neighbour = Neighbour(folder / "neighbour")
    done: list[Measured] = []
    began = time.monotonic()
    try:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(run, cell, folder / str(number), neighbour) for number, cell in enumerate(cells)]
            for each in concurrent.futures.as_completed(waiting):
                result = each.result()
                done.append(result)
                if result.problem:
                    print(f"{result.cell.name}: {result.problem}\n", flush=True)
                if len(done) % 50 == 0:
                    print(f"{len(done)} of {len(cells)} cells after {time.monotonic() - began:.0f} s", flush=True)
    finally:
        neighbour.close()
    return done


def main() -> int:
    """Run what was asked for; 1 when a cell is wrong."""
    parser = argparse.ArgumentParser(description="Run the fault matrix against the fake engine.")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this one")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only this one")
    parser.add_argument("--selection", action="store_true", help="the part that the tests run")
    parser.add_argument(
        "--again", action="store_true", help="only what was wrong when --out was written; the rest is kept"
    )
    parser.add_argument("--out", type=Path, help="write what was measured, as JSON")
    args = parser.parse_args()
    cells = tuple(
        cell
        for cell in (selection() if args.selection else CELLS)
        if (not args.fault or cell.fault in args.fault) and (not args.phase or cell.phase in args.phase)
    )
    kept = json.loads(args.out.read_text()) if args.again else {"seconds": 0.0, "cells": {}}
    if args.again:
        cells = tuple(cell for cell in cells if kept["cells"].get(cell.name, {"problem": "missing"})["problem"])
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        done = run_all(cells, args.jobs, Path(folder))
    wrong = [result.cell.name for result in done if result.problem]
    took = time.monotonic() - began
    print(
        f"{len(done) - len(wrong)} of {len(done)} cells as stated, {took:.0f} s"
        + (f"; wrong: {', '.join(sorted(wrong))}" if wrong else "")
    )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        measured = {
            result.cell.name: {"seconds": round(result.seconds, 2), "problem": result.problem[:300]} for result in done
        }
        report = {
            "seconds": round(kept["seconds"] + took, 1),
            "jobs": args.jobs,
            "again": sorted({*kept.get("again", []), *(measured if args.again else [])}),
            "cells": {**kept["cells"], **measured},
        }
        args.out.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
