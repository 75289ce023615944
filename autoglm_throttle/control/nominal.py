"""Policies that keep the nominal rates: ``fixed``, and ``concurrency``, which limits requests in flight."""

from __future__ import annotations

from autoglm_throttle.control.signal import SignalTracker
from autoglm_throttle.control.tiers import TierController
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import ControlCause, ControlState, GpuView, LimiterReport, Policy, ServiceStats


class NominalController:
    """Keeps the nominal rates, independent of the GPUs; the table's factor is only reported.

    Under ``concurrency`` the load is the occupancy of the concurrency limit, under ``fixed`` it is unknown.
    """

    def __init__(self, settings: ControlSettings, gpu: GpuSettings, now: float) -> None:
        self._table = TierController(settings, gpu, now)
        self.tracker: SignalTracker = self._table.tracker
        self._since_s = now
        self._load = 0.0 if settings.policy is Policy.CONCURRENCY else None

    def observe(self, view: GpuView, report: LimiterReport, stats: ServiceStats, now: float) -> ControlState:
        """Process a view, and record the occupancy; the rates stay."""
        self._table.observe(view, report, stats, now)
        return self.control_state(now, report)

    def control_state(self, now: float, report: LimiterReport | None = None) -> ControlState:
        """Return the nominal rates and the occupancy."""
        if report is not None and self._load is not None:
            self._load = occupancy(report)
        table = self._table.control_state(now)
        return ControlState(
            factor=1.0,
            tier=1.0,
            load=self._load,
            since_s=self._since_s,
            cause=ControlCause.POLICY,
            telemetry=table.telemetry,
            valid_until_s=table.valid_until_s,
            table_factor=table.table_factor,
            signal=table.signal,
            term=table.term,
        )


def occupancy(report: LimiterReport) -> float:
    """Share of the concurrency limit in flight, 0..1; 0 without a limit, 1 after it sank below them."""
    return min(1.0, report.in_flight / report.limit)
