"""Reads one NVIDIA device, and detects its loss."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final, Literal

from autoglm_throttle.gpu.nvml.calls import Binding, CallResult, Handle, NvmlCalls
from autoglm_throttle.gpu.nvml.fields import FieldReader, field_specs
from autoglm_throttle.gpu.nvml.gpm import DEVICE_METRICS, MIG_METRICS, GpmReader
from autoglm_throttle.gpu.nvml.visible import DeviceInfo, find_handles
from autoglm_throttle.gpu.sanity import changed, throttle_reasons
from autoglm_throttle.types import Clock, GpuSample

_log = logging.getLogger("autoglm_throttle")
# Pause between look-ups of a lost device: only a reset recovers it, and the others must not wait.
LOST_RETRY_S: Final = 60.0
NOT_SUPPORTED: Final = 3
Health = Literal["ok", "degraded", "lost"]


class NvmlDevice:
    """A device or a MIG instance, read by guarded calls."""

    def __init__(self, nvml: Binding, driver: str, info: DeviceInfo, source: str, clock: Clock) -> None:
        whole = info.slot is None
        # A row without measurements; its index is, for a MIG instance, 100 x (device + 1) + slot.
        self.identity: GpuSample = GpuSample(
            device=info.uuid,
            index=info.index if info.slot is None else 100 * (info.index + 1) + info.slot,
            taken_at_s=0.0,
            source=source,
            name=info.name,
            kind="gpu" if whole else "mig",
            gpu_instance=info.part,
        )
        self._nvml = nvml
        self._info = info
        self._clock = clock
        self._lost = "" if info.error is None else str(info.error)  # Why the device is out of use, if it is
        self.calls: NvmlCalls = NvmlCalls(nvml, info.uuid)
        self._fields = FieldReader(self.calls, field_specs(driver, whole=whole))
        self.gpm: GpmReader = GpmReader(
            self.calls,
            DEVICE_METRICS if whole else MIG_METRICS,
            support=lambda: nvml.nvmlGpmQueryDeviceSupport(self._info.parent),
            fill_sample=self._sample,
        )
        self._constants: dict[str, Any] = {}  # Properties of the product, by the call that read them
        self._retry_due_s = 0.0

    def read(self, *, brief: bool = False) -> GpuSample:
        """Read all fields of the device; ``brief`` leaves out slow ones not needed for the load: GPM, links.

        A lost device gives a row without numbers, and a driver call once a minute.
        """
        self.calls.error = None
        self.calls.transient.clear()
        try:
            if not self._lost or self._rediscover():
                values = self._measure(brief=brief)
                return self._row("degraded" if self.calls.error else "ok", self.calls.notes, values)
        except self._nvml.NVMLError as error:
            if not self._lost:
                self._lost = str(error)
                self._retry_due_s = self._clock() + LOST_RETRY_S
                _log.error("GPU telemetry: %s is lost: %s", self.identity.device, error)
        return self._row("lost", (self._lost,), {})

    def _row(self, health: Health, notes: tuple[str, ...], values: dict[str, Any]) -> GpuSample:
        own = {"taken_at_s": self._clock(), "health": health, "notes": notes}
        return changed(self.identity, own | values)

    def _rediscover(self) -> bool:
        """Find a lost device again, at most once a minute; return whether it is back."""
        now = self._clock()
        if now < self._retry_due_s:
            return False
        self._retry_due_s = now + LOST_RETRY_S
        handles = self.calls.run("look-up", lambda: find_handles(self._nvml, self._info))
        if handles is None:
            return False
        self._info = replace(self._info, handle=handles[0], parent=handles[1])
        self._lost = ""
        self.gpm.restart()
        _log.warning("GPU telemetry: %s is back", self.identity.device)
        return True

    def _measure(self, *, brief: bool) -> dict[str, Any]:
        values = self._memory() | self._temperature() | self._clocks()
        fields: dict[str, Any] = self._fields.read(self._info.parent, brief=brief)
        if self.identity.kind == "gpu":
            rates = self.calls.call("nvmlDeviceGetUtilizationRates", self._info.handle)
            if rates is not None:
                values |= {"utilization_pct": rates.gpu, "memory_busy_pct": rates.memory}
            values |= self._power(fields.pop("power_mw", None))
        else:
            self.calls.transient.append("utilization and power are not reported per MIG instance")
        values |= fields
        if brief:
            self.calls.transient.append("partial: reading took too long, GPM and the links are left out")
        else:
            values |= self.gpm.read(self._clock())
        return values

    def _memory(self) -> dict[str, Any]:
        # By the second version of the call: the first counts reserved memory as used.
        memory = self.calls.run(
            "nvmlDeviceGetMemoryInfo_v2",
            lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._info.handle, version=self._nvml.nvmlMemory_v2),
        )
        # Only if unsupported: after a transient error the older call would mix two definitions of "used".
        if memory is None and "nvmlDeviceGetMemoryInfo_v2" in self.calls.unsupported:
            memory = self.calls.call("nvmlDeviceGetMemoryInfo", self._info.handle)
        if memory is None:
            return {}
        return {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}

    def _power(self, used: int | None) -> dict[str, Any]:
        if used is None:
            used = self.calls.call("nvmlDeviceGetPowerUsage", self._info.handle)
        counts = {
            "power_w": used,
            "power_limit_w": self.calls.call("nvmlDeviceGetEnforcedPowerLimit", self._info.handle),
            "power_limit_default_w": self._constant(
                "nvmlDeviceGetPowerManagementDefaultLimit", self._info.handle
            ),
            "energy_j": self.calls.call("nvmlDeviceGetTotalEnergyConsumption", self._info.handle),
        }
        # The driver counts in mW and mJ.
        return {name: None if count is None else count / 1000.0 for name, count in counts.items()}

    def _constant(self, call: str, *arguments: CallResult) -> CallResult:
        if self._constants.get(call) is None:
            self._constants[call] = self.calls.call(call, *arguments)
        return self._constants[call]

    def _clocks(self) -> dict[str, Any]:
        kind, parent = self._nvml.NVML_CLOCK_SM, self._info.parent
        reasons = self.calls.call("nvmlDeviceGetCurrentClocksEventReasons", parent)
        return {
            "sm_clock_mhz": self.calls.call("nvmlDeviceGetClockInfo", parent, kind),
            "sm_clock_max_mhz": self._constant("nvmlDeviceGetMaxClockInfo", parent, kind),
            "throttle": None if reasons is None else throttle_reasons(reasons),
        }

    def _temperature(self) -> dict[str, Any]:
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        # By the versioned call: the other is removed in CUDA 14.
        degrees: float | None = self.calls.call("nvmlDeviceGetTemperatureV", self._info.parent, sensor)
        if degrees is None and "nvmlDeviceGetTemperatureV" in self.calls.unsupported:
            degrees = self.calls.call("nvmlDeviceGetTemperature", self._info.parent, sensor)
        margin = self.calls.call("nvmlDeviceGetMarginTemperature", self._info.parent)
        return {"temperature_c": degrees, "temperature_margin_c": margin}

    def _sample(self, sample: Handle) -> None:
        if self.identity.kind == "gpu":
            self._nvml.nvmlGpmSampleGet(self._info.parent, sample)
        elif self._info.gpu_instance is not None:
            self._nvml.nvmlGpmMigSampleGet(self._info.parent, self._info.gpu_instance, sample)
        else:
            # Handled like the driver's own NotSupported: GPM is not tried again.
            raise self._nvml.NVMLError(NOT_SUPPORTED)
