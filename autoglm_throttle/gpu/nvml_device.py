"""Reads one NVIDIA device, and detects its loss."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from autoglm_throttle.gpu.nvml_calls import Binding, DeviceLostError, Handle, NvmlCalls
from autoglm_throttle.gpu.nvml_fields import FieldReader, device_specs, mig_specs
from autoglm_throttle.gpu.nvml_gpm import DEVICE_METRICS, MIG_METRICS, GpmReader
from autoglm_throttle.types import GpuSample, ThrottleBit

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoglm_throttle.types import Clock

_log = logging.getLogger("autoglm_throttle")

LOST_RETRY_S: Final = 60.0
"""Pause between look-ups of a lost device: only a reset recovers it, and the others must not wait."""

NOT_SUPPORTED: Final = 3

BITS: Final[tuple[tuple[int, ThrottleBit], ...]] = (
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
)
"""``nvmlClocksEventReason*`` that slow a device down; the others are idleness and clocks set on purpose."""

Health = Literal["ok", "degraded", "lost"]


@dataclass(slots=True, kw_only=True)
class NvmlDevice:
    """A device or a MIG instance, read by guarded calls.

    Args:
        nvml: the binding.
        driver: the driver's version.
        uuid: its stable id.
        index: its number; that of a MIG instance is 100 x (device + 1) + slot.
        name: the product name.
        kind: ``gpu`` for a whole device, ``mig`` for an instance.
        handle: argument of the calls; None if the device was lost when the driver was opened.
        parent_handle: handle of the whole device, which has the thermometer.
        instance_id: the driver's number of the GPU instance that a MIG device is in, if it is known.
        gpu_instance: the part of the device that it has to itself, as in `GpuSample`.
        find: looks both handles up again; raises the binding's error if the device is still lost.
        clock: monotonic seconds.
        source: name of the provider.
        lost: why the device is out of use, empty while it is not.
    """

    nvml: Binding
    driver: str
    uuid: str
    index: int
    name: str
    kind: Literal["gpu", "mig"]
    handle: Handle
    parent_handle: Handle
    instance_id: int | None
    gpu_instance: str
    find: Callable[[], tuple[Handle, Handle]]
    clock: Clock
    source: str
    lost: str = ""
    _calls: NvmlCalls = field(init=False)
    _fields: FieldReader = field(init=False)
    _gpm: GpmReader = field(init=False)
    _sm_clock_max_mhz: float | None = None
    _limit_default_mw: int | None = None
    _retry_due_s: float = 0.0

    def __post_init__(self) -> None:
        self._calls = NvmlCalls(self.nvml, self.uuid)
        whole = self.kind == "gpu"
        self._fields = FieldReader(
            self._calls, device_specs(self.driver) if whole else mig_specs(self.driver)
        )
        self._gpm = GpmReader(
            self._calls,
            DEVICE_METRICS if whole else MIG_METRICS,
            support=lambda: self.nvml.nvmlGpmQueryDeviceSupport(self.parent_handle),
            fill_sample=self._sample,
        )

    @property
    def error(self) -> Exception | None:
        """The last call's error in this reading that was neither lasting nor fatal."""
        error: Exception | None = self._calls.error
        return error

    def read(self, *, brief: bool = False) -> GpuSample:
        """Read all fields of the device.

        Args:
            brief: leave out slow fields that are not needed for the load: GPM and the links.

        Returns:
            A row. A lost device gives one with ``health`` ``lost`` and no numbers,
            without a driver call except once a minute.

        Raises:
            NvmlUninitializedError: the library must be opened again.
        """
        self._calls.begin()
        try:
            if self.lost:
                self._rediscover()
            values = self._measure(brief=brief)
        except DeviceLostError as error:
            if not self.lost:
                self.lost = str(error)
                self._retry_due_s = self.clock() + LOST_RETRY_S
                _log.error("GPU telemetry: %s is lost: %s", self.uuid, error)
            return self._row("lost", (self.lost,), {})
        return self._row("degraded" if self.error else "ok", self._calls.notes, values)

    def close(self) -> None:
        """Free the driver's resources of this device."""
        self._gpm.close()

    def _row(self, health: Health, notes: tuple[str, ...], values: dict[str, Any]) -> GpuSample:
        return GpuSample(
            device=self.uuid,
            index=self.index,
            taken_at_s=self.clock(),
            source=self.source,
            kind=self.kind,
            gpu_instance=self.gpu_instance,
            name=self.name,
            health=health,
            notes=notes,
            **values,
        )

    def _rediscover(self) -> None:
        """Find a lost device again, at most once a minute."""
        now = self.clock()
        if now < self._retry_due_s:
            raise DeviceLostError(self.lost)
        self._retry_due_s = now + LOST_RETRY_S
        handles = self._calls.run("look-up", self.find)
        if handles is None:
            raise DeviceLostError(self.lost)
        self.handle, self.parent_handle = handles
        self.lost = ""
        self._gpm.restart()
        _log.warning("GPU telemetry: %s is back", self.uuid)

    def _measure(self, *, brief: bool) -> dict[str, Any]:
        values = self._memory() | self._temperature() | self._clocks()
        fields: dict[str, Any] = self._fields.read(self.parent_handle, brief=brief)
        if self.kind == "gpu":
            values |= self._utilization() | self._power(fields.pop("power_mw", None))
        else:
            self._calls.add_note("utilization and power are not reported per MIG instance")
        values |= fields
        if brief:
            self._calls.add_note("partial: reading took too long, GPM and the links are left out")
        else:
            values |= self._gpm.read(self.clock())
        return values

    def _utilization(self) -> dict[str, Any]:
        rates = self._calls.call("nvmlDeviceGetUtilizationRates", self.handle)
        return {} if rates is None else {"utilization_pct": rates.gpu, "memory_busy_pct": rates.memory}

    def _memory(self) -> dict[str, Any]:
        """Read the memory, by the second version of the call: the first counts reserved memory as used."""
        memory = self._calls.run(
            "nvmlDeviceGetMemoryInfo_v2",
            lambda: self.nvml.nvmlDeviceGetMemoryInfo(self.handle, version=self.nvml.nvmlMemory_v2),
        )
        # Only if unsupported: after a transient error the older call would mix two definitions of "used".
        if memory is None and self._calls.is_unsupported("nvmlDeviceGetMemoryInfo_v2"):
            memory = self._calls.call("nvmlDeviceGetMemoryInfo", self.handle)
        return (
            {} if memory is None else {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}
        )

    def _power(self, used: int | None) -> dict[str, Any]:
        if used is None:
            used = self._calls.call("nvmlDeviceGetPowerUsage", self.handle)
        limit = self._calls.call("nvmlDeviceGetEnforcedPowerLimit", self.handle)
        if self._limit_default_mw is None:  # a property of the product, too
            call = "nvmlDeviceGetPowerManagementDefaultLimit"
            self._limit_default_mw = self._calls.call(call, self.handle)
        default = self._limit_default_mw
        energy = self._calls.call("nvmlDeviceGetTotalEnergyConsumption", self.handle)
        return {  # the driver counts in mW and mJ
            "power_w": None if used is None else used / 1000.0,
            "power_limit_w": None if limit is None else limit / 1000.0,
            "power_limit_default_w": None if default is None else default / 1000.0,
            "energy_j": None if energy is None else energy / 1000.0,
        }

    def _clocks(self) -> dict[str, Any]:
        kind = self.nvml.NVML_CLOCK_SM
        if self._sm_clock_max_mhz is None:  # a property of the product
            self._sm_clock_max_mhz = self._calls.call("nvmlDeviceGetMaxClockInfo", self.parent_handle, kind)
        reasons = self._calls.call("nvmlDeviceGetCurrentClocksEventReasons", self.parent_handle)
        return {
            "sm_clock_mhz": self._calls.call("nvmlDeviceGetClockInfo", self.parent_handle, kind),
            "sm_clock_max_mhz": self._sm_clock_max_mhz,
            "throttle": None if reasons is None else frozenset(bit for mask, bit in BITS if reasons & mask),
        }

    def _temperature(self) -> dict[str, Any]:
        """Read the temperature, by the versioned call: the other is removed in CUDA 14."""
        sensor = self.nvml.NVML_TEMPERATURE_GPU
        degrees: float | None = self._calls.call("nvmlDeviceGetTemperatureV", self.parent_handle, sensor)
        if degrees is None and self._calls.is_unsupported("nvmlDeviceGetTemperatureV"):
            degrees = self._calls.call("nvmlDeviceGetTemperature", self.parent_handle, sensor)
        margin = self._calls.call("nvmlDeviceGetMarginTemperature", self.parent_handle)
        return {"temperature_c": degrees, "temperature_margin_c": margin}

    def _sample(self, sample: Handle) -> None:
        if self.kind == "gpu":
            self.nvml.nvmlGpmSampleGet(self.parent_handle, sample)
        elif self.instance_id is not None:
            self.nvml.nvmlGpmMigSampleGet(self.parent_handle, self.instance_id, sample)
        else:
            # Handled like the driver's own NotSupported: GPM is not tried again.
            raise self.nvml.NVMLError(NOT_SUPPORTED)
