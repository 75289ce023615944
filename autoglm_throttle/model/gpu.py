"""What is known of the devices, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from autoglm_throttle.model.verdict import Verdict

DeviceKey = tuple[str, str]
"""Host and device id of a sample: what tells devices apart."""


ThrottleBit = Literal["sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"]
"""Why a card slows itself down: NVML's clock event reasons that are a fault or a limit, not idleness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One device, or one inference engine, at one moment. ``None`` means not known, never 0.

    Field names follow NVML; units are in the names; ratios are 0..1. Bytes, joules, nanoseconds and tokens
    without a unit of time are counters as the source tells them: they only grow, until they start anew.
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
    """Of a MIG instance that has its part of the card to itself: the card's UUID and the driver's number of
    that part, ``GPU-.../3``. Sources that call one instance by different names are joined by it."""
    name: str = ""
    health: Literal["ok", "degraded", "lost"] = "ok"
    notes: tuple[str, ...] = ()
    age_s: float = 0.0
    """How old the measurement was at ``taken_at_s``, by the source's own word; >= 0."""
    period_s: float | None = None
    """How often the source measures anew, where that was learned: a scraped one may repeat itself."""
    utilization_pct: float | None = None
    """Share of the last sampling period in which any kernel ran: a duty cycle, not load."""
    memory_busy_pct: float | None = None
    """Duty cycle of the memory interface, not its fill."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    """The limit that the card was sold with: at it, and slower for it, is how a healthy card works hard."""
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    energy_j: float | None = None
    temperature_margin_c: float | None = None
    """Degrees left until the card slows itself down; negative above that."""
    throttle: frozenset[ThrottleBit] | None = None
    """Why the card runs slower than asked; empty: it does not."""
    throttled_ns: int | None = None
    """Time spent slowed down by power or heat."""
    graphics_active_ratio: float | None = None
    """Share of time with any work on the card: the stand-in for utilization on a MIG instance."""
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
    """Bytes per second, like the three below: told by the source, or made from the counters."""
    nvlink_tx_bps: float | None = None
    pcie_rx_bps: float | None = None
    pcie_tx_bps: float | None = None
    power_mean_w: float | None = None
    """Mean since the sample before, from the energy counter; ``power_w`` where there is none."""
    throttled_ratio: float | None = None
    """Share of the time since the sample before that the card was slowed down."""
    running: int | None = None
    """Requests that the engine works on."""
    queued: int | None = None
    """Requests that wait inside the engine."""
    kv_used_ratio: float | None = None
    tokens_total: int | None = None
    preemptions_total: int | None = None
    tokens_per_s: float | None = None
    """Made from the counter, like the one below."""
    preemptions_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class GpuView:
    """All known devices and engines as one value. Sources too old to be believed leave every mean."""

    taken_at_s: float
    """When the newest measurement of a usable card was made; without cards, of an engine."""
    utilization_pct: float | None
    """By the chosen aggregate over usable devices; None if none of them tells."""
    utilization_max_pct: float | None
    memory_ratio: float | None
    """The fullest device: one full card is an out-of-memory error."""
    power_ratio: float | None
    capacity: float
    """Usable share of the known capacity, 0..1. A lost device lowers it and is never read as 0 %; one that is
    slowed down by heat or power counts by its clock."""
    devices: tuple[GpuSample, ...]
    """Every known device and engine, lost ones included."""
    utilization_mean_pct: float | None = None
    kv_used_ratio: float | None = None
    """Fill of the engines' key-value caches, by the chosen aggregate."""
    queued: int | None = None
    """Requests that wait inside all engines together."""
    running: int | None = None
    engines: int = 0
    """Engines that tell how they are, not too long ago."""
    engines_at_s: float | None = None
    """When the newest measurement of an engine was made; None: no engine was ever heard."""
    interval_s: float | None = None
    """Promised seconds between two readings of the slowest card's source; None: as configured."""
    period_s: float | None = None
    """How often the slowest card's source measures anew, where that was learned."""
    weights: Mapping[DeviceKey, float] = field(default_factory=dict)
    """Share of each known card in the whole, 0..1, lost ones included; engines have none."""
    verdicts: Mapping[DeviceKey, Verdict] = field(default_factory=dict)
    """What each card was found to be doing."""

    @property
    def fake_busy(self) -> bool:
        """Whether a card says that it is busy and does little: stalled, degraded or underfed."""
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
        """Let go of the driver. Called on the sampler's thread; idempotent."""
        ...

    def forget(self) -> None:
        """Drop handles after a fork, without calling the driver."""
        ...
