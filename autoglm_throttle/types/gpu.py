"""Samples, verdicts and views of GPUs, and the protocol of their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, Protocol, runtime_checkable

DeviceKey = tuple[str, str]
"""Host and device id of a sample: the identity of a device."""


ThrottleBit = Literal["sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"]
"""Reason for a reduced clock: NVML's clock event reasons that are a fault or a limit, not idleness."""


class GpuCondition(StrEnum):
    """Condition of a device: a closed set, also the metric label."""

    IDLE = "idle"
    WORKING = "working"  # neither idle nor busy
    PRODUCTIVE = "productive"  # busy, as confirmed by more signals than its utilization
    UNDERFED = "underfed"
    """High utilization, but most of the device has nothing to do: more concurrent requests would help."""
    STARVED = "starved"  # requests wait and the device has free capacity: the host is the bottleneck
    DEGRADED = "degraded"  # busy, and throughput is far below that of the same load before
    THROTTLED = "throttled"  # busy, and slowed down by heat or power
    STALLED = "stalled"  # high utilization without any output: a hung kernel or collective
    UNKNOWN = "unknown"  # high utilization, and no other signal is known
    LOST = "lost"


_FAKE_BUSY: Final = frozenset({GpuCondition.STALLED, GpuCondition.DEGRADED, GpuCondition.UNDERFED})


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """A condition with its evidence."""

    condition: GpuCondition
    since_s: float  # monotonic time since which the condition holds
    confidence: float  # 0..1, the share of the relevant and known signals that agree
    evidence: Mapping[str, float] = field(default_factory=dict)
    """Checked signal, such as ``utilization_pct`` or ``power_share``, -> value at the newest sample."""

    @property
    def fake_busy(self) -> bool:
        """Whether the device reports high utilization and does little."""
        return self.condition in _FAKE_BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One device, or one inference engine, at one moment. ``None`` means not known, never 0.

    Field names follow NVML; units are in the names; ratios are 0..1. Bytes, joules, nanoseconds and tokens
    without a unit of time are counters of the source: they only grow, until they start anew.
    """

    device: str
    """A stable id: ``GPU-...``, ``MIG-...``, ``host:port#engine``."""
    index: int
    """The provider's own numbering; the metric label."""
    taken_at_s: float
    """Monotonic time at which the read ended."""
    source: str
    """Name of the provider."""
    host: str = ""
    """Empty for this host."""
    kind: Literal["gpu", "mig", "engine"] = "gpu"
    gpu_instance: str = ""
    """UUID of the GPU and number of the partition of a MIG instance, ``GPU-.../3``: it joins the sources."""
    name: str = ""
    health: Literal["ok", "degraded", "lost"] = "ok"
    notes: tuple[str, ...] = ()
    age_s: float = 0.0
    """Age of the measurement at ``taken_at_s``, as the source reports it; >= 0."""
    period_s: float | None = None
    """Measuring interval of the source, where it was learned: a scraped source may repeat a value."""
    utilization_pct: float | None = None
    """Share of the last sampling period in which any kernel ran: a duty cycle, not load."""
    memory_busy_pct: float | None = None
    """Duty cycle of the memory interface, not its fill."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    """The factory limit: a healthy device under full load reaches it, and slows down for it."""
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    energy_j: float | None = None
    temperature_margin_c: float | None = None
    """Degrees left until the device slows down; negative above that."""
    throttle: frozenset[ThrottleBit] | None = None
    """Reasons for a reduced clock; empty: it is not reduced."""
    throttled_ns: int | None = None
    """Time spent slowed down by power or heat."""
    graphics_active_ratio: float | None = None
    """Share of time with any work on the device: replaces utilization on a MIG instance."""
    sm_active_ratio: float | None = None
    """Share of the multiprocessors that had work."""
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    nvlink_rx_bytes: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_errors: int | None = None
    pcie_rx_bytes: int | None = None
    pcie_tx_bytes: int | None = None
    nvlink_rx_bps: float | None = None
    """Bytes per second, like the three below: reported by the source, or computed from the counters."""
    nvlink_tx_bps: float | None = None
    pcie_rx_bps: float | None = None
    pcie_tx_bps: float | None = None
    power_mean_w: float | None = None
    """Mean since the previous sample, from the energy counter; ``power_w`` without one."""
    throttled_ratio: float | None = None
    """Share of the time since the previous sample with a reduced clock."""
    running: int | None = None
    """Requests running in the engine."""
    queued: int | None = None
    """Requests queued inside the engine."""
    kv_used_ratio: float | None = None
    tokens_total: int | None = None
    preemptions_total: int | None = None
    tokens_per_s: float | None = None
    """Computed from the counter, like the one below."""
    preemptions_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class GpuView:
    """All known devices and engines as one value. Outdated sources are left out of every mean."""

    taken_at_s: float  # time of the newest measurement of a usable device; without devices, of an engine
    utilization_pct: float | None
    """By the chosen aggregate over usable devices; None if no device reports it."""
    utilization_max_pct: float | None
    memory_ratio: float | None  # fill of the fullest device: one full device is an out-of-memory error
    power_ratio: float | None
    capacity: float
    """Usable share of the known capacity, 0..1, without lost ones; a slowed-down one counts by its clock."""
    devices: tuple[GpuSample, ...]  # every known device and engine, lost ones included
    utilization_mean_pct: float | None = None
    kv_used_ratio: float | None = None  # fill of the engines' key-value caches, by the chosen aggregate
    queued: int | None = None  # requests queued inside all engines together
    running: int | None = None
    engines: int = 0  # engines with a recent sample
    engines_at_s: float | None = None
    """Time of the newest measurement of an engine; None: no engine has ever reported."""
    interval_s: float | None = None
    """Promised seconds between two readings of the slowest device's source; None: as configured."""
    period_s: float | None = None  # measuring interval of the slowest device's source, where it was learned
    weights: Mapping[DeviceKey, float] = field(default_factory=dict)
    """Share of each known device in the whole, 0..1, lost devices included; engines have no weight."""
    verdicts: Mapping[DeviceKey, GpuVerdict] = field(default_factory=dict)  # verdict for each device

    @property
    def fake_busy(self) -> bool:
        """Whether a device reports high utilization and does little: stalled, degraded or underfed."""
        return any(verdict.fake_busy for verdict in self.verdicts.values())


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
        """Release the driver. Called on the sampler's thread; idempotent."""
        ...

    def reset_after_fork(self) -> None:
        """Drop handles after a fork, without calling the driver."""
        ...
