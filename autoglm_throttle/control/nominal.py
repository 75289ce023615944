"""Policies that keep the nominal rates: ``fixed``, and ``concurrency``, which limits requests in flight."""

from __future__ import annotations

from dataclasses import replace

from autoglm_throttle.control.pressure import Pressure
from autoglm_throttle.control.tiers import TierController
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import ControlCause, ControlState, GpuView, LimiterReport, ServiceStats


class FixedController:
    """Policy ``fixed``: the nominal rates, independent of the GPUs; the table's factor is only reported.

    Args:
        settings: the signal and the table, which is evaluated beside it.
        gpu: targets of the pressure, and the handling of late samples.
        now: monotonic seconds.
    """

    def __init__(self, settings: ControlSettings, gpu: GpuSettings, now: float) -> None:
        self._table = TierController(settings, gpu, now)
        self._since_s = now

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view."""
        return self._table.pressure

    def is_ready(self, now: float) -> bool:
        """Whether at least one device is not stalled, by telemetry that is not too old."""
        return self._table.is_ready(now)

    def started(self, now: float) -> None:
        """Begin to expect samples."""
        self._table.started(now)

    def observe(self, view: GpuView, report: LimiterReport, stats: ServiceStats, now: float) -> ControlState:
        """Process a view; it does not change the rates."""
        return self._nominal(self._table.observe(view, report, stats, now))

    def control_state(self, now: float, _report: LimiterReport | None = None) -> ControlState:
        """Return the nominal rates."""
        return self._nominal(self._table.control_state(now))

    def no_source(self, now: float) -> ControlState:
        """Return the nominal rates, without a source."""
        return self._nominal(self._table.no_source(now))

    def source_lost(self, now: float) -> ControlState:
        """Return the nominal rates, without further samples."""
        return self._nominal(self._table.source_lost(now))

    def _nominal(self, table_state: ControlState) -> ControlState:
        return ControlState(
            factor=1.0,
            tier=1.0,
            load=None,
            since_s=self._since_s,
            cause=ControlCause.POLICY,
            telemetry=table_state.telemetry,
            valid_until_s=table_state.valid_until_s,
            table_factor=table_state.table_factor,
            signal=table_state.signal,
            term=table_state.term,
        )


class ConcurrencyController:
    """Policy ``concurrency``: the nominal rates; the load is the occupancy of the concurrency limit.

    Args:
        settings: the signal and the table, which is evaluated beside it.
        gpu: targets of the pressure, and the handling of late samples.
        now: monotonic seconds.
    """

    def __init__(self, settings: ControlSettings, gpu: GpuSettings, now: float) -> None:
        self._fixed = FixedController(settings, gpu, now)
        self._load = 0.0

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view."""
        return self._fixed.pressure

    def is_ready(self, now: float) -> bool:
        """Whether at least one device is not stalled, by telemetry that is not too old."""
        return self._fixed.is_ready(now)

    def started(self, now: float) -> None:
        """Begin to expect samples."""
        self._fixed.started(now)

    def observe(self, view: GpuView, report: LimiterReport, stats: ServiceStats, now: float) -> ControlState:
        """Process a view, and record the occupancy."""
        self._load = occupancy(report)
        return self._with_load(self._fixed.observe(view, report, stats, now))

    def control_state(self, now: float, report: LimiterReport | None = None) -> ControlState:
        """Return the nominal rates and the occupancy."""
        if report is not None:
            self._load = occupancy(report)
        return self._with_load(self._fixed.control_state(now))

    def no_source(self, now: float) -> ControlState:
        """Return the nominal rates, without a source."""
        return self._with_load(self._fixed.no_source(now))

    def source_lost(self, now: float) -> ControlState:
        """Return the nominal rates, without further samples."""
        return self._with_load(self._fixed.source_lost(now))

    def _with_load(self, control_state: ControlState) -> ControlState:
        return replace(control_state, load=self._load)


def occupancy(report: LimiterReport) -> float:
    """Share of the concurrency limit in flight, 0..1; 0 without a limit, 1 after it sank below them."""
    return min(1.0, report.in_flight / report.limit)
