"""A breaker, its replica and its oracle: all get the same calls, and their results are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerState,
    BreakerTransition,
    BreakerView,
    GuardPermit,
    GuardRejection,
    Outcome,
)
from tests.resilience.oracle import recount
from tests.resilience.oracle.log import Ended
from tests.resilience.oracle.oracle import Leave, No, Oracle

BIRTH_S = 1000.0
APART_S = 2.0**20
"""Between the clocks of the two breakers."""

COUNTERS = {"calls", "refused", "would_refuse", "stale_results", "last_failure"}


def bare(view: BreakerView) -> dict[str, Any]:
    """Return a view without its counters."""
    return {f.name: getattr(view, f.name) for f in fields(view) if f.name not in COUNTERS}


class Beside:
    """Two breakers and an oracle. Each method is one thing that happens to all of them."""

    def be_born(self, rules: BreakerSettings) -> None:
        self.by, self.now = rules, BIRTH_S
        self.breaker = Breaker("it", rules)
        self.replica = Breaker("it", rules)
        self.oracle = Oracle(rules, self.now, self.breaker.generation)
        self.serial = 0
        self.voids: list[GuardPermit] = []
        self.open_trials: dict[GuardPermit, float] = {}
        self.newest: GuardPermit | None = None
        self.drained: list[BreakerTransition] = []
        self.fence = 0
        self.version = 0
        self.known = -1
        self.requested_lease_s: float | None = None
        self.note = ""

    def both(self, act: Callable[[Breaker, float], Any]) -> tuple[Any, Any]:
        return act(self.breaker, self.now), act(self.replica, self.now + APART_S)

    def request_once(self, *, fast: bool = False) -> GuardPermit | None:
        foreseen = self.breaker.rejection(self.now)
        if fast and self.breaker.fast.permit is not None:
            got = self.replica.fast.permit
            assert got == self.breaker.fast.permit
            for breaker in (self.breaker, self.replica):
                breaker.fast.calls += 1
        else:
            got, other = self.both(lambda breaker, now: breaker.allow(now))
            assert got == other, "adding a constant to all times changes nothing, nor does looking"
        expected = self.oracle.allow(self.now)
        if isinstance(expected, No):
            self.check_rejection(got, expected)
            assert foreseen is not None
            assert isinstance(got, GuardRejection)
            assert foreseen._replace(lease_wanted=False) == got._replace(lease_wanted=False)
            return None
        assert foreseen is None
        assert isinstance(got, GuardPermit)
        self.take(got, expected)
        return got

    def take(self, got: GuardPermit, expected: Leave) -> None:
        if expected.void:
            self.voids.append(got)
            return
        assert got.generation == self.oracle.generation
        assert bool(got.serial) is expected.counted
        assert not got.fence
        self.hold(got)
        self.oracle.gave(got, self.now)

    def hold(self, got: GuardPermit) -> None:
        self.newest = got
        if got.serial:
            assert got.serial > self.serial, "a serial is given once"
            self.serial = got.serial
        if self.oracle.machine is BreakerState.HALF_OPEN:
            lease_s, generation = self.by.lease_s, self.oracle.generation
            self.open_trials = {
                trial: since
                for trial, since in self.open_trials.items()
                if self.now - since < lease_s and trial.generation == generation
            } | {got: self.now}
            local = [trial for trial in self.open_trials if not trial.fence]
            assert len(local) <= self.by.half_open_max, "no more trials than there are places"

    def check_rejection(self, got: Any, expected: No) -> None:
        assert isinstance(got, GuardRejection)
        reports = (got.name, got.state, got.cause, got.retry_after_s, got.last_failure)
        assert reports == ("it", expected.state, expected.cause, expected.retry_after_s, self.note)
        if not expected.wants_lease:
            assert not got.lease_wanted
        elif self.requested_lease_s is not None and self.now == self.requested_lease_s:
            assert not got.lease_wanted, "one caller in a while asks the fleet"
        elif self.requested_lease_s is None or self.now > self.requested_lease_s:
            assert got.lease_wanted
        if got.lease_wanted:
            self.requested_lease_s = self.now

    def record(self, pass_: GuardPermit, outcome: Outcome) -> None:
        was_running = pass_ in self.oracle.running
        before = bare(self.breaker.view(self.now))
        places, generation = self.oracle.places(), self.oracle.generation
        nobodys = any(pass_ is void for void in self.voids)
        self.both(lambda breaker, now: breaker.record(pass_, outcome, now))
        self.open_trials.pop(pass_, None)
        if not nobodys:
            self.oracle.record(pass_, outcome, self.now)
            self.follow_the_window()
        foreign = pass_.generation != generation or (pass_.serial and pass_ not in places)
        nothing = outcome is Outcome.NEUTRAL and not pass_.serial
        if nobodys or foreign or nothing:
            after = bare(self.breaker.view(self.now))
            after = after | {"in_flight": before["in_flight"]} if was_running else after  # its slot is free
            assert after == before, "what counts for nothing changes nothing"

    def follow_the_window(self) -> None:
        """Apply the newest result, in any of the allowed windows of the breaker."""
        result = self.oracle.log[-1]
        if not isinstance(result, Ended) or result.outcome is Outcome.NEUTRAL:
            return
        if self.oracle.machine is BreakerState.HALF_OPEN:
            return
        view = self.breaker.view(self.now)
        cause = view.cause if view.machine is BreakerState.OPEN else None
        assert cause in {self.oracle.trips(window) for window in self.oracle.windows(self.now)}
        if cause is not None:
            self.oracle.tripped(cause, self.now)

    def ends(self) -> list[float]:
        """When the open period, a trial's lease, a step of a ramp, a streak or a place in a window ends."""
        rules, oracle = self.by, self.oracle
        ends: list[float] = []
        if oracle.machine is BreakerState.HALF_OPEN:
            ends += [since + rules.lease_s for since in oracle.places().values()]
        if oracle.machine is BreakerState.OPEN:
            ends.append(oracle.ends_s())
        if oracle.machine is BreakerState.RAMPING:
            ends.append(recount.step(oracle.log)[1] + rules.ramp_step_s)
        window_s = rules.window_s or 10.0
        for span_s in (rules.failure_window_s, window_s, window_s * 0.9):
            ends += [result.at + span_s for result in recount.results(oracle.log)[-4:] if span_s]
        return ends
