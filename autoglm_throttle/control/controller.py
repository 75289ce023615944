"""The protocol of a controller: it decides the share of the nominal rates that may be refilled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from autoglm_throttle.control.pressure import DEFAULT_TERMS, Pressure, PressureTargets
from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.types import ControlState, GpuView, LimiterReport, Policy, ServiceStats, Signal


class Controller(Protocol):
    """Decides the ControlState under one policy. All times are monotonic seconds."""

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view, whether or not it is the signal in force."""
        ...

    def is_ready(self, now: float, /) -> bool:
        """Whether at least one device is not stalled, by telemetry that is not too old.

        The same under every policy, whether or not it changes the rates; True where no device is monitored.
        """
        ...

    def started(self, now: float, /) -> None:
        """Begin to expect samples: the first one is due from now on."""
        ...

    def observe(
        self, view: GpuView, report: LimiterReport, stats: ServiceStats, now: float, /
    ) -> ControlState:
        """Process a new view of the GPUs with the limiter's report and the service's own statistics."""
        ...

    def control_state(self, now: float, report: LimiterReport | None = None, /) -> ControlState:
        """Return the ControlState in force, with its age considered; valid until its ``valid_until_s``.

        With a ``report`` the load is that of now; only ``in_flight`` and ``limit`` are read.
        """
        ...

    def no_source(self, now: float, /) -> ControlState:
        """Stop expecting samples: no source exists."""
        ...

    def source_lost(self, now: float, /) -> ControlState:
        """Count telemetry as blind from now on: the source will not deliver another sample."""
        ...


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Conditions to enter and leave the table. The defaults are the founding figures."""

    samples: int = 3
    """Consecutive new samples above the lowest edge before the table acts."""
    release_samples: int = 1
    """Consecutive new samples that must allow a higher factor before it rises; only policy ``tiers``."""
    release_margin_pct: float = 0.0
    """Percentage points by which the signal must be below an edge on the way back; only policy ``tiers``."""
    recovery_step: float = 1.0
    """Maximum rise of the factor at one sample, 0..1; only policy ``tiers``."""


@dataclass(frozen=True, slots=True)
class ControlRules:
    """Parameters of a controller."""

    policy: Policy
    rates: tuple[float, float, float]
    """Nominal requests per second for high, mid and low that this process may admit, each > 0."""
    table: TierTable
    hysteresis: Hysteresis
    staleness: Staleness
    signal: Signal = Signal.AUTO
    """Signal that the bands of the table apply to, as configured."""
    targets: PressureTargets = field(default_factory=PressureTargets)
    """Targets of the terms of the pressure."""
    pressure_terms: tuple[str, ...] = DEFAULT_TERMS
    """Terms that count for the pressure."""
    headroom: float = 1.15
    """Policy ``adaptive`` cuts no deeper than the measured service rate times this, so that the limiter
    keeps measuring. From simulation: goodput stayed within 1 % of the concurrency limit alone.
    """
    release_samples: int = 2
    """Consecutive samples without confirmed overload before ``adaptive`` releases. From simulation: safe,
    because the concurrency limit still acts.
    """
