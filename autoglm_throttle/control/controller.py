"""From GPU views to a Regime: strikes, tiers, hysteresis and the ladder of staleness."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from autoglm_throttle.control.staleness import STARTING_S, Staleness
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.model import GpuView, Regime, Telemetry, Unknown, Why

BLEND_STEP_S = 0.25
"""How often the factor moves while telemetry is stale."""

SAMPLES_TO_TRUST = 3
"""New samples after an outage before the table may act again: as many as trigger it."""

LOSS_HOLD_S = 30.0
"""After a loss the table may not release for so long: a mean without the hot card looks too good."""


class Controller(Protocol):
    """What decides how much of the nominal rates may be refilled."""

    def started(self, now: float) -> None:
        """The reading of samples begins: from now on the first one is due."""
        ...

    def observe(self, view: GpuView, now: float) -> Regime:
        """Take in a new view of the GPUs."""
        ...

    def regime(self, now: float) -> Regime:
        """The Regime in force, its age considered."""
        ...

    def silent(self, now: float) -> Regime:
        """No source of samples exists: none is expected any more."""
        ...

    def gone(self, now: float) -> Regime:
        """The source will not give another sample: blind from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """How the table is entered and left. The defaults are the founding figures, taken literally."""

    samples: int = 3
    """New samples in a row above the lowest edge before the table acts."""
    release_samples: int = 1
    """New samples in a row that must ask for a higher factor before it rises."""
    release_margin_pct: float = 0.0
    """Percent by which the signal must be below an edge on the way back."""
    recovery_step: float = 1.0
    """Most that the factor rises at one sample, 0..1."""


class TierController:
    """Policy ``tiers``: the table taken literally, once for each new sample, with or without traffic.

    Args:
        table: bands and factors.
        hysteresis: how the table is entered and left.
        staleness: the ladder for late and missing samples.
        interval_s: promised seconds between samples.
        now: monotonic seconds; telemetry counts as starting from here, or from `started` on.
    """

    def __init__(
        self, table: TierTable, hysteresis: Hysteresis, staleness: Staleness, *, interval_s: float, now: float
    ) -> None:
        self._table = table
        self._rules = hysteresis
        self._staleness = staleness
        self._interval_s = interval_s
        self._expects_source = True
        self._heard_s: float | None = None
        self._newest_s = -math.inf
        self._deadline_s = now + STARTING_S
        self._signal_pct: float | None = None
        self._strikes = 0
        self._calm = 0
        self._distrust = 0
        self._tier = 0.0 if staleness.unknown is Unknown.CLOSED else 1.0
        self._why = Why.CALM
        self._capacity = 1.0
        self._viewed_s = now
        self._release_s = -math.inf
        self._regime = self._publish(now, since_s=now)

    def started(self, now: float) -> None:
        """Wait anew for the first sample: between construction and start a model may have been loaded."""
        self._deadline_s = now + STARTING_S

    def observe(self, view: GpuView, now: float) -> Regime:
        """Apply the table to a new view.

        A view that does not know the utilization, or is no younger than the last one, is no new signal.
        """
        self._expects_source = True
        if view.capacity < self._capacity:
            self._release_s = now + LOSS_HOLD_S
        self._capacity = view.capacity
        self._viewed_s = now
        signal = view.utilization_pct
        if signal is not None and 0.0 <= signal <= 100.0 and view.taken_at_s > self._newest_s:
            self._regain_trust(now)
            self._newest_s = min(view.taken_at_s, now)
            self._heard_s = min(view.taken_at_s, now)
            self._signal_pct = signal
            self._step(signal, now)
        return self._publish(now)

    def regime(self, now: float) -> Regime:
        """The Regime in force. It is valid until its ``until_s``, so that is when to ask again."""
        return self._publish(now)

    def silent(self, now: float) -> Regime:
        """Nothing to listen to, so nothing is missing: the nominal rates."""
        self._expects_source = False
        return self._publish(now)

    def gone(self, now: float) -> Regime:
        """Blind at once, as after a long silence."""
        self._heard_s = -math.inf
        return self._publish(now)

    def _regain_trust(self, now: float) -> None:
        """After an outage go on from the factor then in force, and look at three samples before acting."""
        if self._state(now) in {Telemetry.STALE, Telemetry.BLIND}:
            self._tier = self._blended(now)
            self._strikes = self._calm = 0
            self._distrust = SAMPLES_TO_TRUST

    def _step(self, signal_pct: float, now: float) -> None:
        table, rules = self._table, self._rules
        self._strikes = self._strikes + 1 if signal_pct > table.edge_pct else 0
        self._distrust = max(0, self._distrust - 1)
        want = table.factor(signal_pct) if self._strikes >= rules.samples else 1.0
        up = table.factor(signal_pct + rules.release_margin_pct)
        if want < self._tier:
            self._tier, self._calm, self._why = want, 0, Why.TIER
        elif up > self._tier and not self._distrust and now >= self._release_s:
            self._calm += 1
            self._why = Why.HELD
            if self._calm >= rules.release_samples:
                self._tier = min(up, self._tier + rules.recovery_step)
                self._why = Why.RELEASED
        else:
            self._calm = 0
            self._why = self._resting(want)

    def _resting(self, want: float) -> Why:
        if self._tier == 1.0:
            return Why.STRIKE if self._strikes else Why.CALM
        return Why.TIER if want == self._tier else Why.HELD

    def _state(self, now: float) -> Telemetry:
        if not self._expects_source:
            return Telemetry.NONE
        if self._heard_s is None:
            return Telemetry.STARTING if now <= self._deadline_s else Telemetry.BLIND
        return self._staleness.state(now - self._heard_s)

    def _blended(self, now: float) -> float:
        if self._heard_s is None:
            return self._tier if now <= self._deadline_s else self._staleness.assumed(self._tier)
        return self._staleness.factor(self._tier, now - self._heard_s)

    def _publish(self, now: float, since_s: float | None = None) -> Regime:
        state = self._state(now)
        capacity = self._staleness.capacity(self._capacity, now - self._viewed_s)
        factor = capacity * self._blended(now) if self._expects_source else 1.0
        reopens_s = 0.0 if factor else self._reopens(now)
        until_s = self._until(state, now)
        if since_s is None:
            since_s = self._regime.since_s if self._regime.factor == factor else now
        heard = state in {Telemetry.FRESH, Telemetry.LATE, Telemetry.STALE}
        self._regime = Regime(
            factor=factor,
            tier=self._tier if self._expects_source else 1.0,
            load=self._signal_pct / 100.0 if heard and self._signal_pct is not None else None,
            since_s=since_s,
            why=self._cause(state, capacity),
            telemetry=state,
            until_s=until_s if factor else min(until_s, reopens_s),
            reopens_s=reopens_s,
        )
        return self._regime

    def _cause(self, state: Telemetry, capacity: float) -> Why:
        if state is Telemetry.NONE:
            return Why.NO_DEVICE
        if not capacity:
            return Why.LOST
        if state is Telemetry.STALE:
            return Why.STALE
        return Why.BLIND if state is Telemetry.BLIND else self._why

    def _until(self, state: Telemetry, now: float) -> float:
        trusted_s = self._until_trusted(now)
        if self._heard_s is None:
            return min(self._deadline_s, trusted_s) if state is Telemetry.STARTING else trusted_s
        return {
            Telemetry.FRESH: self._heard_s + self._staleness.fresh_s,
            Telemetry.LATE: self._heard_s + self._staleness.stale_s,
            Telemetry.STALE: min(now + BLEND_STEP_S, self._heard_s + self._staleness.blind_s),
        }.get(state, trusted_s)

    def _until_trusted(self, now: float) -> float:
        """Until when the capacity in force holds while nothing tells a utilization."""
        age_s = now - self._viewed_s
        if self._capacity == 1.0 or age_s > self._staleness.blind_s:
            return math.inf
        return max(now + BLEND_STEP_S, self._viewed_s + self._staleness.stale_s)

    def _reopens(self, now: float) -> float:
        """The first sample that could raise the factor; one interval from now if none can be foreseen."""
        interval_s = self._interval_s
        if self._heard_s is None or self._heard_s == -math.inf:
            return now + interval_s
        following = self._heard_s + interval_s
        counts_from = self._heard_s + max(1, self._distrust) * interval_s
        if counts_from < self._release_s:
            counts_from += math.ceil((self._release_s - counts_from) / interval_s) * interval_s
        calm = self._calm if counts_from == following else 0
        at = counts_from + (max(1, self._rules.release_samples - calm) - 1) * interval_s
        return at if at > now else now + interval_s


class FixedController:
    """Policy ``fixed``: the nominal rates, whatever the GPUs say; the age of what they say is told.

    Args:
        listener: follows the samples; only what it says of telemetry counts.
        now: monotonic seconds.
    """

    def __init__(self, listener: Controller, now: float) -> None:
        self._listener = listener
        self._since_s = now

    def started(self, now: float) -> None:
        """Pass on that samples are due."""
        self._listener.started(now)

    def observe(self, view: GpuView, now: float) -> Regime:
        """Note that there is a view; what it says changes nothing."""
        return self._fixed(self._listener.observe(view, now))

    def regime(self, now: float) -> Regime:
        """The nominal rates."""
        return self._fixed(self._listener.regime(now))

    def silent(self, now: float) -> Regime:
        """The nominal rates, and no source."""
        return self._fixed(self._listener.silent(now))

    def gone(self, now: float) -> Regime:
        """The nominal rates, and no sample ever again."""
        return self._fixed(self._listener.gone(now))

    def _fixed(self, heard: Regime) -> Regime:
        return Regime(1.0, 1.0, None, self._since_s, Why.POLICY, heard.telemetry, heard.until_s)
