"""A board and its events, read over and over: what fails is left out, what is lost is said."""

from __future__ import annotations

import time

from .readings import PARTITIONS, PROCESSES, READINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .readings import Fields

ABSENT = {3, 13, 25, 26}
"""Not supported, function not found, version mismatch, deprecated: never asked again."""
GONE = {15, 16, 28}
"""GPU lost, reset required, GPU not found."""
ANEW = {1, 9, 18}
"""Uninitialised, driver not loaded, library and driver differ: NVML has to be initialised anew."""


class Board:
    """One GPU: its handle, what it is known not to answer, and its slow readings."""

    def __init__(self, nv: Any, index: int) -> None:
        self.nv, self.index, self.handle = nv, index, None
        self.identity: Fields = {"index": index, "uuid": "", "name": ""}
        self.refused: set[str] = set()
        self.kept: dict[str, tuple[float, Fields]] = {}

    def read(self) -> tuple[str, Fields]:
        """One reading, as ("samples", fields) or ("lost", who and why).

        Raises:
            NVMLError: NVML has to be initialised anew.
        """
        fields: Fields = {}
        why = "no reading"
        try:
            if self.handle is None:
                self.open()
            for key in READINGS:
                if key not in self.refused:
                    why = self.take(key, fields) or why
        except self.nv.NVMLError as error:
            if error.value in ANEW:
                raise
            fields, why = {}, "lost" if error.value in GONE else str(error)
        fields.pop(PARTITIONS, None)
        if fields:
            return "samples", {**self.identity, **fields}
        return "lost", {**self.identity, "reason": why}

    def open(self) -> None:
        """Find the board and its name."""
        handle = self.nv.nvmlDeviceGetHandleByIndex(self.index)
        uuid, name = self.nv.nvmlDeviceGetUUID(handle), self.nv.nvmlDeviceGetName(handle)
        decoded = [one.decode() if isinstance(one, bytes) else one for one in (uuid, name)]  # old bindings give bytes
        self.identity.update(uuid=decoded[0], name=decoded[1])
        self.handle = handle

    def devices(self) -> list[Any]:
        """The handles that know the board's processes: its partitions', or its own."""
        _, known = self.kept.get(PARTITIONS, (0.0, {}))
        return known.get(PARTITIONS) or [self.handle]

    def take(self, key: str, fields: Fields) -> str:
        """Add one reading to `fields`; what it answered instead, else nothing."""
        every, call = READINGS[key]
        now = time.monotonic()
        due, values = self.kept.get(key, (0.0, {}))
        if now >= due:
            try:
                values = call(self.nv, self.devices() if key == PROCESSES else self.handle)
            except AttributeError as error:  # bindings older than the call
                self.refused.add(key)
                return str(error)
            except self.nv.NVMLError as error:
                if error.value in GONE | ANEW:
                    raise
                if error.value in ABSENT:
                    self.refused.add(key)
                self.kept.pop(key, None)
                return str(error)
            if every:
                self.kept[key] = now + every, values
        for name, value in values.items():
            if isinstance(value, dict):
                fields.setdefault(name, {}).update(value)
            else:
                fields[name] = value
        return ""


class XidEvents:
    """The driver's Xid events of all boards that report them."""

    def __init__(self, nv: Any, count: int) -> None:
        self.nv, self.count, self.events = nv, count, None
        self.index: dict[Any, int] = {}

    def read(self) -> tuple[str, list[tuple[int, int]]]:
        """The events since the last reading, as ("xid_events", [(index, Xid)])."""
        found: list[tuple[int, int]] = []
        try:
            if self.events is None:
                self.open()
            while True:
                event = self.nv.nvmlEventSetWait_v2(self.events, 0)
                uuid = self.nv.nvmlDeviceGetUUID(event.device)
                found.append((self.index.get(uuid, -1), int(event.eventData)))
        except (self.nv.NVMLError, AttributeError):  # a time-out: nothing more has happened
            return "xid_events", found

    def open(self) -> None:
        """Ask every board for its events; some do not have them."""
        self.events = self.nv.nvmlEventSetCreate()
        for index in range(self.count):
            try:
                handle = self.nv.nvmlDeviceGetHandleByIndex(index)
                self.index[self.nv.nvmlDeviceGetUUID(handle)] = index
                self.nv.nvmlDeviceRegisterEvents(handle, self.nv.nvmlEventTypeXidCriticalError, self.events)
            except self.nv.NVMLError:
                continue
