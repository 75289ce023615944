"""NVIDIA's library as a plain Python object: no compiler, no ABI, but the real binding above it.

``pynvml`` calls ``getattr(nvmlLib, name)(handle, byref(struct))``, and ``byref(x)._obj`` is ``x``.
So an object with methods of these names is library enough for fast unit tests.
The keys of the state are those of ``fake_nvml.c``: ``<device>.<key>``, device -1 = global.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND, MISMATCH = 1, 2, 3, 6, 25
MIG_BASE = 100


class PlainNvml:
    """The library; ``state`` says what its calls answer. A missing method is a missing symbol."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self.opened = 0
        self.references = 0
        self.owner = 0
        self.calls: list[str] = []

    def get(self, device: int, key: str, otherwise: int = 0) -> int:
        return self.state.get(f"{device}.{key}", otherwise)

    def _failure(self, device: int, name: str) -> int:
        return self.get(device, "err") or self.get(device, f"err_{name}")

    def _alive(self) -> bool:
        return self.references > 0 and self.owner == os.getpid()

    def _enter(self, handle: Any, name: str) -> int:
        self.calls.append(name)
        return self._failure(handle.number, name) if self._alive() else UNINITIALIZED

    def _number(self, handle: Any, out: Any, name: str, key: str, otherwise: int = 0) -> int:
        error = self._enter(handle, name)
        if not error:
            out._obj.value = self.get(handle.number, key, otherwise)
        return error

    def nvmlInitWithFlags(self, flags: int) -> int:
        error = self._failure(-1, "init")
        if not error:
            if self.owner != os.getpid():
                self.owner, self.references = os.getpid(), 0
            self.references += 1
            self.opened += 1
        return error

    def nvmlShutdown(self) -> int:
        if not self._alive():
            return UNINITIALIZED
        self.references -= 1
        return self._failure(-1, "shutdown")

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:
        out._obj.value = self.get(-1, "count", 1)
        return self._failure(-1, "count") if self._alive() else UNINITIALIZED

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        if not self._alive():
            return UNINITIALIZED
        if index.value >= self.get(-1, "count", 1):
            return INVALID
        out._obj.number = index.value
        return self._failure(index.value, "handle")

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> int:
        error = self._enter(handle, "uuid")
        kind = "GPU" if handle.number < MIG_BASE else "MIG"
        number = self.get(handle.number, "uuid", handle.number)
        text.value = f"{kind}-00000000-0000-0000-0000-{number:012d}".encode()
        return error

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:
        text.value = f"Fake GPU {self.get(handle.number, 'model')}".encode()
        return self._enter(handle, "name")

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> int:
        bus = self.get(handle.number, "bus", handle.number + 1)
        out._obj.busId = f"00000000:{bus:02X}:00.0".encode()
        return self._enter(handle, "pci")

    def nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> int:
        error = self._enter(handle, "util")
        out._obj.gpu, out._obj.memory = self.get(handle.number, "gpu"), self.get(handle.number, "mem")
        return NOT_SUPPORTED if handle.number >= MIG_BASE else error

    def nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:
        out._obj.total = self.get(handle.number, "total", 1 << 30)
        out._obj.used = self.get(handle.number, "used") + self.get(handle.number, "reserved")
        return self._enter(handle, "memory_old")

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Any, out: Any) -> int:
        out._obj.total = self.get(handle.number, "total", 1 << 30)
        out._obj.used = self.get(handle.number, "used")
        return self._enter(handle, "memory") or (0 if out._obj.version == 40 | 2 << 24 else MISMATCH)

    def nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> int:
        return self._number(handle, out, "power_mw", "power_mw", 100_000)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, out: Any) -> int:
        return self._number(handle, out, "limit_mw", "limit_mw", 700_000)

    def nvmlDeviceGetTemperatureV(self, handle: Any, out: Any) -> int:
        out._obj.temperature = self.get(handle.number, "temp", 40)
        return self._enter(handle, "temp") or (0 if out._obj.version == 12 | 1 << 24 else MISMATCH)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, out: Any) -> int:
        return self._number(handle, out, "temp_old", "temp", 40)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> int:
        return self._number(handle, out, "clock", "smclk", 1500)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, out: Any) -> int:
        return self._number(handle, out, "clock_max", "smclk_max", 1980)

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        return self._number(handle, current, "mig", "mig")

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, out: Any) -> int:
        return self._number(handle, out, "mig", "mig_max", 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, slot: Any, out: Any) -> int:
        out._obj.number = MIG_BASE * (handle.number + 1) + slot.value
        if slot.value >= self.get(handle.number, "mig_count"):
            return NOT_FOUND
        return self._enter(handle, "mig") or self._failure(out._obj.number, "handle")

    def nvmlDeviceGetGpuInstanceId(self, handle: Any, out: Any) -> int:
        return self._number(handle, out, "mig", "gi", handle.number % MIG_BASE + 1)

    def nvmlDeviceGetComputeInstanceId(self, handle: Any, out: Any) -> int:
        return self._number(handle, out, "mig", "ci")


@contextmanager
def installed(library: object) -> Iterator[None]:
    """Put an object in the place of the loaded library, and take it out again."""
    cache = pynvml._nvmlGetFunctionPointer_cache
    before, cached = pynvml.nvmlLib, dict(cache)
    cache.clear()
    pynvml.nvmlLib = library
    try:
        yield
    finally:
        pynvml.nvmlLib = before
        cache.clear()
        cache.update(cached)
