"""One NVIDIA device: which driver calls say what about it, and what each error means for it.

A call that the device, the driver or the binding does not have makes its field None and is not
tried again until the driver is opened anew: asking for ever costs time and fills the log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from autoglm_throttle.model import GpuSample

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoglm_throttle.model import Clock

_log = logging.getLogger("autoglm_throttle")

Binding = Any
"""The module ``pynvml``, which has no types."""
Handle = Any
"""A device as the library names it: a pointer."""
Refusal = Any
"""The binding's ``NVMLError``: an exception with the library's code in ``value``."""
Call = Any
"""A function of the binding."""
Answer = Any
"""What such a function returns: a number or one of the library's structures."""

UNINITIALIZED: Final = 1
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
NEVER: Final = frozenset({3, 13, 25, 26})
"""NotSupported, FunctionNotFound, ArgumentVersionMismatch, Deprecated: asking again cannot help."""
GONE: Final = frozenset({NOT_FOUND, 15, 16, 28})
"""NotFound (a MIG instance was destroyed), GpuIsLost, ResetRequired, GpuNotFound."""

NEWER: Final = frozenset({"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"})
"""Calls that have an older one in reserve, so that their absence costs nothing."""

LOOK_AGAIN_S: Final = 60.0
"""Pause between look-ups of a lost device: only a reset brings it back, and the others must not wait."""


Health = Literal["ok", "degraded", "lost"]


class Gone(Exception):
    """The device fell off the bus or needs a reset."""


class Uninitialized(Exception):
    """Somebody shut the library down; every handle is dead."""


@dataclass(slots=True, kw_only=True)
class NvmlDevice:
    """A card or a MIG instance, read by guarded calls.

    Args:
        nvml: the binding.
        uuid: its stable id.
        index: its number; that of a MIG instance is 100 x (card + 1) + slot.
        name: the product name.
        kind: ``gpu`` for a whole card, ``mig`` for an instance.
        handle: what the calls take; None if the device was lost when the driver was opened.
        card: handle of the whole card, which has the thermometer.
        find: looks both handles up again; raises the binding's error if the device is still gone.
        clock: monotonic seconds.
        source: name of the provider.
        lost: why the device is out of use, empty while it is not.
    """

    nvml: Binding
    uuid: str
    index: int
    name: str
    kind: Literal["gpu", "mig"]
    handle: Handle
    card: Handle
    find: Callable[[], tuple[Handle, Handle]]
    clock: Clock
    source: str
    lost: str = ""
    error: Exception | None = None
    """The last call's error in this reading that was neither lasting nor fatal."""
    _never: dict[str, str] = field(default_factory=dict)
    _notes: list[str] = field(default_factory=list)
    _look_again_s: float = 0.0

    def read(self) -> GpuSample:
        """Read everything the device tells.

        Returns:
            A row. A lost device gives one with ``health`` ``lost`` and no numbers,
            without a driver call except once a minute.

        Raises:
            Uninitialized: the library must be opened again.
        """
        self.error = None
        self._notes.clear()
        try:
            if self.lost:
                self._look_again()
            values = self._measure()
        except Gone as gone:
            if not self.lost:
                self.lost = str(gone)
                self._look_again_s = self.clock() + LOOK_AGAIN_S
                _log.error("GPU telemetry: %s is lost: %s", self.uuid, gone)
            return self._row("lost", (self.lost,), {})
        notes = (*(why for name, why in self._never.items() if name not in NEWER), *self._notes)
        return self._row("degraded" if self.error else "ok", notes, values)

    def _row(self, health: Health, notes: tuple[str, ...], values: dict[str, Any]) -> GpuSample:
        return GpuSample(
            device=self.uuid,
            index=self.index,
            taken_at_s=self.clock(),
            source=self.source,
            kind=self.kind,
            name=self.name,
            health=health,
            notes=notes,
            **values,
        )

    def _look_again(self) -> None:
        """Find a lost device again, at most once a minute."""
        now = self.clock()
        if now < self._look_again_s:
            raise Gone(self.lost)
        self._look_again_s = now + LOOK_AGAIN_S
        found = self._guarded("look-up", self.find)
        if found is None:
            raise Gone(self.lost)
        self.handle, self.card = found
        self.lost = ""
        _log.warning("GPU telemetry: %s is back", self.uuid)

    def _measure(self) -> dict[str, Any]:
        values = self._memory()
        values["temperature_c"] = self._temperature()
        if self.kind == "mig":
            self._notes.append("utilization and power are not told per MIG instance")
            return values
        return values | self._load() | self._power() | self._clocks()

    def _load(self) -> dict[str, Any]:
        rates = self._ask("nvmlDeviceGetUtilizationRates", self.handle)
        return {} if rates is None else {"utilization_pct": rates.gpu, "memory_busy_pct": rates.memory}

    def _memory(self) -> dict[str, Any]:
        """Prefer the second version: the first counts what the driver reserves as used."""
        memory = self._guarded(
            "nvmlDeviceGetMemoryInfo_v2",
            lambda: self.nvml.nvmlDeviceGetMemoryInfo(self.handle, version=self.nvml.nvmlMemory_v2),
        )
        if memory is None and "nvmlDeviceGetMemoryInfo_v2" in self._never:
            memory = self._ask("nvmlDeviceGetMemoryInfo", self.handle)
        return (
            {} if memory is None else {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}
        )

    def _power(self) -> dict[str, Any]:
        used = self._ask("nvmlDeviceGetPowerUsage", self.handle)
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", self.handle)
        return {
            "power_w": None if used is None else used / 1000.0,  # the driver counts in mW
            "power_limit_w": None if limit is None else limit / 1000.0,
        }

    def _clocks(self) -> dict[str, Any]:
        kind = self.nvml.NVML_CLOCK_SM
        return {
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", self.handle, kind),
            "sm_clock_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", self.handle, kind),
        }

    def _temperature(self) -> float | None:
        """Prefer the versioned call: the other goes away with CUDA 14."""
        sensor = self.nvml.NVML_TEMPERATURE_GPU
        degrees: float | None = self._ask("nvmlDeviceGetTemperatureV", self.card, sensor)
        if degrees is None and "nvmlDeviceGetTemperatureV" in self._never:
            degrees = self._ask("nvmlDeviceGetTemperature", self.card, sensor)
        return degrees

    def _ask(self, name: str, handle: Handle, *arguments: int) -> Answer:
        """Make one call of the binding; None if there is no answer."""
        return self._guarded(name, lambda: getattr(self.nvml, name)(handle, *arguments))

    def _guarded(self, name: str, call: Callable[[], Answer]) -> Answer:
        if name in self._never:
            return None
        try:
            return call()
        except AttributeError:  # an older binding
            self._remember(name, "not in this binding")
        except self.nvml.NVMLError as error:
            self._refused(name, error)
        return None

    def _refused(self, name: str, error: Refusal) -> None:
        if error.value == UNINITIALIZED:
            raise Uninitialized(str(error)) from error
        if error.value in GONE:
            raise Gone(str(error)) from error
        if error.value in NEVER:
            self._remember(name, str(error))
        else:
            self.error = error
            self._notes.append(f"{name}: {error}")

    def _remember(self, name: str, why: str) -> None:
        self._never[name] = f"{name}: {why}"
        _log.info("GPU telemetry: %s does not tell %s: %s", self.uuid, name, why)
