"""What is known of the devices, and who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One device at one moment. ``None`` means not known, never 0.

    Field names follow NVML; units are in the names.
    """

    device: str
    """A stable id: ``GPU-...``, ``MIG-...``."""
    index: int
    """The provider's own numbering; the metric label."""
    taken_at_s: float
    """Monotonic time at which the read ended."""
    source: str
    """Name of the provider."""
    host: str = ""
    """Empty for this host."""
    kind: Literal["gpu", "mig"] = "gpu"
    name: str = ""
    health: Literal["ok", "degraded", "lost"] = "ok"
    notes: tuple[str, ...] = ()
    utilization_pct: float | None = None
    """Share of the last sampling period in which any kernel ran: a duty cycle, not load."""
    memory_busy_pct: float | None = None
    """Duty cycle of the memory interface, not its fill."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class GpuView:
    """All known devices as one value."""

    taken_at_s: float
    """When the newest usable row was read."""
    utilization_pct: float | None
    """By the chosen aggregate over usable devices; None if none of them tells."""
    utilization_max_pct: float | None
    memory_ratio: float | None
    """The fullest device: one full card is an out-of-memory error."""
    power_ratio: float | None
    capacity: float
    """Usable share of the known capacity, 0..1. A lost device lowers it and is never read as 0 %."""
    devices: tuple[GpuSample, ...]
    """Every known device, lost ones included."""


@runtime_checkable
class GpuProvider(Protocol):
    """A source of samples. Only the sampler's thread calls it."""

    name: str
    min_interval_s: float

    def read(self) -> Sequence[GpuSample]:
        """Read all devices now; blocking; opens lazily.

        Raises:
            ProviderUnavailable: nothing usable now; the sampler tries again.
            ProviderMisconfigured: trying again cannot help.
        """
        ...

    def close(self) -> None:
        """Let go of the driver. Called on the sampler's thread; idempotent."""
        ...

    def forget(self) -> None:
        """Drop handles after a fork, without calling the driver."""
        ...
