#!/usr/bin/env python3
"""Runs the fake engine like the real command: `fake_vllm.py serve MODEL --host H --port P …`.

Behaviour comes from the environment variable FAKE_ENGINE; see fake_engine/script.py.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120

from fake_engine import arguments, script


def main(argv: list[str]) -> int:
    """The exit status, for what ends without becoming a server."""
    try:
        wanted = script.load()
    except (OSError, ValueError, TypeError) as error:
        sys.stderr.write(f"{error}\n")
        return 64
    if argv[:1] in (["--version"], ["-v"]):
        sys.stdout.write(f"{wanted.version}\n")
        return 0
    if any(each.startswith("--help") or each == "-h" for each in argv):
        sys.stdout.write(arguments.help_all() if "--help=all" in argv else arguments.USAGE)
        return 0
    if argv[:1] == ["preload"]:
        from fake_engine import preload

        return preload.run(wanted, arguments.parse(argv[1:]))
    if argv[:1] != ["serve"]:
        sys.stderr.write(arguments.USAGE + "vllm: error: argument subparser: invalid choice\n")
        return 2
    args = arguments.parse(argv[1:])
    if wanted.strict_flags and args.unknown:
        sys.stderr.write(f"{arguments.USAGE}vllm: error: unrecognized arguments: {' '.join(args.unknown)}\n")
        return 2
    from fake_engine.main import Main

    Main(wanted, args).run()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
