# ruff: noqa: N802, N816, PTH116, PTH123 - the names are the real binding's, and pathlib would be its heaviest import
"""A stand-in for NVML's Python binding whose GPUs are described by a JSON file.

Put this folder first on PYTHONPATH and name the file in VSUP_FAKE_NVML. The file is read again
whenever it changes (replace it, do not write into it):

    {"driver": 1,                        another number: the driver was loaded anew since nvmlInit
     "version": "580.95.05",             of the driver
     "errors": {"nvmlInit": 9},          what a call answers instead of a value
     "hang": ["nvmlDeviceGetCount"],     calls that do not return as long as they stand here
     "xid": [[1, 0, 79]],                events: serial number, GPU, Xid; each is given once
     "gpus": [{"uuid": "GPU-0", "memory_used": 1, "processes": [[123, 4096]], "lost": true,
               "errors": {...}, "hang": [...], "mig": [[[pid, bytes]], [], null]}]}
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_UNKNOWN = 999
nvmlMemory_v2 = 2
nvmlEventTypeXidCriticalError = 8

MESSAGES = {
    1: "Uninitialized",
    3: "Not Supported",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    15: "GPU is lost",
    18: "RM has detected an NVML/RM version mismatch.",
    999: "Unknown Error",
}
DEFAULTS: dict[str, Any] = {
    "name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "memory_used": 600 << 20,
    "memory_total": 97887 << 20,
    "processes": [],
    "utilization": 0,
    "power": 42.5,
    "power_limit": 600,
    "temperature": 31,
    "clock_sm": 180,
    "clock_memory": 405,
    "throttle": 0x1,
    "throttle_known": 0x7FF,
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "remapped": [0, 0, 0, 0],
    "generation": 1,
    "width": 16,
    "generation_max": 5,
    "width_max": 16,
    "replays": 0,
}


class NVMLError(Exception):
    """As in the real binding: `value` is NVML's code."""

    def __init__(self, value: int) -> None:
        super().__init__(MESSAGES.get(value, f"error {value}"))
        self.value = value


class _State:
    """The file, and what was initialised from it."""

    def __init__(self) -> None:
        self.version: tuple[int, int] = (0, 0)
        self.data: dict[str, Any] = {}
        self.driver: object = None
        self.given: set[int] = set()

    def read(self) -> dict[str, Any]:
        path = os.environ["VSUP_FAKE_NVML"]
        stat = os.stat(path)
        if self.version != (stat.st_mtime_ns, stat.st_ino):
            with open(path, encoding="utf-8") as file:
                self.data = json.load(file)
            self.version = (stat.st_mtime_ns, stat.st_ino)
        return self.data


_state = _State()


def _answer(call: str, index: int | None = None, *, initialised: bool = True) -> dict[str, Any]:
    """The GPU, or the whole state, after hanging or failing as the file says."""

    def where() -> dict[str, Any]:
        data = _state.read()
        return data if index is None else data["gpus"][index]

    while call in where().get("hang", ()):
        time.sleep(0.02)
    data = _state.read()
    if initialised and _state.driver != data.get("driver", 0):
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    one = where()
    if one.get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    if call in one.get("errors", {}):
        raise NVMLError(one["errors"][call])
    return one if index is None else {"uuid": f"GPU-{index:08x}", **DEFAULTS, **one}


def nvmlInit():
    _state.driver = _answer("nvmlInit", initialised=False).get("driver", 0)


def nvmlShutdown():
    _state.driver = None


def nvmlSystemGetDriverVersion():
    return _answer("nvmlSystemGetDriverVersion").get("version", "580.95.05")


def nvmlDeviceGetCount():
    return len(_answer("nvmlDeviceGetCount")["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    _answer("nvmlDeviceGetHandleByIndex", index)
    return SimpleNamespace(index=index, part=None)


def _getter(call, value):
    def get(handle, *_arguments, **_keywords):
        return value(_answer(call, handle.index))

    get.__name__ = call
    return get


nvmlDeviceGetUUID = _getter("nvmlDeviceGetUUID", lambda gpu: gpu["uuid"])
nvmlDeviceGetName = _getter("nvmlDeviceGetName", lambda gpu: gpu["name"])
nvmlDeviceGetMemoryInfo = _getter(
    "nvmlDeviceGetMemoryInfo", lambda gpu: SimpleNamespace(used=gpu["memory_used"], total=gpu["memory_total"])
)
nvmlDeviceGetUtilizationRates = _getter(
    "nvmlDeviceGetUtilizationRates", lambda gpu: SimpleNamespace(gpu=gpu["utilization"], memory=0)
)
nvmlDeviceGetPowerUsage = _getter("nvmlDeviceGetPowerUsage", lambda gpu: int(gpu["power"] * 1000))
nvmlDeviceGetEnforcedPowerLimit = _getter("nvmlDeviceGetEnforcedPowerLimit", lambda gpu: int(gpu["power_limit"] * 1000))
nvmlDeviceGetTemperature = _getter("nvmlDeviceGetTemperature", lambda gpu: gpu["temperature"])
nvmlDeviceGetCurrentClocksThrottleReasons = _getter(
    "nvmlDeviceGetCurrentClocksThrottleReasons", lambda gpu: gpu["throttle"]
)
nvmlDeviceGetSupportedClocksThrottleReasons = _getter(
    "nvmlDeviceGetSupportedClocksThrottleReasons", lambda gpu: gpu["throttle_known"]
)
nvmlDeviceGetRemappedRows = _getter("nvmlDeviceGetRemappedRows", lambda gpu: tuple(gpu["remapped"]))
nvmlDeviceGetCurrPcieLinkGeneration = _getter("nvmlDeviceGetCurrPcieLinkGeneration", lambda gpu: gpu["generation"])
nvmlDeviceGetCurrPcieLinkWidth = _getter("nvmlDeviceGetCurrPcieLinkWidth", lambda gpu: gpu["width"])
nvmlDeviceGetMaxPcieLinkGeneration = _getter("nvmlDeviceGetMaxPcieLinkGeneration", lambda gpu: gpu["generation_max"])
nvmlDeviceGetMaxPcieLinkWidth = _getter("nvmlDeviceGetMaxPcieLinkWidth", lambda gpu: gpu["width_max"])
nvmlDeviceGetPcieReplayCounter = _getter("nvmlDeviceGetPcieReplayCounter", lambda gpu: gpu["replays"])


def nvmlDeviceGetClockInfo(handle, kind):
    return _answer("nvmlDeviceGetClockInfo", handle.index)["clock_sm" if kind == 1 else "clock_memory"]


def nvmlDeviceGetTotalEccErrors(handle, kind, _counter):
    return _answer("nvmlDeviceGetTotalEccErrors", handle.index)["ecc_uncorrected" if kind == 1 else "ecc_corrected"]


def nvmlDeviceGetComputeRunningProcesses(handle):
    gpu = _answer("nvmlDeviceGetComputeRunningProcesses", handle.index)
    if "mig" in gpu and handle.part is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    listed = gpu["processes"] if handle.part is None else gpu["mig"][handle.part]
    return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in listed]


def nvmlDeviceGetMigMode(handle):
    gpu = _answer("nvmlDeviceGetMigMode", handle.index)
    return [1, 1] if "mig" in gpu else [0, 0]


def nvmlDeviceGetMaxMigDeviceCount(handle):
    return len(_answer("nvmlDeviceGetMaxMigDeviceCount", handle.index).get("mig", ()))


def nvmlDeviceGetMigDeviceHandleByIndex(handle, part):
    if _answer("nvmlDeviceGetMigDeviceHandleByIndex", handle.index)["mig"][part] is None:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return SimpleNamespace(index=handle.index, part=part)


def nvmlEventSetCreate():
    _answer("nvmlEventSetCreate")
    return SimpleNamespace(gpus=set())


def nvmlDeviceRegisterEvents(handle, _types, events):
    _answer("nvmlDeviceRegisterEvents", handle.index)
    events.gpus.add(handle.index)


def nvmlEventSetWait_v2(events, _timeout):
    for serial, index, xid in _answer("nvmlEventSetWait_v2").get("xid", ()):
        if serial not in _state.given and index in events.gpus:
            _state.given.add(serial)
            return SimpleNamespace(device=SimpleNamespace(index=index, part=None), eventData=xid)
    raise NVMLError(NVML_ERROR_TIMEOUT)
