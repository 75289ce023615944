"""Policies that leave the nominal rates as they are: ``fixed``, and ``gate``, where the gate decides."""

from __future__ import annotations

from dataclasses import replace

from autoglm_throttle.control.controller import ControlRules
from autoglm_throttle.control.pressure import Pressure
from autoglm_throttle.control.tiers import TierController
from autoglm_throttle.model import Evidence, GpuView, Regime, Why, Work


class FixedController:
    """Policy ``fixed``: the nominal rates, whatever the GPUs say; what the table would say is told.

    Args:
        rules: what the table beside it goes by.
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
        """Whether any card is left that does not hang, by telemetry that can still be believed."""
        return self._table.serves(now)

    def started(self, now: float) -> None:
        """Note that samples are due."""
        self._table.started(now)

    def observe(self, view: GpuView, evidence: Evidence, work: Work, now: float) -> Regime:
        """Note that there is a view; what it says changes nothing."""
        return self._nominal(self._table.observe(view, evidence, work, now))

    def regime(self, now: float, _evidence: Evidence | None = None) -> Regime:
        """The nominal rates."""
        return self._nominal(self._table.regime(now))

    def silent(self, now: float) -> Regime:
        """The nominal rates, and no source."""
        return self._nominal(self._table.silent(now))

    def gone(self, now: float) -> Regime:
        """The nominal rates, and no sample ever again."""
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
    """Policy ``gate``: the nominal rates; the load is how full the service is by the gate's own limit.

    Args:
        rules: what the table beside it goes by.
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
        """Whether any card is left that does not hang, by telemetry that can still be believed."""
        return self._fixed.serves(now)

    def started(self, now: float) -> None:
        """Note that samples are due."""
        self._fixed.started(now)

    def observe(self, view: GpuView, evidence: Evidence, work: Work, now: float) -> Regime:
        """Note that there is a view, and how full the service is."""
        self._load = fullness(evidence)
        return self._loaded(self._fixed.observe(view, evidence, work, now))

    def regime(self, now: float, evidence: Evidence | None = None) -> Regime:
        """The nominal rates, and how full the service is."""
        if evidence is not None:
            self._load = fullness(evidence)
        return self._loaded(self._fixed.regime(now))

    def silent(self, now: float) -> Regime:
        """The nominal rates, and no source."""
        return self._loaded(self._fixed.silent(now))

    def gone(self, now: float) -> Regime:
        """The nominal rates, and no sample ever again."""
        return self._loaded(self._fixed.gone(now))

    def _loaded(self, regime: Regime) -> Regime:
        return replace(regime, load=self._load)


def fullness(evidence: Evidence) -> float:
    """Share of the gate's limit that is in flight, 0..1; 0 without a limit, 1 after it sank below it."""
    return min(1.0, evidence.in_flight / evidence.limit)
