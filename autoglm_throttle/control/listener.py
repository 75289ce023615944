"""Hears the samples: which one is new, how old the newest is, and what may be concluded from silence."""

from __future__ import annotations

import math
from typing import NamedTuple

from autoglm_throttle.control.controller import ControlRules
from autoglm_throttle.control.effect import NO_EFFECT, Effect, effect
from autoglm_throttle.control.pressure import NOTHING_KNOWN, Pressure, PressureGauge
from autoglm_throttle.control.share import BLEND_STEP_S, NEW_AFTER, SAMPLES_TO_TRUST, Share
from autoglm_throttle.control.staleness import STARTING_S, Staleness
from autoglm_throttle.model import GpuView, Signal, Telemetry, Why, Work

LOSS_HOLD_S = 30.0
"""After a loss the table may not release for so long: a mean without the hot card looks too good."""

_HEARD = frozenset({Telemetry.FRESH, Telemetry.LATE, Telemetry.STALE})


class News(NamedTuple):
    """A new signal."""

    pct: float
    """0..100."""
    after_outage: bool
    """Whether the one before it was too old to be believed."""


class Listener:
    """What every policy must know about its telemetry.

    Args:
        rules: which signal to hear, at which interval, and the ladder for late and missing samples.
        now: monotonic seconds; telemetry counts as starting from here, or from `started` on.
    """

    def __init__(self, rules: ControlRules, now: float) -> None:
        self._stated_ladder = rules.staleness
        self._staleness: Staleness = rules.staleness
        self._stated = rules.signal
        self._gauge = PressureGauge(rules.targets, rules.pressure_terms)
        self.expects_source: bool = True
        """False once it is said that there is nothing to listen to."""
        self.signal: Signal = Signal.PRESSURE if rules.signal is Signal.PRESSURE else Signal.UTILIZATION
        """The one in force."""
        self.term: str = "utilization" if self.signal is Signal.UTILIZATION else NOTHING_KNOWN.term
        """The term of the signal that decided at the newest sample."""
        self.pressure: Pressure = NOTHING_KNOWN
        """At the newest view."""
        self.effect: Effect = NO_EFFECT
        """What the verdicts of the newest view mean."""
        self._signal_pct: float | None = None
        self._heard_s: float | None = None
        self._newest_s: dict[Signal, float] = {}
        self._deadline_s = now + STARTING_S
        self._capacity = Share(rules.staleness, now)
        self._door = Share(rules.staleness, now)
        """As if any card were all of them: what is let in where a partial loss cuts nothing."""
        self._usable = 1.0
        self._lost_until_s = -math.inf
        self._cards_until_s = -math.inf
        self._distrust = 0
        self._release_s = -math.inf

    def started(self, now: float) -> None:
        """Wait anew for the first sample: between construction and start a model may have been loaded."""
        self._deadline_s = now + STARTING_S

    def silent(self) -> None:
        """Nothing to listen to, so nothing is missing."""
        self.expects_source = False
        self._capacity.forget()
        self._door.forget()

    def gone(self) -> None:
        """Blind at once, as after a long silence."""
        self._heard_s = -math.inf

    def hear(self, view: GpuView, work: Work, now: float) -> News | None:
        """Take in a view; the new signal, if there is one in it.

        A view that does not know the signal in force, or is hardly younger than the last one, brings none.
        """
        self.expects_source = True
        usable = _usable(view)
        if usable < self._usable:
            self._release_s = now + LOSS_HOLD_S
        self._usable = usable
        ladder = self._stated_ladder.promising(view.interval_s, view.period_s)
        self._capacity.hear(view.capacity, view.taken_at_s, ladder, now)
        self._door.hear(1.0 if view.capacity else 0.0, view.taken_at_s, ladder, now)
        self.pressure = self._gauge.measure(view, work)
        self.effect = effect(view)
        self._lost_until_s = -math.inf if view.capacity else now + ladder.stale_s
        self._cards_until_s = view.taken_at_s + ladder.stale_s
        self.signal = self._in_force(view, now)
        pct, term, measured_s = self._read(view)
        gap_s = measured_s - self._newest_s.get(self.signal, -math.inf)
        if pct is None or not 0.0 <= pct <= 100.0 or gap_s <= NEW_AFTER * self._stated_ladder.interval_s:
            return None
        after_outage = self.state(now) in {Telemetry.STALE, Telemetry.BLIND}
        self._distrust = max(0, (SAMPLES_TO_TRUST if after_outage else self._distrust) - 1)
        self._staleness = ladder
        self._newest_s[self.signal] = self._heard_s = min(measured_s, now)
        self._signal_pct, self.term = pct, term
        return News(pct, after_outage)

    @property
    def trusts(self) -> bool:
        """Whether enough new samples have come since the last outage."""
        return not self._distrust

    def serves(self, now: float) -> bool:
        """Whether any card is left that does not hang; what is too old to be believed counts for it.

        A loss is as young as the newest reading, for a lost card tells nothing; a hang as its measurement.
        """
        hung = self.effect.stalled and now <= self._cards_until_s
        return not (self.expects_source and (hung or now <= self._lost_until_s))

    def may_release(self, now: float) -> bool:
        """Whether a better signal may be believed: not just after an outage or a loss."""
        return self.trusts and now >= self._release_s

    def state(self, now: float) -> Telemetry:
        """How far the newest signal can be believed."""
        if not self.expects_source:
            return Telemetry.NONE
        if self._heard_s is None:
            return Telemetry.STARTING if now <= self._deadline_s else Telemetry.BLIND
        return self._staleness.state(now - self._heard_s)

    def load(self, state: Telemetry) -> float | None:
        """The newest signal as 0..1, None once it is no longer heard."""
        return self._signal_pct / 100.0 if state in _HEARD and self._signal_pct is not None else None

    def capacity(self, now: float) -> float:
        """Usable share of the devices, 0..1."""
        return self._capacity.at(now)

    def door(self, now: float) -> float:
        """How far the door is open, 0..1: below 1 only after the last device was lost."""
        return self._door.at(now) if self.expects_source else 1.0

    def drifted(self, held: float, now: float) -> float:
        """What has become of a factor by the age of the signal it was made from."""
        if self._heard_s is None:
            return held if now <= self._deadline_s else self._staleness.assumed(held)
        return self._staleness.factor(held, now - self._heard_s)

    def cause(self, state: Telemetry, capacity: float, otherwise: Why) -> Why:
        """Why the factor is what it is, if telemetry itself is the cause."""
        if state is Telemetry.NONE:
            return Why.NO_DEVICE
        if not capacity:
            return Why.LOST
        if state is Telemetry.STALE:
            return Why.STALE
        return Why.BLIND if state is Telemetry.BLIND else otherwise

    def until(self, state: Telemetry, now: float) -> float:
        """Until when nothing changes by age alone."""
        trusted_s = self._capacity.until(now)
        if self._heard_s is None:
            return min(self._deadline_s, trusted_s) if state is Telemetry.STARTING else trusted_s
        known_s = {
            Telemetry.FRESH: self._heard_s + self._staleness.fresh_s,
            Telemetry.LATE: self._heard_s + self._staleness.stale_s,
            Telemetry.STALE: min(now + BLEND_STEP_S, self._heard_s + self._staleness.blind_s),
        }
        return min(trusted_s, known_s.get(state, math.inf))

    def readmits_at(self, now: float) -> float:
        """After the last device was lost, the first sample that could open the door."""
        return self._door.rises_at(now)

    def told_at(self, samples: int, now: float) -> float:
        """When so many more samples can have come at the earliest."""
        interval_s = self._staleness.interval_s
        following = now if self._heard_s is None else self._heard_s + interval_s
        return self._due(following, now) + (samples - 1) * interval_s

    def release_at(self, samples: int, calm: int, now: float) -> float:
        """The first sample at which ``samples`` calm ones in a row may have been believed.

        Args:
            samples: how many are wanted.
            calm: how many of them have been seen; they count only if the next one may be believed, too.
            now: monotonic seconds; one interval from here if nothing can be foreseen.
        """
        interval_s = self._staleness.interval_s
        if self._heard_s is None or self._heard_s == -math.inf:
            return now + interval_s
        following = self._heard_s + interval_s
        back_s = self._due(following, now)
        if back_s - self._heard_s > self._staleness.stale_s:
            counts_from = back_s + (SAMPLES_TO_TRUST - 1) * interval_s
        else:
            counts_from = self._heard_s + max(1, self._distrust) * interval_s
        if counts_from < self._release_s:
            counts_from += math.ceil((self._release_s - counts_from) / interval_s) * interval_s
        seen = calm if counts_from == following else 0
        return self._due(counts_from + (max(1, samples - seen) - 1) * interval_s, now)

    def _in_force(self, view: GpuView, now: float) -> Signal:
        """``auto``: the pressure while an engine is heard, else the utilization.

        An engine that has fallen silent is left for the cards only if those can be heard.
        """
        if self._stated is not Signal.AUTO:
            return self._stated
        if view.engines_at_s is None:
            return Signal.UTILIZATION
        ladder = self._stated_ladder.promising(view.interval_s, None)
        silent = now - view.engines_at_s > ladder.stale_s
        cards = view.utilization_pct is not None and now - view.taken_at_s <= self._staleness.stale_s
        return Signal.UTILIZATION if silent and cards else Signal.PRESSURE

    def _read(self, view: GpuView) -> tuple[float | None, str, float]:
        """The signal in %, the term that decides, and when it was measured."""
        if self.signal is Signal.UTILIZATION:
            return view.utilization_pct, "utilization", view.taken_at_s
        value, engines_at_s = self.pressure.value, view.engines_at_s
        measured_s = view.taken_at_s if engines_at_s is None else engines_at_s
        return (None if value is None else 100.0 * value), self.pressure.term, measured_s

    def _due(self, at: float, now: float) -> float:
        return at if at > now else now + self._staleness.interval_s


def _usable(view: GpuView) -> float:
    """Share of the cards that are not lost; a slow one is as usable as before."""
    if not view.weights:
        return view.capacity
    lost = {(row.host, row.device) for row in view.devices if row.health == "lost"}
    return math.fsum(weight for key, weight in view.weights.items() if key not in lost)
