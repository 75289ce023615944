"""Policies that keep the nominal rates: ``fixed``, and ``concurrency``, which limits requests in flight."""

from __future__ import annotations

from dataclasses import replace

from autoglm_throttle.control.controller import ControlRules
from autoglm_throttle.control.pressure import Pressure
from autoglm_throttle.control.tiers import TierController
from autoglm_throttle.model import Evidence, GpuView, Regime, Why, Work


class FixedController:
    """Policy ``fixed``: the nominal rates, independent of the GPUs; the table's factor is only reported.

    Args:
        rules: parameters of the table that is evaluated beside it.
        now: monotonic seconds.
    """

    def __init__(self, rules: ControlRules, now: float) -> None:
        self._table = TierController(rules, now)
        self._since_s = now

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view."""
        return self._table.pressure

    def serves(self, now: float) -> bool:
        """Whether at least one device is not stalled, by telemetry that is not too old."""
        return self._table.serves(now)

    def started(self, now: float) -> None:
        """Begin to expect samples."""
        self._table.started(now)

    def observe(self, view: GpuView, evidence: Evidence, work: Work, now: float) -> Regime:
        """Process a view; it does not change the rates."""
        return self._nominal(self._table.observe(view, evidence, work, now))

    def regime(self, now: float, _evidence: Evidence | None = None) -> Regime:
        """Return the nominal rates."""
        return self._nominal(self._table.regime(now))

    def silent(self, now: float) -> Regime:
        """Return the nominal rates, without a source."""
        return self._nominal(self._table.silent(now))

    def gone(self, now: float) -> Regime:
        """Return the nominal rates, without further samples."""
        return self._nominal(self._table.gone(now))

    def _nominal(self, heard: Regime) -> Regime:
        return Regime(
            factor=1.0,
            tier=1.0,
            load=None,
            since_s=self._since_s,
            why=Why.POLICY,
            telemetry=heard.telemetry,
            until_s=heard.until_s,
            table_factor=heard.table_factor,
            signal=heard.signal,
            term=heard.term,
        )


class GateController:
    """Policy ``concurrency``: the nominal rates; the load is the occupancy of the concurrency limit.

    Args:
        rules: parameters of the table that is evaluated beside it.
        now: monotonic seconds.
    """

    def __init__(self, rules: ControlRules, now: float) -> None:
        self._fixed = FixedController(rules, now)
        self._load = 0.0

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view."""
        return self._fixed.pressure

    def serves(self, now: float) -> bool:
        """Whether at least one device is not stalled, by telemetry that is not too old."""
        return self._fixed.serves(now)

    def started(self, now: float) -> None:
        """Begin to expect samples."""
        self._fixed.started(now)

    def observe(self, view: GpuView, evidence: Evidence, work: Work, now: float) -> Regime:
        """Process a view, and record the occupancy."""
        self._load = fullness(evidence)
        return self._loaded(self._fixed.observe(view, evidence, work, now))

    def regime(self, now: float, evidence: Evidence | None = None) -> Regime:
        """Return the nominal rates and the occupancy."""
        if evidence is not None:
            self._load = fullness(evidence)
        return self._loaded(self._fixed.regime(now))

    def silent(self, now: float) -> Regime:
        """Return the nominal rates, without a source."""
        return self._loaded(self._fixed.silent(now))

    def gone(self, now: float) -> Regime:
        """Return the nominal rates, without further samples."""
        return self._loaded(self._fixed.gone(now))

    def _loaded(self, regime: Regime) -> Regime:
        return replace(regime, load=self._load)


def fullness(evidence: Evidence) -> float:
    """Share of the concurrency limit in flight, 0..1; 0 without a limit, 1 after it sank below them."""
    return min(1.0, evidence.in_flight / evidence.limit)
