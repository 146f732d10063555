"""Rules: ports, processes that hang, processes that die without a reason of their own."""

from __future__ import annotations

import re
from typing import Final

from .rule import Fields, Kind, Rule, Situation, Tier, rule

_SIGNALS: Final = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def _number(groups: Fields) -> int | None:
    code = groups.get("code")
    return int(code) if code and code != "None" else None


def _exit(groups: Fields) -> Fields:
    code = _number(groups)
    if code is None:
        return {"how": "ended without saying how"}
    if code < 0:
        return {"how": f"was ended by {_SIGNALS.get(-code, f'signal {-code}')}"}
    return {"how": f"exited with {code}"}


def _killed(_: Situation, match: re.Match[str]) -> bool:
    code = _number(match.groupdict())
    return code is None or (code < 0 and code != -7)


def _bus_error(_: Situation, match: re.Match[str]) -> bool:
    return _number(match.groupdict()) == -7


def _listener(situation: Situation, _: re.Match[str]) -> bool:
    return not situation.in_engine() and situation.phase in {"launching", "configuring", "capturing-graphs", "serving"}


def _address(situation: Situation, match: re.Match[str]) -> bool:
    return _listener(situation, match) and ("bind on" in match[0] or "listen" in situation.frames)


_WORKER = r"Worker proc (?:\w+-)?(?P<worker>[\w.]+) died unexpectedly(?: \(exit code: (?P<code>-?\d+|None)\))?"

RULES: Final[tuple[Rule, ...]] = (
    # ports
    rule(
        "rendezvous-port-collision",
        r"The server socket has failed to (?:listen on|bind to) any local network address\.(?: .{0,40}port: "
        r"(?P<taken>\d+))?",
        "port {taken} for the ranks' meeting point is taken",
        "Port {taken}, which was picked for the ranks' own meeting point, was taken in the meantime (it is not the "
        "HTTP port): start "
        "again at once, and keep VLLM_PORT away from busy ranges.",
        plain="The port of the ranks' own meeting point was taken in the meantime: start again at once.",
    ),
    rule(
        "rendezvous-port-collision",
        r"(?:\[Errno 98\] )?Address already in use(?: \(addr='(?P<addr>[^']{1,200})'\))?|[^'`]{0,120}EADDRINUSE",
        "a port between the engine's processes is taken",
        "A port between the engine's own processes (not the HTTP port) was taken in the meantime: start again at once.",
        when=lambda situation, match: situation.in_engine() or "addr=" in match[0] or "EADDRINUSE" in match[0],
    ),
    rule(
        "port-in-use",
        r"\[Errno 98\] (?:[Aa]ddress already in use|error while attempting to bind on address)",
        "port {port} is taken",
        "Something already listens on port {port}: stop that process (or the engine left over from before), or "
        "choose another port.",
        plain="Something already listens on the port: stop that process, or choose another port.",
        when=_listener,
    ),
    rule(
        "bad-arguments",
        r"\[Errno 99\] (?:Cannot assign requested address|error while attempting to bind on address)|"
        r"\[Errno (?:-\d|13|97)\] ",
        "the address to listen on cannot be bound",
        "Set --host to an address of this machine, such as 127.0.0.1 or 0.0.0.0, and --port to 1024 or more: starting "
        "again cannot help.",
        when=_address,
    ),
    # hangs
    rule(
        "engine-hung",
        r"RPC call to (?P<method>\w+) timed out",
        "a worker did not answer {method}",
        "A worker stopped answering {method} in the middle of a step: keep stacks and kernel messages of that time, "
        "kill the whole "
        "process group and restart.",
        tier=Tier.DEATH,
    ),
    rule(
        "load-stalled",
        r"Timed out waiting for (?:engine core processes to start|engines to send|[^'`]{0,60}handshake)|Did not "
        r"receive "
        r"response from front-end process",
        "the engine did not come up in its own time limit",
        "The engine took longer than its own limit: look what the workers did last, and raise "
        "VLLM_ENGINE_READY_TIMEOUT_S if they still loaded.",
        tier=Tier.DEATH,
    ),
    rule(
        "load-stalled",
        r"(?P<unit>\S{1,80}): (?:s|S)tart operation timed out",
        "systemd waited for {unit} in vain",
        "The start took longer than systemd's limit: look what the workers did last, and raise TimeoutStartSec= of "
        "{unit} if "
        "they still loaded.",
        kinds=(Kind.SYSTEMD,),
        tier=Tier.DEATH,
        fatal=True,
    ),
    # deaths without a reason of their own
    rule(
        "shm-too-small",
        _WORKER,
        "worker {worker} got SIGBUS",
        "Worker {worker} got SIGBUS, as a full /dev/shm gives it: enlarge /dev/shm and remove stale segments there.",
        tier=Tier.DEATH,
        fatal=True,
        when=_bus_error,
    ),
    rule(
        "worker-killed",
        _WORKER,
        "worker {worker} {how}",
        "An operator, the memory killer, a cgroup limit or a crash did it: restart, and look in the kernel log for "
        "that second.",
        tier=Tier.DEATH,
        fatal=True,
        when=_killed,
        derive=_exit,
    ),
    rule(
        "engine-died",
        _WORKER,
        "worker {worker} {how}",
        "Worker {worker} {how} and left no error: clean up, restart, and keep its output if it comes back.",
        tier=Tier.DEATH,
        fatal=True,
        derive=_exit,
    ),
    rule(
        "engine-died",
        r"Engine core proc(?:ess)? (?P<name>\S+) died unexpectedly|MPClient: engine core exited unexpectedly",
        "the engine core vanished",
        "The EngineCore process vanished without a trace of its own: clear the left-over workers, restart, and look "
        "in the kernel log "
        "for a kill or crash at that second.",
        kinds=(Kind.ERROR, Kind.RECORD),
        tier=Tier.DEATH,
        fatal=True,
    ),
    rule(
        "engine-died",
        r"Process (?P<name>ApiServer_\d+) \(PID: (?P<pid>\d+)\) died with exit code (?P<code>-?\d+|None)",
        "{name} {how}",
        "{name} {how}: clean up, restart, and look in the kernel log for a kill or crash at that second.",
        tier=Tier.DEATH,
        fatal=True,
        derive=_exit,
    ),
    rule(
        "engine-died",
        r"Fatal Python error: (?P<what>.{1,80})|[^'`]{0,60}Caught signal (?P<signal>\d+)|Segmentation fault|Aborted(?: "
        r"\(core dumped\))?$",
        "an engine process crashed",
        "An engine process crashed in native code: restart, and keep the core dump and the stacks if it comes back.",
        kinds=(Kind.NATIVE,),
        tier=Tier.DEATH + 2,
    ),
    rule(
        "engine-died",
        r"(?P<unit>\S{1,80}): Main process exited, code=(?:killed|dumped), status=(?!15/|2/)(?P<status>\d+/\w+)"
        r"|(?P<other>\S{1,80}): Main process exited, code=exited, status=(?:137|139|134)\b",
        "the engine's main process was killed",
        "The engine's main process was killed or crashed: look in the kernel log for that second, then restart.",
        kinds=(Kind.SYSTEMD,),
        tier=Tier.DEATH + 4,
        fatal=True,
    ),
    rule(
        "engine-died",
        r"(?:\S{1,80}: line \d+: +\d+ )?Killed\b",
        "the engine was killed",
        "The engine was killed from outside: look in the kernel log for that second, then restart.",
        kinds=(Kind.NATIVE,),
        tier=Tier.DEATH + 4,
        fatal=True,
    ),
    rule(
        "engine-died",
        r"Engine core initialization failed\. See root cause above\. Failed core proc\(s\): \{.{0,200}?: "
        r"(?P<code>-\d+)",
        "the engine core {how} during its start",
        "The engine core {how} during its start: look in the kernel log for a kill or crash at that second, then "
        "restart.",
        tier=Tier.DEATH + 4,
        fatal=True,
        derive=_exit,
    ),
)
