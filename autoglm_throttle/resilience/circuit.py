"""State of one guard in one process: breaker, clock, classifier, observers and link to the fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from autoglm_throttle.model import (
    BreakerView,
    Cause,
    Clock,
    Mode,
    Outcome,
    Pass,
    Refusal,
    State,
    Transition,
)
from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.judge import Judge, failure_text, timed
from autoglm_throttle.resilience.locked import LockedBreaker
from autoglm_throttle.resilience.membership import Membership
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.seldom import Seldom
from autoglm_throttle.resilience.serving import Serving
from autoglm_throttle.resilience.shut import CLOSE_S, ShutOut
from autoglm_throttle.resilience.store import BreakerStore, Lease, Remote

_SUCCESS: Final = Outcome.SUCCESS

_FAULTY: Final = "classify failed; what it was asked about counts as neutral"


class Circuit:
    """State of one guard in one process.

    Provides admission, classification and recording of calls, and the operator commands.

    Args:
        name: of the guard.
        rules: settings of its breaker.
        clock: monotonic seconds.
        classifier: maps results to outcomes; None: the built-in table alone.
        store: the state shared by the fleet; None: this process decides alone.
        on_transitions: receives the transitions in order, after the lock is released.
    """

    __slots__ = (
        *("__weakref__", "faults", "_locked", "_served", "_shed", "breaker", "clock", "direct", "judge"),
        *("met", "name", "rules", "slow_s", "store", "untimed", "usual"),
    )

    def __init__(
        self,
        name: str,
        rules: Rules,
        *,
        clock: Clock = time.monotonic,
        judge: Judge | None = None,
        store: BreakerStore | None = None,
        told: Callable[[Sequence[Transition]], None] | None = None,
    ) -> None:
        self.name: str = name
        self.rules: Rules = rules
        self.slow_s: float | None = rules.slow_call_s
        """Duration in seconds above which a call is slow; None: the duration is not measured."""
        self.untimed: bool = rules.slow_call_s is None and rules.timeout_s is None
        """Whether a block needs no clock."""
        self.clock: Clock = clock
        self.judge: Judge = judge or Judge()
        self.usual: bool = rules.slow_call_s is None and self.judge.classify is None
        """Whether every returned value is a success, without classification."""
        self.store: BreakerStore | None = store
        self.breaker: Breaker = Breaker(name, rules, clock())
        self.met: bool = False
        """Whether the fleet's first state is known, or not needed."""
        self.direct: bool = False
        """Whether only the breaker decides: `is_synced`, no load shedding, no fallback.

        ``breaker.fast_permit`` may then be used without further checks.
        """
        self._served: Serving | None = None
        self._shed: Callable[[], Refusal | None] | None = None
        self.faults: Seldom = Seldom(name, clock)
        """Logs faults, rate-limited by kind."""
        self._locked = LockedBreaker(self.breaker, clock, store, told, self.faults)
        self._aim()
        if store is not None:
            store.watch(name, self.adopt)  # held weakly

    def __repr__(self) -> str:
        return f"<Circuit {self.breaker!r}>"

    @property
    def served(self) -> Serving | None:
        """Executor with fallbacks for decorated functions; None: the guard has no fallback."""
        return self._served

    @served.setter
    def served(self, served: Serving | None) -> None:
        self._served = served
        self._aim()

    @property
    def shed(self) -> Callable[[], Refusal | None] | None:
        """Check used by callers without a fallback: returns the rejection while the feature is shed."""
        return self._shed

    @shed.setter
    def shed(self, shed: Callable[[], Refusal | None] | None) -> None:
        self._shed = shed
        self._aim()

    # Calls

    def keep_out(self) -> None:
        """Reject a call without the lock while the breaker is known to be open.

        Raises:
            OpenGuardRejected: it is open. Otherwise the caller must request a permit.
        """
        shut = self._locked.shut
        if shut is None or not self.direct:
            return
        since_s = self.clock() - shut.at_s
        left_s = shut.left_s - since_s
        # since_s < 0: the clock stepped back, so the breaker itself must decide.
        if left_s > CLOSE_S and since_s >= 0.0 and self.breaker.generation == shut.generation:
            shut.count += 1
            raise ShutOut(shut.refusal, left_s)

    def admit(self) -> Pass | Refusal:
        """Request one call for a caller without a fallback: rejected while the feature is shed."""
        shed = None if self._shed is None else self._shed()
        return self.enter() if shed is None else shed

    async def admit_async(self) -> Pass | Refusal:
        """Request one call as `admit` does, without blocking the event loop."""
        shed = None if self._shed is None else self._shed()
        return await self.enter_async() if shed is None else shed

    def enter(self) -> Pass | Refusal:
        """Request one call.

        Waits only for the fleet's store, at most its deadline: for the first state of a guard, and for the
        lease of a probe.
        """
        store, fleet = self.store, self._locked.fleet
        if store is None or fleet is None:
            return self._locked.ask(leased=False)
        if fleet.cold:
            self._meet(fleet, store.known(self.name))
        answer = self._locked.ask(leased=store.up)
        if isinstance(answer, Refusal) and answer.lease_wanted:
            return self._answered(store.acquire(self.name, fleet.ask))
        return answer

    async def enter_async(self) -> Pass | Refusal:
        """Request one call as `allow` does, without blocking the event loop."""
        store, fleet = self.store, self._locked.fleet
        if store is None or fleet is None:
            return self._locked.ask(leased=False)
        if fleet.cold:
            self._meet(fleet, await store.known_async(self.name))
        answer = self._locked.ask(leased=store.up)
        if isinstance(answer, Refusal) and answer.lease_wanted:
            return self._answered(await store.acquire_async(self.name, fleet.ask))
        return answer

    def leave(self, pass_: Pass, outcome: Outcome, error: BaseException | str | None = None) -> None:
        """Record the outcome of a call. Never waits and never raises.

        Args:
            permit: of the call; recorded once.
            outcome: of the call.
            error: the exception or the text of the failure, for ``last_failure``.
        """
        core = self.breaker
        # The usual case: a success changes nothing, so it needs no lock.
        if outcome is _SUCCESS and core.clean and core.fast is pass_:
            return
        note = failure_text(error) if outcome is Outcome.FAILURE and error is not None else ""
        self._locked.record(pass_, outcome, note)

    def settle(self, pass_: Pass, seen: object, *, raised: bool, elapsed_s: float = 0.0) -> Outcome:
        """Classify the result of a call and record it.

        Args:
            permit: of the call.
            result: the returned value or the exception.
            raised: whether the result was raised.
            elapsed_s: duration of the call in seconds; used only with ``slow_call_s``.
        """
        if not raised and self.judge.classify is None:
            outcome = timed(_SUCCESS, elapsed_s, self.slow_s)
            self.leave(pass_, outcome)
            return outcome
        outcome = Outcome.NEUTRAL
        try:
            outcome = timed(self.outcome_of(seen, raised=raised), elapsed_s, self.slow_s)
        finally:
            self.leave(pass_, outcome, seen if raised and isinstance(seen, BaseException) else None)
        return outcome

    def begin(self) -> float:
        """Return monotonic seconds if the duration of a call matters, else 0."""
        return 0.0 if self.slow_s is None else self.clock()

    def since(self, begun_s: float) -> float:
        """Return the seconds since `start_time`, or 0 if the duration does not matter."""
        return 0.0 if self.slow_s is None else self.clock() - begun_s

    def outcome_of(self, seen: object, *, raised: bool, otherwise: Outcome = _SUCCESS) -> Outcome:
        """Classify the result of a call.

        A classifier that raises is logged and counted; the outcome is neutral.

        Args:
            result: the returned value or the exception.
            raised: whether the result was raised.
            default: outcome of a returned value if the user's classifier returns None.
        """
        if not raised and self.judge.classify is None:
            return otherwise
        try:
            return self.judge.judge(seen, raised=raised, otherwise=otherwise)
        except Exception as error:  # noqa: BLE001 - a faulty classifier must not fail the call
            self._locked.fault()
            self.faults.say("classify", _FAULTY, error)
            return Outcome.NEUTRAL

    def opened_for(self, retry_after_s: float) -> None:
        """Open for the period that the dependency requests.

        Args:
            retry_after_s: seconds from now.
        """
        deed = partial(self.breaker.open_for, retry_after_s, Cause.RETRY_AFTER)
        self._locked.turn(deed, ours=True)

    # Operators

    def force_open(self) -> None:
        """Reject all calls until the next operator command."""
        self._locked.operate(self.breaker.force_open, State.FORCED_OPEN)

    def disable(self) -> None:
        """Admit all calls and count nothing until the next operator command."""
        self._locked.operate(self.breaker.disable, State.DISABLED)

    def metrics_only(self) -> None:
        """Admit all calls and count those that would be rejected; in this process only."""
        self._locked.turn(self.breaker.metrics_only, ours=False)

    def reset(self) -> None:
        """Reset to closed and discard all results."""
        self._locked.operate(self.breaker.reset, State.CLOSED)

    # Views

    def refuses(self) -> Refusal | None:
        """Return the rejection of a call made now, or None. Has no effects."""
        shed = None if self._served is None else self._served.would_shed()
        return shed or self._locked.refuses()

    def state(self) -> State:
        """Return the state visible to callers. Has no effects."""
        return self._locked.state()

    def view(self) -> BreakerView:
        """Return an immutable view of the breaker. Has no effects."""
        return self._locked.view()

    @property
    def idle(self) -> bool:
        """Whether the guard can be evicted: initial state, no recent failure, no call in flight."""
        view = self._locked.view()
        return (
            view.machine is State.CLOSED
            and not (view.streak or view.window_failures or view.window_slow or view.in_flight)
            and view.metrics_only is (self.rules.mode is Mode.METRICS_ONLY)
        )

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the parent's threads and their calls do not exist here."""
        self._locked.begin()
        self.breaker.reset_after_fork(self.clock())
        self._aim()
        if self._served is not None:
            self._served.reset_after_fork()

    def _aim(self) -> None:
        fleet = self._locked.fleet
        self.met = fleet is None or not fleet.cold
        self.direct = self._served is None and self._shed is None and self.met

    # The fleet

    def _meet(self, fleet: Membership, remote: Remote | None) -> None:
        if remote is not None:
            self.adopt(remote)
        fleet.cold = False
        self._aim()

    def adopt(self, remote: Remote) -> None:
        """Apply a newer state of the fleet."""
        self._locked.adopt(remote)

    def _answered(self, reply: Lease | Remote | None) -> Pass | Refusal:
        """Apply the store's reply to the request of a probe lease.

        Args:
            reply: the lease, the state that prevents it, or None if the store is unavailable.
        """
        if isinstance(reply, Lease):
            return self._locked.grant(reply)
        if reply is not None:
            self.adopt(reply)
        store = self.store
        return self._locked.ask(leased=store is not None and store.up)
