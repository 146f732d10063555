"""Rewrites whole logs into the dress of another version or configuration."""

import json
import re

ANSI = re.compile(r"\x1b\[[0-9;]*m")
PREFIX = re.compile(r"^(\([^)]*pid=\d+\)) ")
RECORD = re.compile(r"^\(([^)]*) pid=(\d+)\) (INFO|WARNING|ERROR) (\S+ \S+) \[([^\]]*)\] (.*)")
UVICORN = re.compile(r"^(?:\([^)]*\) )?INFO:     (.*)")


def plain(line):
    return ANSI.sub("", line)


def only_records_prefixed(line):
    return plain(line) if RECORD.match(plain(line)) else PREFIX.sub("", plain(line))


def coloured(line):
    return PREFIX.sub("\x1b[1;36m\\1\x1b[0;0m ", plain(line))


def prefix_before(line):
    return f"kimi{plain(line)}" if RECORD.match(plain(line)) else plain(line)


def prefix_after(line):
    return PREFIX.sub(r"\1 kimi", plain(line)) if RECORD.match(plain(line)) else plain(line)


def as_json(line):
    def dump(process, pid, level, name, message):
        record = {"asctime": "x", "levelname": level, "name": name, "processName": "MainProcess", "process": pid}
        return json.dumps({**record, "message": message, "vllm_process_name": process})

    if record := RECORD.match(plain(line)):
        return dump(record[1], int(record[2]), record[3], "vllm.v1.x", record[6])
    if uvicorn := UVICORN.match(plain(line)):
        return dump("APIServer", 1, "INFO", "uvicorn.error", uvicorn[1])
    return line


def journal(line):
    return f"Nov 30 20:08:32 gpu1 vllm-supervisor[812]: {line}"


DRESSES = (only_records_prefixed, coloured, prefix_before, prefix_after, as_json, journal)
