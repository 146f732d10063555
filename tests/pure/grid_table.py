"""What every event does at every stand: the state machine as a table, written down and not computed.

A cell is `.` (nothing), or `phase:effects` with either part left out when it does not change or is
empty. Phases are short (SHORT in grid_events.py), an effect is one letter (LETTERS there):
P preflight, a await its turn, n await the nodes, L launch, p probe, R read counters, C canary, Q smoke question, T SIGTERM, K SIGKILL,
W sweep, I incident, r READY=1, s STOPPING=1, x EXTEND_TIMEOUT_USEC, o reload, l log, h history, E exit.
"""

TABLE = """
                      | preflight  | waiting    | waiting(turn) | launching | launching+ | configuring | connecting | loading-weights
Begin                 | .          | .          | .             | .         | .          | .           | .          | .
Tick                  | .          | .          | .             | .         | :p         | :p          | :p         | :p
Tick/late             | stop:lI    | pre:P      | launch:lLx    | stop:lI   | stop:lxI   | stop:lxI    | stop:lxI   | stop:lxI
PreflightDone         | launch:Lx  | .          | .             | .         | .          | .           | .          | .
PreflightDone/refused | stop:lI    | .          | .             | .         | .          | .           | .          | .
PreflightDone/ahead   | wait:lxa   | .          | .             | .         | .          | .           | .          | .
Turn                  | .          | .          | launch:lLx    | .         | .          | .           | .          | .
Turn/ahead            | .          | .          | :xa           | .         | .          | .           | .          | .
Peers                 | .          | .          | .             | .         | .          | .           | .          | .
Peers/admitted        | .          | .          | .             | .         | .          | .           | .          | .
Peers/fate            | stop:lI    | stop:lI    | stop:lI       | stop:lI   | stop:lxI   | stop:lxI    | stop:lxI   | stop:lxI
Launched              | .          | .          | .             | :x        | .          | .           | .          | .
LaunchFailed          | .          | .          | .             | stop:lI   | .          | .           | .          | .
Output/compiling      | .          | .          | .             | comp:x    | comp:x     | comp:x      | comp:x     | comp:x
Output/line           | .          | .          | .             | verify:x  | verify:px  | verify:px   | verify:p   | verify:p
Activity/grown        | .          | .          | .             | .         | :x         | :x          | :x         | .
Probed/refused        | .          | .          | .             | .         | .          | .           | .          | .
Probed/healthy        | .          | .          | .             | verify:x  | verify:x   | verify:x    | verify     | verify
Probed/answered       | .          | .          | .             | verify:x  | verify:x   | verify:x    | verify     | verify
Probed/wrong          | .          | .          | .             | stop:lI   | stop:lxI   | stop:lxI    | stop:lxI   | stop:lxI
ProcessDied/worker    | .          | .          | .             | :l        | :l         | :l          | :l         | :l
ProcessDied/other     | .          | .          | .             | .         | .          | .           | .          | .
EngineExited          | .          | .          | .             | stop:lI   | stop:lxI   | stop:lxI    | stop:lxI   | stop:lxI
Faulted               | stop:lI    | stop:lI    | stop:lI       | stop:lI   | stop:lxI   | stop:lxI    | stop:lxI   | stop:lxI
StopRequested         | stopped:sE | stopped:sE | stopped:sE    | stop:sxKW | stop:sxT   | stop:sxT    | stop:sxT   | stop:sxT
ReloadRequested       | :l         | :l         | :l            | :l        | :l         | :l          | :l         | :l
Counted/busy          | .          | .          | .             | .         | .          | .           | .          | .
Counted/idle          | .          | .          | .             | .         | .          | .           | .          | .
CanaryDone            | .          | .          | .             | .         | .          | .           | .          | .
CanaryDone/failed     | .          | .          | .             | .         | .          | .           | .          | .
SmokeDone             | .          | .          | .             | :l        | :l         | :l          | :l         | :l
SmokeDone/failed      | .          | .          | .             | :l        | :l         | :l          | :l         | :l
IncidentSaved         | .          | .          | .             | .         | .          | .           | .          | .
Swept/clean           | .          | .          | .             | .         | .          | .           | .          | .
Swept/alive           | .          | .          | .             | .         | .          | .           | .          | .
StoodStill            | :l         | :l         | :l            | :lx       | :lx        | :lx         | :lx        | :l

                      | compiling | sizing-kv-cache | capturing-graphs | starting-server | verifying   | ready     | ready(asked)
Begin                 | .         | .               | .                | .               | .           | .         | .
Tick                  | :p        | :p              | :p               | :p              | .           | .         | .
Tick/late             | stop:lxI  | stop:lxI        | stop:lxI         | stop:lxI        | stop:lxI    | :C        | stop:lsxI
PreflightDone         | .         | .               | .                | .               | .           | .         | .
PreflightDone/refused | .         | .               | .                | .               | .           | .         | .
PreflightDone/ahead   | .         | .               | .                | .               | .           | .         | .
Turn                  | .         | .               | .                | .               | .           | .         | .
Turn/ahead            | .         | .               | .                | .               | .           | .         | .
Peers                 | .         | .               | .                | .               | .           | .         | .
Peers/admitted        | .         | .               | .                | .               | .           | .         | .
Peers/fate            | stop:lxI  | stop:lxI        | stop:lxI         | stop:lxI        | stop:lxI    | stop:lsxI | stop:lsxI
Launched              | .         | .               | .                | .               | .           | .         | .
LaunchFailed          | .         | .               | .                | .               | .           | .         | .
Output/compiling      | :x        | comp:x          | comp:x           | comp:x          | .           | .         | .
Output/line           | verify:p  | verify:p        | verify:p         | verify:p        | .           | .         | .
Activity/grown        | :x        | .               | .                | .               | .           | .         | .
Probed/refused        | .         | .               | .                | .               | .           | .         | .
Probed/healthy        | verify    | verify          | verify           | verify          | :p          | .         | .
Probed/answered       | verify    | verify          | verify           | verify          | ready:rhRlQ | .         | .
Probed/wrong          | stop:lxI  | stop:lxI        | stop:lxI         | stop:lxI        | stop:lxI    | .         | .
ProcessDied/worker    | :l        | :l              | :l               | :l              | :l          | :l        | :l
ProcessDied/other     | .         | .               | .                | .               | .           | .         | .
EngineExited          | stop:lxI  | stop:lxI        | stop:lxI         | stop:lxI        | stop:lxI    | stop:lsxI | stop:lsxI
Faulted               | stop:lxI  | stop:lxI        | stop:lxI         | stop:lxI        | stop:lxI    | stop:lsxI | stop:lsxI
StopRequested         | stop:sxT  | stop:sxT        | stop:sxT         | stop:sxT        | stop:sxT    | drain:sxR | drain:sxR
ReloadRequested       | :l        | :l              | :l               | :l              | :l          | :o        | :o
Counted/busy          | .         | .               | .                | .               | .           | .         | .
Counted/idle          | .         | .               | .                | .               | .           | .         | .
CanaryDone            | .         | .               | .                | .               | .           | .         | .
CanaryDone/failed     | .         | .               | .                | .               | .           | :l        | :l
SmokeDone             | :l        | :l              | :l               | :l              | :l          | :l        | :l
SmokeDone/failed      | :l        | :l              | :l               | :l              | :l          | :l        | :l
IncidentSaved         | .         | .               | .                | .               | .           | .         | .
Swept/clean           | .         | .               | .                | .               | .           | .         | .
Swept/alive           | .         | .               | .                | .               | .           | .         | .
StoodStill            | :lx       | :l              | :l               | :l              | :l          | :l        | :l

                      | draining(grace) | draining  | stopping(term) | stopping(incident) | stopping(sweep) | stopping(sweep+) | stopped | failed
Begin                 | .               | .         | .              | .                  | .               | .                | .       | .
Tick                  | .               | .         | :T             | .                  | .               | .                | .       | .
Tick/late             | :sxR            | stop:xT   | :T             | :xKW               | stopped:lE      | failed:lE        | .       | .
PreflightDone         | .               | .         | .              | .                  | .               | .                | .       | .
PreflightDone/refused | .               | .         | .              | .                  | .               | .                | .       | .
PreflightDone/ahead   | .               | .         | .              | .                  | .               | .                | .       | .
Turn                  | .               | .         | .              | .                  | .               | .                | .       | .
Turn/ahead            | .               | .         | .              | .                  | .               | .                | .       | .
Peers                 | .               | .         | .              | .                  | .               | .                | .       | .
Peers/admitted        | .               | .         | .              | .                  | .               | .                | .       | .
Peers/fate            | stop:lsxT       | stop:lxT  | .              | .                  | .               | .                | .       | .
Launched              | .               | .         | .              | .                  | .               | .                | .       | .
LaunchFailed          | .               | .         | .              | .                  | .               | .                | .       | .
Output/compiling      | .               | .         | .              | .                  | .               | .                | .       | .
Output/line           | .               | .         | .              | .                  | .               | .                | .       | .
Activity/grown        | .               | .         | .              | .                  | .               | .                | .       | .
Probed/refused        | .               | .         | .              | .                  | .               | .                | .       | .
Probed/healthy        | .               | .         | .              | .                  | .               | .                | .       | .
Probed/answered       | .               | .         | .              | .                  | .               | .                | .       | .
Probed/wrong          | .               | .         | .              | .                  | .               | .                | .       | .
ProcessDied/worker    | .               | .         | .              | .                  | .               | .                | .       | .
ProcessDied/other     | .               | .         | .              | .                  | .               | .                | .       | .
EngineExited          | stop:sxKW       | stop:xKW  | :xKW           | .                  | .               | .                | .       | .
Faulted               | stop:lsxT       | stop:lxT  | :l             | .                  | :l              | .                | .       | .
StopRequested         | stop:lsxKW      | stop:lxKW | :lxKW          | :l                 | .               | .                | .       | .
ReloadRequested       | :l              | :l        | :l             | :l                 | :l              | :l               | .       | .
Counted/busy          | .               | .         | .              | .                  | .               | .                | .       | .
Counted/idle          | .               | stop:xT   | .              | .                  | .               | .                | .       | .
CanaryDone            | .               | .         | .              | .                  | .               | .                | .       | .
CanaryDone/failed     | :l              | :l        | .              | .                  | .               | .                | .       | .
SmokeDone             | :l              | :l        | .              | .                  | .               | .                | .       | .
SmokeDone/failed      | :l              | :l        | .              | .                  | .               | .                | .       | .
IncidentSaved         | .               | .         | .              | :xKW               | .               | .                | .       | .
Swept/clean           | .               | .         | .              | .                  | stopped:E       | failed:E         | .       | .
Swept/alive           | .               | .         | .              | .                  | :KW             | :KW              | .       | .
StoodStill            | :l              | :l        | :l             | :l                 | :l              | :l               | .       | .

                      | waiting(nodes)
Begin                 | .
Tick                  | .
Tick/late             | .
PreflightDone         | .
PreflightDone/refused | .
PreflightDone/ahead   | .
Turn                  | .
Turn/ahead            | .
Peers                 | :x
Peers/admitted        | launch:lLx
Peers/fate            | stop:lI
Launched              | .
LaunchFailed          | .
Output/compiling      | .
Output/line           | .
Activity/grown        | .
Probed/refused        | .
Probed/healthy        | .
Probed/answered       | .
Probed/wrong          | .
ProcessDied/worker    | .
ProcessDied/other     | .
EngineExited          | .
Faulted               | stop:lI
StopRequested         | stopped:sE
ReloadRequested       | :l
Counted/busy          | .
Counted/idle          | .
CanaryDone            | .
CanaryDone/failed     | .
SmokeDone             | .
SmokeDone/failed      | .
IncidentSaved         | .
Swept/clean           | .
Swept/alive           | .
StoodStill            | :l
"""


def cells() -> dict[tuple[str, str], str]:
    """(stand, event) to cell; a row that is too short or too long is an error."""
    table: dict[tuple[str, str], str] = {}
    for block in TABLE.strip().split("\n\n"):
        head, *rows = [[cell.strip() for cell in line.split("|")] for line in block.splitlines()]
        for event, *row in rows:
            for stand, cell in zip(head[1:], row, strict=True):
                assert (stand, event) not in table, f"{event} at {stand} twice"
                table[stand, event] = cell
    return table
