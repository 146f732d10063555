"""Mixed load on an engine, with nothing but the standard library: it runs inside the machine of a test.

usage: load.py SECONDS PROFILE     prints one JSON object when the time is over. PROFILE: "mixed"; "full", the queue
full and the longest prompts; "saturate", the same on a host that as many other programs as cores keep busy.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

PORT = 8000
LONGEST = 60_000


class Load:
    """What was asked, and what came of it."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.longest: dict[str, float] = {}
        self.lock = threading.Lock()

    def note(self, kind: str, result: str, seconds: float) -> None:
        with self.lock:
            self.counts[f"{kind} {result}"] += 1
            if result == "answered":
                self.longest[kind] = max(self.longest.get(kind, 0.0), seconds)

    def repeat(self, kind: str, body: dict, *, slow: bool = False, pause: float = 0.0) -> None:
        while time.monotonic() < self.until:
            began = time.monotonic()
            if isinstance(body["prompt"], list):  # a prompt that was read before is in the prefix cache
                body["prompt"][0] = random.randrange(100, 400)
            try:
                result = self.ask(body, slow=slow)
            except (OSError, http.client.HTTPException, ValueError):
                result = "failed"
                time.sleep(0.2)  # nobody listens: the engine is starting again
            self.note(kind, result, time.monotonic() - began)
            time.sleep(pause)

    def ask(self, body: dict, *, slow: bool) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=max(self.until - time.monotonic(), 1.0))
        try:
            connection.connect()
            if slow:
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if not slow:
                answer.read()
                return "answered" if answer.status == 200 else f"got {answer.status}"
            while answer.read(40) and time.monotonic() < self.until:
                time.sleep(0.2)  # a client that takes its time, which is what it is for
            return "answered"
        finally:
            connection.close()


def body(prompt: str | list[int], tokens: int, **more: object) -> dict:
    return {"model": "kimi", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more}


def main() -> int:
    seconds, profile = float(sys.argv[1]), sys.argv[2]
    load = Load(seconds)
    random.seed(1)
    jobs: list[tuple[tuple, dict]] = []
    if profile in {"full", "saturate"}:
        jobs += [(("queue", body("count to a thousand", 300)), {}) for _ in range(10)]
        jobs += [(("longest", body([5] * LONGEST, 1)), {})]
    else:
        jobs += [(("short", body("Hello", 20)), {"pause": 0.2}) for _ in range(3)]
        jobs += [(("longer", body([5] * 900, 60)), {"pause": 0.5})]
    jobs += [(("slow client", body("tell me everything", 200, stream=True)), {"slow": True}) for _ in range(2)]
    threads = [threading.Thread(target=load.repeat, args=each, kwargs=more, daemon=True) for each, more in jobs]
    hogs = []
    if profile == "saturate":  # a busy host: as many other programs as there are cores
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(load.until + 5 - time.monotonic(), 0.1))
    for hog in hogs:
        hog.kill()
        hog.wait()
    print(
        json.dumps({"counts": load.counts, "longest": {kind: round(value, 1) for kind, value in load.longest.items()}})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
