"""NVIDIA's library as a plain Python object: no compiler and no GPU, but the real binding above it.

The binding ``pynvml`` calls ``getattr(nvmlLib, name)(handle, byref(struct))``, and ``byref(x)._obj`` is
``x``. An object with methods of these names is therefore enough for fast tests of code that reads GPUs.
A plain object never releases the GIL, so it cannot show the effect of a hanging call on other threads.
"""
# ruff: noqa: D102, N802, N815, ARG002, SLF001 - names, arguments and ``_obj`` are those of the library and of ctypes

from __future__ import annotations

import ctypes
import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

UNINITIALIZED: Final = 1
INVALID: Final = 2
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
MISMATCH: Final = 25

DRIVER: Final = -1  # The device number for values of no device: the device count and the opening
MIG_BASE: Final = 100  # A MIG instance is device 100 x (device + 1) + slot

POWER_INSTANT: Final = 186
NVLINK_TOTALS: Final = frozenset({138, 139})
ALL_LINKS: Final = 0xFFFFFFFF
UNSIGNED_LONG_LONG: Final = 3

_BY_NUMBER: Final = re.compile(r"(field|gpm)_\d+", re.ASCII)

# Values that can be set for a device or the driver, beside ``field_<id>`` and ``gpm_<id>``.
VALUES: Final = frozenset(
    {
        *("gpu", "mem", "total", "used", "reserved", "power_mw", "limit_mw", "limit_default_mw", "energy_mj"),
        *("temp", "margin", "smclk", "smclk_max", "reasons", "gpm", "uuid", "model", "bus", "mig"),
        *("mig_count", "mig_max", "gi", "ci", "count", "driver_major", "driver_minor"),
    }
)

# The short names of the calls, beside ``field_<id>`` and ``gpm_<id>``; the last row is for device -1.
CALLS: Final = frozenset(
    {
        *("any", "handle", "uuid", "name", "pci", "util", "memory", "memory_old", "power_mw", "limit_mw"),
        *("limit_default_mw", "energy_mj", "temp", "temp_old", "margin", "clock", "clock_max", "reasons"),
        *("mig", "gi", "ci", "fields", "gpm_support", "gpm", "gpm_metrics", "pcie", "nvlink", "violation"),
        *("init", "shutdown", "driver", "count", "gpm_alloc", "gpm_free"),
    }
)

Pointer = Any  # An argument from the binding: a handle, or a place for a result

Function = Callable[..., int]


def _reading(
    call: str, key: str = "", otherwise: int = 0, *, field: str = "value", version: int | None = None
) -> Function:
    """Make a function that writes one value to its last argument; without a key it writes none."""

    def read(self: FakeNvml, handle: Pointer, *arguments: Pointer) -> int:
        out = arguments[-1]
        if key:
            setattr(out._obj, field, self._get(handle.number, key, otherwise))
        error = self._begin_call(handle.number, call)
        return error if version is None else error or _version(out, version)

    return read


class FakeNvml:
    """Replaces the library that the binding opens, with devices set by the test.

    A device without set values is an idle Hopper GPU that answers every call.

    Args:
        devices: number of devices.

    Example:
        >>> from autoglm_throttle.testing import FakeNvml
        >>> from autoglm_throttle.gpu.nvml.provider import NvmlProvider
        >>> library = FakeNvml(devices=2)
        >>> library.set(0, gpu=92, power_mw=612_500)
        >>> library.fail(1, "any", 15)
        >>> with library.installed():
        ...     rows = NvmlProvider(environ={}).read()
        >>> [(row.utilization_pct, row.health) for row in rows]
        [(92, 'ok'), (None, 'lost')]
    """

    def __init__(self, devices: int = 1) -> None:
        self._state = {(DRIVER, "count"): devices}  # Results of the calls, by device and key
        # The calls that were made, in order, by their short names.
        self.calls: list[str] = []
        self.opened: int = 0  # Number of times the library was opened
        self.references: int = 0  # Openings that were not closed
        # GPM samples by address: their memory, and number and device of the last filling.
        self._samples: dict[int, tuple[ctypes.c_int, int, int]] = {}
        self._owner = 0
        self._fillings = 0

    def __repr__(self) -> str:
        return f"FakeNvml({self._state[DRIVER, 'count']} devices, opened {self.references} times)"

    @property
    def samples(self) -> int:
        """GPM samples that were allocated and not freed."""
        return len(self._samples)

    def set(self, device: int, **values: int) -> None:
        """Set the values that a device reports from now on.

        Args:
            device: index of the device; 100 x (device + 1) + slot for a MIG instance; -1 for the driver.
            values: in NVML's own units. For a device ``gpu`` and ``mem`` (per cent), ``total``, ``used`` and
                ``reserved`` (bytes), ``power_mw``, ``limit_mw``, ``limit_default_mw``, ``energy_mj``,
                ``temp`` and ``margin`` (degrees), ``smclk`` and ``smclk_max`` (MHz), ``reasons`` (bits),
                ``field_<id>``, ``gpm`` (whether it has GPM), ``gpm_<id>`` (hundredths), ``uuid`` (a number),
                ``model``, ``bus``, ``mig`` (whether it is in MIG mode), ``mig_count``, ``mig_max``; for an
                instance also ``gi`` and ``ci``; for the driver ``count``, ``driver_major`` and
                ``driver_minor``.

        Raises:
            AttributeError: a name is none of these.
        """
        _check_names(values, VALUES, "value")
        self._state |= {(device, key): value for key, value in values.items()}

    def fail(self, device: int, call: str, code: int) -> None:
        """Make a call about a device return an error.

        Args:
            device: as for `set`; -1 for the calls that are about no device.
            call: its short name, such as ``util``, ``field_<id>`` or ``gpm_<id>``; ``any`` for all of a
                device. The error for an unknown name lists all names.
            code: NVML's error code, such as 15 for a lost GPU; 0: no error any more.

        Raises:
            AttributeError: no call has this name.
        """
        _check_names((call,), CALLS, "call")
        self._state[device, "err" if call == "any" else f"err_{call}"] = code

    @contextmanager
    def installed(self) -> Iterator[Self]:
        """Replace the loaded library by this object, and restore it afterwards.

        It touches two private names of the binding, ``nvmlLib`` and its cache of functions, and sets both
        back. One at a time; nothing else in the process may use the binding meanwhile.

        Raises:
            ImportError: the package nvidia-ml-py is not installed; the text names the extra.
        """
        try:
            binding: Any = importlib.import_module("pynvml")
        except ImportError as error:
            from autoglm_throttle._runtime import how_to_install

            raise ImportError(f"the package nvidia-ml-py is missing: {how_to_install('nvml')}") from error
        cache = binding._nvmlGetFunctionPointer_cache
        library, functions = binding.nvmlLib, dict(cache)
        cache.clear()
        binding.nvmlLib = self
        try:
            yield self
        finally:
            binding.nvmlLib = library
            cache.clear()
            cache.update(functions)

    def _get(self, device: int, key: str, otherwise: int = 0) -> int:
        return self._state.get((device, key), otherwise)

    def _failure(self, device: int, call: str) -> int:
        return self._get(device, "err") or self._get(device, f"err_{call}")

    def _is_initialized(self) -> bool:
        """Whether the library is open in this process; its state does not survive a fork."""
        return self.references > 0 and self._owner == os.getpid()

    def _begin_call(self, device: int, call: str) -> int:
        self.calls.append(call)
        return self._failure(device, call) if self._is_initialized() else UNINITIALIZED

    # The rest has the library's own names and prototypes. A missing method is a missing symbol. The binding
    # passes handles, and ``byref(struct)`` whose ``_obj`` is the struct; it keeps what is set on a handle.

    def nvmlInitWithFlags(self, flags: int) -> int:
        error = self._failure(DRIVER, "init")
        if not error:
            if self._owner != os.getpid():
                self._owner, self.references = os.getpid(), 0
            self.references += 1
            self.opened += 1
        return error

    def nvmlShutdown(self) -> int:
        if not self._is_initialized():
            return UNINITIALIZED
        self.references -= 1
        return self._failure(DRIVER, "shutdown")

    def nvmlSystemGetDriverVersion(self, text: Pointer, size: Pointer) -> int:
        major, minor = self._get(DRIVER, "driver_major", 580), self._get(DRIVER, "driver_minor", 126)
        text.value = f"{major}.{minor}.09".encode()
        return self._begin_call(DRIVER, "driver")

    def nvmlDeviceGetCount_v2(self, out: Pointer) -> int:
        out._obj.value = self._get(DRIVER, "count")
        return self._begin_call(DRIVER, "count")

    def nvmlDeviceGetHandleByIndex_v2(self, index: Pointer, out: Pointer) -> int:
        if index.value >= self._get(DRIVER, "count"):
            return INVALID
        out._obj.number = index.value
        return self._begin_call(index.value, "handle")

    def nvmlDeviceGetUUID(self, handle: Pointer, text: Pointer, size: Pointer) -> int:
        kind = "GPU" if handle.number < MIG_BASE else "MIG"
        number = self._get(handle.number, "uuid", handle.number)
        text.value = f"{kind}-00000000-0000-0000-0000-{number:012d}".encode()
        return self._begin_call(handle.number, "uuid")

    def nvmlDeviceGetName(self, handle: Pointer, text: Pointer, size: Pointer) -> int:
        text.value = f"Fake GPU {self._get(handle.number, 'model')}".encode()
        return self._begin_call(handle.number, "name")

    def nvmlDeviceGetPciInfo_v3(self, handle: Pointer, out: Pointer) -> int:
        bus = self._get(handle.number, "bus", handle.number + 1)
        out._obj.busId = f"00000000:{bus:02X}:00.0".encode()
        return self._begin_call(handle.number, "pci")

    def nvmlDeviceGetUtilizationRates(self, handle: Pointer, out: Pointer) -> int:
        out._obj.gpu, out._obj.memory = self._get(handle.number, "gpu"), self._get(handle.number, "mem")
        error = self._begin_call(handle.number, "util")
        return NOT_SUPPORTED if handle.number >= MIG_BASE else error

    def nvmlDeviceGetMemoryInfo(self, handle: Pointer, out: Pointer) -> int:
        out._obj.total = self._get(handle.number, "total", 1 << 30)
        out._obj.used = self._get(handle.number, "used") + self._get(handle.number, "reserved")
        return self._begin_call(handle.number, "memory_old")

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Pointer, out: Pointer) -> int:
        out._obj.total = self._get(handle.number, "total", 1 << 30)
        out._obj.used = self._get(handle.number, "used")
        return self._begin_call(handle.number, "memory") or _version(out, 40 | 2 << 24)

    nvmlDeviceGetPowerUsage: Function = _reading("power_mw", "power_mw", 100_000)
    nvmlDeviceGetEnforcedPowerLimit: Function = _reading("limit_mw", "limit_mw", 700_000)
    nvmlDeviceGetPowerManagementDefaultLimit: Function = _reading(
        "limit_default_mw", "limit_default_mw", 700_000
    )
    nvmlDeviceGetTotalEnergyConsumption: Function = _reading("energy_mj", "energy_mj")
    nvmlDeviceGetTemperature: Function = _reading("temp_old", "temp", 40)
    nvmlDeviceGetClockInfo: Function = _reading("clock", "smclk", 1500)
    nvmlDeviceGetMaxClockInfo: Function = _reading("clock_max", "smclk_max", 1980)
    nvmlDeviceGetCurrentClocksEventReasons: Function = _reading("reasons", "reasons")
    nvmlDeviceGetPcieThroughput: Function = _reading("pcie")
    nvmlDeviceGetNvLinkUtilizationCounter: Function = _reading("nvlink")
    nvmlDeviceGetViolationStatus: Function = _reading("violation")
    nvmlDeviceGetMaxMigDeviceCount: Function = _reading("mig", "mig_max", 7)
    nvmlDeviceGetComputeInstanceId: Function = _reading("ci", "ci")

    nvmlDeviceGetTemperatureV: Function = _reading(
        "temp", "temp", 40, field="temperature", version=12 | 1 << 24
    )
    nvmlDeviceGetMarginTemperature: Function = _reading(
        "margin", "margin", 45, field="marginTemperature", version=8 | 1 << 24
    )
    nvmlGpmQueryDeviceSupport: Function = _reading(
        "gpm_support", "gpm", 1, field="isSupportedDevice", version=1
    )

    def nvmlDeviceGetFieldValues(self, handle: Pointer, count: Pointer, out: Pointer) -> int:
        error = self._begin_call(handle.number, "fields")
        for field in () if error else out._obj:
            rest = self._get(handle.number, "power_mw", 100_000) if field.fieldId == POWER_INSTANT else 0
            field.valueType = UNSIGNED_LONG_LONG
            field.value.ullVal = self._get(handle.number, f"field_{field.fieldId}", rest)
            field.nvmlReturn = self._failure(handle.number, f"field_{field.fieldId}")
            if field.fieldId in NVLINK_TOTALS and field.scopeId != ALL_LINKS:
                field.nvmlReturn = INVALID
        return error

    def nvmlGpmSampleAlloc(self, out: Pointer) -> int:
        error = self._begin_call(DRIVER, "gpm_alloc")
        if not error:
            memory = ctypes.c_int()
            address = ctypes.addressof(memory)
            self._samples[address] = (memory, 0, 0)
            out._obj.contents = type(out._obj)._type_.from_address(address)
        return error

    def nvmlGpmSampleFree(self, sample: Pointer) -> int:
        self._samples.pop(_address(sample))
        return self._begin_call(DRIVER, "gpm_free")

    def nvmlGpmSampleGet(self, handle: Pointer, sample: Pointer) -> int:
        return self._begin_call(handle.number, "gpm") or self._fill(sample, handle.number)

    def nvmlGpmMigSampleGet(self, handle: Pointer, instance: int, sample: Pointer) -> int:
        slots = range(MIG_BASE * (handle.number + 1), MIG_BASE * (handle.number + 1) + MIG_BASE)
        number = next(slot for slot in slots if self._get(slot, "gi", slot % MIG_BASE + 1) == instance)
        error = self._begin_call(handle.number, "gpm") or self._failure(number, "gpm")
        return error or self._fill(sample, number)

    def nvmlGpmMetricsGet(self, out: Pointer) -> int:
        wanted = out._obj
        _, first, first_device = self._samples[_address(wanted.sample1)]
        _, second, device = self._samples[_address(wanted.sample2)]
        error = self._begin_call(device, "gpm_metrics") or _version(out, 1)
        if not 0 < first < second or first_device != device:
            return INVALID
        for metric in wanted.metrics[: wanted.numMetrics]:
            metric.value = self._get(device, f"gpm_{metric.metricId}") / 100.0
            metric.nvmlReturn = self._failure(device, f"gpm_{metric.metricId}")
        return error

    def _fill(self, sample: Pointer, device: int) -> int:
        self._fillings += 1
        address = _address(sample)
        self._samples[address] = (self._samples[address][0], self._fillings, device)
        return 0

    def nvmlDeviceGetMigMode(self, handle: Pointer, current: Pointer, pending: Pointer) -> int:
        current._obj.value = self._get(handle.number, "mig")
        return self._begin_call(handle.number, "mig")

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Pointer, slot: Pointer, out: Pointer) -> int:
        out._obj.number = MIG_BASE * (handle.number + 1) + slot.value
        if slot.value >= self._get(handle.number, "mig_count"):
            return NOT_FOUND
        return self._begin_call(handle.number, "mig") or self._failure(out._obj.number, "handle")

    def nvmlDeviceGetGpuInstanceId(self, handle: Pointer, out: Pointer) -> int:
        out._obj.value = self._get(handle.number, "gi", handle.number % MIG_BASE + 1)
        return self._begin_call(handle.number, "gi")


def _address(pointer: Pointer) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _version(out: Pointer, wanted: int) -> int:
    return 0 if out._obj.version == wanted else MISMATCH


def _check_names(names: Iterable[str], known: frozenset[str], kind: str) -> None:
    unknown = [name for name in names if name not in known and not _BY_NUMBER.fullmatch(name)]
    if unknown:
        there = ", ".join([*sorted(known), "field_<id>", "gpm_<id>"])
        raise AttributeError(f"no {kind} is called {', '.join(unknown)}; there are {there}")
