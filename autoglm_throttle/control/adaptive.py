"""Policy ``adaptive``: the tier table, stabilized by the concurrency limiter.

The table acts only while the limiter reports queued or rejected requests, and never cuts the rates
below the measured throughput. So a GPU that is busy with full batches keeps its rates, and a cut
does not empty the GPU that it should protect.
"""

from __future__ import annotations

from autoglm_throttle.control.controller import ControlRules
from autoglm_throttle.control.listener import Listener
from autoglm_throttle.control.nominal import fullness
from autoglm_throttle.control.pressure import Pressure
from autoglm_throttle.control.tiers import TierController
from autoglm_throttle.model import Evidence, GpuView, Regime, Telemetry, Why, Work


class AdaptiveController:
    """Strikes only while the limiter confirms overload; one budget for all classes while it cuts or holds.

    Rejections of the token buckets and of the budget never confirm. A version in which they did kept a
    cut in force by its own rejections after the GPU had hung for some seconds.

    Args:
        rules: nominal rates, bands and factors, headroom, and the handling of late samples.
        now: monotonic seconds.
    """

    def __init__(self, rules: ControlRules, now: float) -> None:
        self._rules = rules
        self._listener = Listener(rules, now)
        self._literal = TierController(rules, now)
        self._strikes = 0
        self._calm = 0
        self._acts = False
        self._tier = 1.0
        self._rates = rules.rates
        self._nominal_rps = self._budget_rps = sum(rules.rates)
        self._ceilings = (1.0, 1.0, 1.0)
        self._why = Why.CALM
        self._confirmed = False
        self._full = 0.0
        # Confirmations that came with views without a new sample: the limiter reports each only once.
        self._untold = False
        self._regime = self._publish(now, since_s=now)

    @property
    def pressure(self) -> Pressure:
        """The pressure at the newest view."""
        return self._listener.pressure

    def serves(self, now: float) -> bool:
        """Whether at least one device is not stalled, by telemetry that is not too old."""
        return self._listener.serves(now)

    def started(self, now: float) -> None:
        """Restart the wait for the first sample."""
        self._listener.started(now)
        self._literal.started(now)

    def observe(self, view: GpuView, evidence: Evidence, work: Work, now: float) -> Regime:
        """Strike, cut, hold or release, once for each new sample."""
        self._confirmed, self._full = evidence.confirmed, fullness(evidence)
        self._share(evidence.processes)
        self._literal.observe(view, evidence, work, now)
        news = self._listener.hear(view, work, now)
        if news is not None:
            if news.after_outage:
                self._open(Why.CALM)
                self._strikes = 0
                self._untold = False
            self._step(news.pct, evidence.service_rps, now)
        else:
            self._untold = self._untold or evidence.confirmed
            if self._acts:
                self._hold(evidence.service_rps, now)
        return self._publish(now)

    def regime(self, now: float, evidence: Evidence | None = None) -> Regime:
        """Return the ControlState in force, valid until its ``valid_until_s``."""
        if evidence is not None:
            self._full = fullness(evidence)
        return self._publish(now)

    def silent(self, now: float) -> Regime:
        """Continue without any source of samples: only the concurrency limit acts."""
        self._listener.silent()
        self._literal.silent(now)
        return self._publish(now)

    def gone(self, now: float) -> Regime:
        """Count telemetry as blind at once: only the concurrency limit acts."""
        self._listener.gone()
        self._literal.gone(now)
        return self._publish(now)

    def _share(self, processes: int) -> None:
        """Use this process's part of the nominal rates: the limiter's report covers this process alone."""
        high, mid, low = (rate / processes for rate in self._rules.rates)
        self._rates = (high, mid, low)
        self._nominal_rps = high + mid + low

    def _step(self, signal_pct: float, service_rps: float | None, now: float) -> None:
        rules, listener = self._rules, self._listener
        confirmed = (self._confirmed or self._untold) and not listener.effect.excuses(listener.signal)
        self._untold = False
        # Underfed or stalled devices read hot without load: no strike then.
        self._strikes = self._strikes + 1 if confirmed and signal_pct > rules.table.edge_pct else 0
        self._calm = 0 if confirmed else self._calm + 1
        if self._strikes >= rules.hysteresis.samples and listener.trusts:
            self._cut(rules.table.factor(signal_pct), now)
            self._hold(service_rps, now)
        elif self._calm >= rules.release_samples or not self._acts:
            resting = Why.STRIKE if self._strikes else Why.CALM
            self._open(Why.RELEASED if self._acts else resting)
        else:
            self._hold(service_rps, now)
            self._why = Why.HELD

    def _cut(self, tier: float, now: float) -> None:
        left = tier * self._listener.capacity(now)
        self._acts, self._tier, self._why = True, tier, Why.TIER
        self._budget_rps = left * self._nominal_rps
        self._ceilings = (left, left, left)

    def _hold(self, service_rps: float | None, now: float) -> None:
        """Raise the budget and each ceiling to the measured service rate times the headroom."""
        # Until a request has ended the service rate is unknown: assume 1 per second.
        least_rps = self._rules.headroom * (service_rps or 1.0)
        most_rps = self._listener.capacity(now) * self._nominal_rps
        self._budget_rps = min(most_rps, max(self._budget_rps, least_rps))
        high, mid, low = (
            min(1.0, max(ceiling, least_rps / rate))
            for ceiling, rate in zip(self._ceilings, self._rates, strict=True)
        )
        self._ceilings = (high, mid, low)

    def _open(self, why: Why) -> None:
        self._acts, self._why = False, why

    def _publish(self, now: float, since_s: float | None = None) -> Regime:
        listener, literal = self._listener, self._literal.regime(now)
        state, share = listener.state(now), listener.door(now)
        acts = self._acts and state in {Telemetry.FRESH, Telemetry.LATE} and share == 1.0
        budget_rps = self._budget_rps if acts else None
        factor = share if budget_rps is None else budget_rps / self._nominal_rps
        until_s = listener.until(state, now)
        reopens_s = 0.0 if factor else listener.readmits_at(now)
        if since_s is None:
            since_s = self._regime.since_s if self._regime.factor == factor else now
        self._regime = Regime(
            factor=factor,
            tier=self._tier if acts else 1.0,
            load=self._load(state),
            since_s=since_s,
            why=listener.cause(state, share, self._why),
            telemetry=state,
            until_s=until_s if factor else min(until_s, reopens_s),
            reopens_s=reopens_s,
            ceilings=self._ceilings if acts else (share, share, share),
            budget_rps=budget_rps,
            table_factor=literal.factor,
            armed=acts,
            signal=listener.signal,
            term=listener.term,
        )
        return self._regime

    def _load(self, state: Telemetry) -> float:
        """Load of the GPU if the limiter confirms it, else the lesser of GPU load and occupancy."""
        told = self._listener.load(state)
        if told is None:
            return self._full
        return told if self._confirmed else min(told, self._full)
