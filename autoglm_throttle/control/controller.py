"""What decides how much of the nominal rates may be refilled, and the figures by which it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from autoglm_throttle.control.pressure import USUAL_TERMS, Pressure, Targets
from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.model import Evidence, GpuView, Policy, Regime, Signal, Work


class Controller(Protocol):
    """One policy at work. All times are monotonic seconds."""

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view, whether or not it is the signal in force."""
        ...

    def serves(self, now: float, /) -> bool:
        """Whether any card is left that does not hang, by telemetry that can still be believed.

        The same under every policy, whatever becomes of the rates; True where no card is looked at.
        """
        ...

    def started(self, now: float, /) -> None:
        """The reading of samples begins: from now on the first one is due."""
        ...

    def observe(self, view: GpuView, evidence: Evidence, work: Work, now: float, /) -> Regime:
        """Take in a new view of the GPUs, with the gate's word and what our requests tell at this moment."""
        ...

    def regime(self, now: float, evidence: Evidence | None = None, /) -> Regime:
        """The Regime in force, its age considered. It is valid until its ``until_s``.

        With ``evidence`` the load is told as of now; only ``in_flight`` and ``limit`` are read.
        """
        ...

    def silent(self, now: float, /) -> Regime:
        """No source of samples exists: none is expected any more."""
        ...

    def gone(self, now: float, /) -> Regime:
        """The source will not give another sample: blind from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """How the table is entered and left. The defaults are the founding figures, taken literally."""

    samples: int = 3
    """New samples in a row above the lowest edge before the table acts."""
    release_samples: int = 1
    """New samples in a row that must ask for a higher factor before it rises; only policy ``tiers``."""
    release_margin_pct: float = 0.0
    """Percent by which the signal must be below an edge on the way back; only policy ``tiers``."""
    recovery_step: float = 1.0
    """Most that the factor rises at one sample, 0..1; only policy ``tiers``."""


@dataclass(frozen=True, slots=True)
class ControlRules:
    """Everything that a controller is told once."""

    policy: Policy
    rates: tuple[float, float, float]
    """Nominal requests per second for high, mid and low that this process may let in, each > 0."""
    table: TierTable
    hysteresis: Hysteresis
    staleness: Staleness
    signal: Signal = Signal.AUTO
    """What the bands of the table are laid on, as stated."""
    targets: Targets = field(default_factory=Targets)
    """What the terms of the pressure are measured against."""
    pressure_terms: tuple[str, ...] = USUAL_TERMS
    """The terms that the pressure is made of."""
    headroom: float = 1.15
    """Policy ``adaptive`` cuts no deeper than the measured service rate times this, so that the gate
    stays informed. From simulation: goodput stayed within 1 % of the gate's alone."""
    release_samples: int = 2
    """Policy ``adaptive`` releases after so many samples at which the gate confirmed nothing. From
    simulation: safe because the gate stands behind."""
