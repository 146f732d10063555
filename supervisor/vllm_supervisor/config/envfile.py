"""The syntax of systemd's EnvironmentFile=, read by the supervisor itself.

The foreground, the service and a reload thereby see the same environment. Rules as in
systemd.exec(5): one assignment a line; empty lines and lines that begin with `#` or `;` are
skipped; a backslash at the end of a line continues it; values may be quoted, in single quotes
literally, in double quotes with backslash escapes.
"""

from __future__ import annotations

import re
from pathlib import Path

from .problems import Problem

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def load_env(path: Path, *, required: bool = False) -> dict[str, str] | list[Problem]:
    """The variables in `path`, or every problem that it has; a missing file is empty unless required."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return [Problem(str(path), "", "there is no such file")] if required else {}
    except UnicodeDecodeError as error:
        return [Problem(str(path), f"byte {error.start}", "this is not UTF-8 text; save the file as UTF-8")]
    except OSError as error:
        denied = isinstance(error, PermissionError)
        return [Problem(str(path), "", f"cannot be read: {error.strerror}; let the service user read it", denied)]
    return parse_env(text, str(path))


def parse_env(text: str, file: str) -> dict[str, str] | list[Problem]:
    """The variables in `text`, or every problem that it has; `file` only names it in messages."""
    values: dict[str, str] = {}
    problems: list[Problem] = []
    position, line = 0, 1
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        head = text[position:end].strip()
        if not head or head[0] in "#;":
            position, line = end + 1, line + 1
            continue
        name, equals, _ = text[position:end].partition("=")
        name = name.strip().removeprefix("export ").strip()
        if not equals or not _NAME.match(name):
            problems.append(Problem(file, f"line {line}", "expected NAME=VALUE"))
            position, line = end + 1, line + 1
            continue
        begin = position + text[position:end].index("=") + 1
        value, position, complaint = _value(text, begin)
        if complaint:
            problems.append(Problem(file, f"line {line}", complaint))
        line += text.count("\n", begin, position)
        values[name] = value
    return problems or values


def _value(text: str, position: int) -> tuple[str, int, str]:
    """The value that begins at `position`, where the next line begins, and a complaint or nothing.

    As systemd does it: quotes count at the begin of a value and after a closing quote, elsewhere they
    are characters like others; blanks at both ends are dropped unless they were quoted or escaped.
    """
    out: list[str] = []
    kept = 0
    bare = False  # within an unquoted part
    while position < len(text):
        char = text[position]
        position += 1
        if char in "\r\n":
            break
        if char == "\\":
            bare = True
            if text[position : position + 1] not in {"\r", "\n"}:
                out.append(text[position : position + 1])
            position += 1
            kept = len(out)
        elif char in "\"'" and not bare:
            position = _quoted(text, position, char, out)
            if position < 0:
                return "".join(out), len(text), f"the quote {char} is never closed"
            kept = len(out)
        elif bare or char not in " \t":
            bare = True
            out.append(char)
            kept = len(out) if char not in " \t" else kept
    return "".join(out[:kept]), position, ""


def _quoted(text: str, position: int, quote: str, out: list[str]) -> int:
    """Copies a quoted part into `out`; returns the position after its closing quote, -1 without one."""
    while position < len(text):
        char = text[position]
        position += 1
        if char == quote:
            return position
        if char == "\\" and quote == '"':
            following = text[position : position + 1]
            position += 1
            if following == "\n":
                continue
            out.append(following if following in set('"\\\\`$') else char + following)
            continue
        out.append(char)
    return -1
