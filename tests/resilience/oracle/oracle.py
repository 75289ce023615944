"""A breaker that is slow and obviously right: what it answers is read off the log and the rules.

Two things are left open by the rules, and are taken from the breaker under test where they stay in bounds:
the serial of a pass, and which of the allowed windows of time it counts in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    BreakerTransition,
    GuardPermit,
    Outcome,
    RemoteBreakerState,
    TripRule,
)
from tests.resilience.oracle import recount
from tests.resilience.oracle.log import (
    Agreed,
    Denied,
    Deposited,
    Ended,
    Entry,
    Gave,
    Late,
    Requested,
    Stepped,
    Went,
)

REQUEST_EXPIRES_S = 300.0
"""The longest period that a dependency may ask for where ``open_max_s`` says nothing."""

STARTS = {
    BreakerMode.ENFORCE: BreakerState.CLOSED,
    BreakerMode.METRICS_ONLY: BreakerState.CLOSED,
    BreakerMode.DISABLED: BreakerState.DISABLED,
}
OPERATED = (BreakerState.FORCED_OPEN, BreakerState.DISABLED)


@dataclass(frozen=True)
class Leave:
    """The call may be made."""

    counted: bool = False
    """Its pass holds a place, and has a serial of its own."""
    void: bool = False
    """It is admitted only because nothing is enforced: its result is ignored."""


@dataclass(frozen=True)
class No:
    """The call may not be made."""

    state: BreakerState
    cause: BreakerCause
    retry_after_s: float
    wants_lease: bool = False
    """Return whether a request to the fleet is allowed."""


class Oracle:
    """The expected results and views of a breaker."""

    def __init__(self, rules: BreakerSettings, now: float, generation: int) -> None:
        self.rules = rules
        self.log: list[Entry] = [Went(STARTS[rules.mode], None, now)]
        self.metrics_only = rules.mode is BreakerMode.METRICS_ONLY
        self.leased = False
        self.decided_here = False
        self.born = generation
        self.latest = now
        self.notified: list[BreakerTransition] = []
        self.running: dict[GuardPermit, float] = {}
        """Calls that count towards the bound, of any generation, each with the time of its leave."""
        self.window: list[Ended] = []
        """The one, of those allowed, that the breaker counts in."""

    # --- read off the log ---

    @property
    def machine(self) -> BreakerState:
        return recount.newest(self.log).to

    @property
    def generation(self) -> int:
        return self.born + recount.generations(self.log)

    def rest_s(self, now: float) -> float:
        """Left of the open period."""
        return recount.wait_s(self.log, self.rules) - max(0.0, now - recount.newest(self.log).at)

    def ends_s(self) -> float:
        """When the open period is over, by a clock that goes on."""
        return recount.newest(self.log).at + recount.wait_s(self.log, self.rules)

    def effective(self, now: float) -> BreakerState:
        if self.machine is BreakerState.OPEN and self.rest_s(now) <= 0:
            return BreakerState.HALF_OPEN
        return self.machine

    def places(self) -> dict[GuardPermit, float]:
        """Return the probes or counted calls that hold a slot, with their start times."""
        return recount.held(self.log, self.rules.lease_s)

    def inside(self, now: float) -> int:
        """Return how many calls are in flight, of any generation; 0 without a bound."""
        return len(self._within_lease(now))

    def _within_lease(self, now: float) -> dict[GuardPermit, float]:
        lease_s = self.rules.trial_lease_s or max(600.0, 3 * (self.rules.timeout_s or 0))
        return {pass_: since for pass_, since in self.running.items() if now - since < lease_s}

    def is_full(self, now: float) -> bool:
        """Return whether the bound is reached; calls beyond their lease are forgotten only if it is."""
        most = self.rules.max_in_flight
        if most and len(self.running) >= most:
            self.running = self._within_lease(now)
        return 0 < most <= len(self.running)

    # --- what is asked ---

    def allow(self, now: float) -> Leave | No:
        """Return the result of a call. Admitted calls must be reported by `gave`."""
        self.latest = max(self.latest, now)
        self.log.append(Requested(now))
        answer = self._admit(now)
        if not isinstance(answer, No):
            return answer
        self.log.append(Denied(answer.cause, really=not self.metrics_only))
        return Leave(void=True) if self.metrics_only else answer

    def _admit(self, now: float) -> Leave | No:
        if self.machine is BreakerState.DISABLED:
            return Leave()
        if self.machine is BreakerState.FORCED_OPEN:
            return No(BreakerState.FORCED_OPEN, BreakerCause.OPERATOR, self.rules.open_s)
        if self.machine is BreakerState.OPEN:
            rest_s = self.rest_s(now)
            if rest_s > 0:
                return No(BreakerState.OPEN, self.why(), rest_s)
            self._go(BreakerState.HALF_OPEN, BreakerCause.TRIAL, now)
        return self._trial(now) if self.machine is BreakerState.HALF_OPEN else self._ordinary(now)

    def _trial(self, now: float) -> Leave | No:
        leased = self.leased and not self.metrics_only
        taken = len(self.places())
        if self.rules.success_threshold is None and not leased:
            taken += recount.won(self.log)
        full = taken >= self.rules.half_open_max
        if not full and 0 < self.rules.max_in_flight <= self.inside(now):
            return No(BreakerState.HALF_OPEN, BreakerCause.IN_FLIGHT, 0.0)
        if leased or full:
            return No(BreakerState.HALF_OPEN, BreakerCause.TRIAL, 0.0, wants_lease=leased and not full)
        return Leave(counted=True)

    def _ordinary(self, now: float) -> Leave | No:
        counted = self.rules.max_in_flight > 0
        if self.is_full(now):
            return No(self.machine, BreakerCause.IN_FLIGHT, 0.0)
        if self.machine is BreakerState.RAMPING and not self._share(now):
            return No(BreakerState.RAMPING, BreakerCause.RAMP, 0.0)
        return Leave(counted)

    def _share(self, now: float) -> bool:
        """Whether this call is one of those that a ramp admits."""
        number, began, success = recount.step(self.log)
        if success and now - began >= self.rules.ramp_step_s:
            number += 1
            if number == len(self.rules.ramp):
                self._go(BreakerState.CLOSED, BreakerCause.RAMP, now)
                return True
            self.log.append(Stepped(now))
        self.log.append(Deposited(Fraction(str(self.rules.ramp[number]))))
        return recount.credit(self.log) >= 1

    def gave(self, pass_: GuardPermit, now: float) -> None:
        if pass_.serial and self.rules.max_in_flight:
            self.running[pass_] = now
        self.log.append(Gave(pass_, now))

    def granted(self, pass_: GuardPermit, rounds: int, now: float) -> None:
        """Record a probe granted by the fleet; ``rounds``: its count of rounds."""
        self.latest = max(self.latest, now)
        self.log.append(Requested(now))
        if self.machine is BreakerState.OPEN:
            self._go(BreakerState.HALF_OPEN, BreakerCause.TRIAL, now, rounds=rounds)
        self.gave(pass_, now)

    # --- what is told ---

    def record(self, pass_: GuardPermit, outcome: Outcome, now: float) -> None:
        self.latest = max(self.latest, now)
        was_running = self.running.pop(pass_, None) is not None
        if pass_.generation == self.generation and self.machine in OPERATED:
            return
        if not self._counts(pass_, was_running=was_running):
            self.log.append(Late())
            return
        self.log.append(Ended(pass_, outcome, now, self.latest))
        if outcome is not Outcome.NEUTRAL:
            self._classifier(outcome, now)

    def _counts(self, pass_: GuardPermit, *, was_running: bool) -> bool:
        if pass_.generation != self.generation or self.machine is BreakerState.OPEN:
            return False
        if self.machine is BreakerState.HALF_OPEN:
            return pass_ in self.places()
        return was_running if self.rules.max_in_flight else not pass_.serial

    def _classifier(self, outcome: Outcome, now: float) -> None:
        if self.machine is not BreakerState.HALF_OPEN:
            return
        if outcome is not Outcome.SUCCESS:
            self._go(BreakerState.OPEN, BreakerCause.TRIAL, now)
        elif recount.won(self.log) >= self.rules.successes_needed:
            self._go(
                BreakerState.RAMPING if self.rules.ramp else BreakerState.CLOSED, BreakerCause.TRIAL, now
            )

    def trips(self, window: list[Ended]) -> BreakerCause | None:
        """Why the newest result opens the breaker, if it does."""
        failures = sum(recount.failed(result, self.rules) for result in window)
        slow = sum(result.outcome is Outcome.SLOW for result in window)
        calls = len(window) if len(window) >= self.rules.min_calls else 0
        over = {
            TripRule.CONSECUTIVE: recount.streak(self.log, self.rules) >= self.rules.failures,
            TripRule.FAILURE_RATE: calls and failures >= Fraction(str(self.rules.failure_rate)) * calls,
            TripRule.SLOW_RATE: calls and slow >= Fraction(str(self.rules.slow_rate)) * calls,
        }
        causes = {
            TripRule.CONSECUTIVE: BreakerCause.FAILURES,
            TripRule.FAILURE_RATE: BreakerCause.FAILURE_RATE,
        }
        for trip in TripRule:
            if trip in self.rules.trip and over[trip]:
                return causes.get(trip, BreakerCause.SLOW_RATE)
        return None

    def tripped(self, cause: BreakerCause, now: float) -> None:
        self._go(BreakerState.OPEN, cause, now)

    def windows(self, now: float) -> list[list[Ended]]:
        return list(recount.windows(self.log, self.rules, now, max(now, self.latest)))

    # --- verbs ---

    def open_for(self, duration_s: float, cause: BreakerCause, now: float) -> None:
        self.latest = max(self.latest, now)
        longest = REQUEST_EXPIRES_S if self.rules.open_max_s is None else self.rules.open_max_s
        wait_s = min(duration_s, longest)
        sooner = self.machine is BreakerState.OPEN and wait_s <= self.rest_s(now)
        if self.machine not in OPERATED and not sooner:
            self._go(BreakerState.OPEN, cause, now, wait_s=wait_s)

    def operate(self, to: BreakerState, now: float, *, metrics_only: bool = False) -> None:
        self.latest = max(self.latest, now)
        self.metrics_only = metrics_only
        self._go(to, BreakerCause.OPERATOR, now)
        self.decided_here = to in OPERATED

    def adopt(self, remote: RemoteBreakerState, now: float) -> None:
        """The fleet knows better: go where it has gone, through the own ramp if there is one.

        Who has closed already goes on; who is open already has found out by itself, and goes on saying why.
        An operator's word is taken back by an operator alone.
        """
        self.latest = max(self.latest, now)
        by_operator = remote.state in OPERATED or remote.cause is BreakerCause.OPERATOR
        if self.decided_here and not by_operator:
            return
        self.decided_here = False
        to, at_once = remote.state, by_operator or self.machine in OPERATED
        if to is BreakerState.CLOSED and not at_once:
            if self.machine in {BreakerState.CLOSED, BreakerState.RAMPING}:
                return
            to = BreakerState.RAMPING if self.rules.ramp else BreakerState.CLOSED
        cause = self.why() if self.machine is to is BreakerState.OPEN else BreakerCause.REMOTE
        self._go(to, cause, now, remote.wait_s if to is BreakerState.OPEN else None, remote.rounds)

    def why(self) -> BreakerCause:
        cause = recount.newest(self.log).cause
        assert cause is not None
        return cause

    def _go(
        self,
        to: BreakerState,
        cause: BreakerCause,
        now: float,
        wait_s: float | None = None,
        rounds: int | None = None,
    ) -> None:
        before = self.machine
        self.log.append(Went(to, cause, now, wait_s))
        if rounds is not None:
            self.log.append(Agreed(rounds))
        if to is before:
            return
        notified = BreakerTransition(
            "it", before, to, cause, now, self.generation, rounds=recount.rounds(self.log)
        )
        if to is BreakerState.OPEN:
            notified = replace(notified, retry_after_s=recount.wait_s(self.log, self.rules))
        self.notified.append(notified)
