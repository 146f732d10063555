"""The machine's limits, shared memory, disks and access rights, asked of the kernel.

Rights are told for a given user from owner and mode bits, so that root can ask for the service
user. Access control lists and read-only mounts are not looked at: what they forbid the engine's
own start will tell, what they allow is not refused, because a denial is only reported where the
bits deny and no list is there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK}
_ACL = "system.posix_acl_access"


@dataclass(frozen=True, slots=True)
class User:
    """A user with all its groups."""

    name: str
    uid: int
    gid: int
    groups: frozenset[int]


def find_user(name: str | None) -> User | None:
    """The user of this name; the caller itself for None; None when there is no such user."""
    if name is None:
        uid = os.geteuid()
        return User(_name_of(uid), uid, os.getegid(), frozenset([os.getegid(), *os.getgroups()]))
    try:
        entry = pwd.getpwnam(name)
        groups = frozenset(os.getgrouplist(name, entry.pw_gid))
    except (KeyError, OSError, ValueError):
        return None
    return User(name, entry.pw_uid, entry.pw_gid, groups)


def limits() -> dict[str, int]:
    """The soft limits of this process, as the engine inherits them after raising to the hard ones; -1 is none."""
    return {name: resource.getrlimit(which)[1] for name, which in _LIMITS.items()}


def shared_memory(path: Path = Path("/dev/shm")) -> tuple[int, int] | None:  # noqa: S108 - the kernel's place
    """Size and free bytes of /dev/shm; None where there is none."""
    return _space(path)


def memory_bytes() -> int | None:
    """The machine's memory."""
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def cache_directories(env: Mapping[str, str]) -> tuple[str, ...]:
    """Where the engine will write caches and temporary files, from its environment."""
    home = env.get("HOME", "")
    base = env.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    vllm = env.get("VLLM_CACHE_ROOT") or (f"{base}/vllm" if base else "")
    places = (vllm, base, env.get("TMPDIR") or "/tmp")  # noqa: S108 - the engine's own default
    return tuple(dict.fromkeys(place for place in places if place.startswith("/")))


def cache_space(paths: Iterable[str], user: User) -> dict[str, int | None]:
    """For each directory the free bytes, None where the user cannot make or write it."""
    found: dict[str, int | None] = {}
    for path in paths:
        place = Path(path)
        while not place.exists() and place != place.parent:
            place = place.parent
        space = _space(place)
        if not allowed(place, user, os.W_OK | os.X_OK):
            found[path] = None
        elif space is not None:
            found[path] = space[1]
    return found


def unreadable(paths: Iterable[Path], user: User, most: int = 20) -> tuple[str, ...]:
    """Those of these files and directories that the user may not read, `most` at most."""
    found: list[str] = []
    passable: dict[Path, bool] = {}
    for path in paths:
        want = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
        if os.path.lexists(path) and not allowed(path, user, want, passable):
            found.append(str(path))
            if len(found) >= most:
                break
    return tuple(found)


def allowed(path: Path, user: User, want: int, passable: dict[Path, bool] | None = None) -> bool:
    """Whether a user may access an existing path in this way; true where it cannot be told.

    Args:
        path: What is to be accessed; links are followed.
        user: Who wants to.
        want: os.R_OK, os.W_OK and os.X_OK.
        passable: Remembers the directories on the way, for many files of one directory.
    """
    if user.uid == os.geteuid():
        return os.access(path, want, effective_ids=True) or not path.exists()
    known = {} if passable is None else passable
    try:
        real = Path(os.path.realpath(path, strict=True))
    except (OSError, ValueError):
        return True
    for parent in real.parents:
        if parent not in known:
            known[parent] = _bits_allow(parent, user, os.X_OK)
        if not known[parent]:
            return False
    return _bits_allow(real, user, want)


def _bits_allow(path: Path, user: User, want: int) -> bool:
    if user.uid == 0:
        return True
    try:
        status = path.stat()
        if _ACL in os.listxattr(path):
            return True
    except OSError:
        return True
    shift = 6 if status.st_uid == user.uid else 3 if status.st_gid in user.groups else 0
    return (stat.S_IMODE(status.st_mode) >> shift) & want == want


def _space(path: Path) -> tuple[int, int] | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
