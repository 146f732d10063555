"""What each command of the control socket does; None means that the answer comes later."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

from . import faults

if TYPE_CHECKING:
    from .main import Main


def act(main: Main, asked: dict[str, Any], conn: socket.socket) -> dict[str, Any] | None:
    do = asked["do"]
    if do == "advance":
        return advance(main, asked.get("to"), conn)
    if do == "finish":
        return advance(main, main.phases[-1], conn)
    if do == "resume":
        main.cut = False
    elif do in {"hang", "unhang"} and main.engine:
        main.engine.hang() if do == "hang" else main.engine.unhang()
    elif do == "set":
        main.change(asked["values"])
    elif do == "emit":
        main.show(
            asked.get("who", "api"), asked.get("stream", 1), asked["text"].encode("utf-8", "surrogateescape") + b"\n"
        )
    elif do == "fault":
        for piece in faults.output(asked["fault"]):
            main.show(asked["fault"].get("who", "api"), asked["fault"].get("stream", 1), piece)
    elif do == "die":
        who = asked.get("who", "core")
        os.kill(os.getpid() if who == "main" or not main.tree else main.tree.pid(who), asked.get("signal", 9))
    elif do == "exit":
        main.script.exit_code = asked.get("code", 1)
        main.exit_deadline = time.monotonic()
    elif do == "stats":
        return stats(main)
    else:
        raise ValueError(f"unknown command {do}, or too early for it")
    return {}


def advance(main: Main, to: str | None, conn: socket.socket) -> dict[str, Any] | None:
    left = [each for each in main.phases if each not in main.ended]
    if main.allowed is None or not left:
        return {"phase": main.phase}
    to = to or left[0]
    if to not in left:
        raise ValueError(f"not a phase to come: {to}; left: {left}")
    main.allowed.update(left[: left.index(to) + 1])
    main.waiting.append((to, conn))
    return None


def stats(main: Main) -> dict[str, Any]:
    tree, engine = main.tree, main.engine
    return {
        "pid": os.getpid(),
        "mode": main.mode,
        "phase": main.phase,
        "cut": main.cut,
        "port": main.server.port if main.server else None,
        "core": tree.core_pid if tree else None,
        "workers": tree.worker_pids if tree else [],
        "grandchild": tree.grandchild if tree else None,
        "segments": tree.segments if tree else [],
        "in_flight": engine.in_flight() if engine else 0,
        "generated": engine.counts.generated if engine else 0,
        "connections": main.server.open if main.server else 0,
        "terms": main.first_term is not None,
    }
