"""One guard of one process: its breaker, its clock, its judge, its observers, and its fleet."""

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
    """One guard of one process.

    What the faces need: admission, judgement and the record of each call, and what operators do.

    Args:
        name: of the guard.
        rules: its figures.
        clock: monotonic seconds.
        judge: what counts as what; None: the table alone.
        store: the state that a fleet shares; None: this process goes by itself.
        told: is told each change of the state, in order, after the lock.
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
        """Seconds from which a call is slow; None: no clock is read for it."""
        self.untimed: bool = rules.slow_call_s is None and rules.timeout_s is None
        """Whether a block has to do with no clock."""
        self.clock: Clock = clock
        self.judge: Judge = judge or Judge()
        self.usual: bool = rules.slow_call_s is None and self.judge.classify is None
        """Whether a value is a success without a further look."""
        self.store: BreakerStore | None = store
        self.breaker: Breaker = Breaker(name, rules, clock())
        self.met: bool = False
        """Whether no first word of the fleet is awaited: then `enter` would answer with ``breaker.fast``."""
        self.direct: bool = False
        """Whether a call has to do with the breaker alone: it is `met`, and nobody else may shed or answer
        it. Then ``breaker.fast`` may be used without asking."""
        self._served: Serving | None = None
        self._shed: Callable[[], Refusal | None] | None = None
        self.faults: Seldom = Seldom(name, clock)
        """Logs what is odd, each kind now and then."""
        self._locked = LockedBreaker(self.breaker, clock, store, told, self.faults)
        self._aim()
        if store is not None:
            store.watch(name, self.adopt)  # held weakly

    def __repr__(self) -> str:
        return f"<Circuit {self.breaker!r}>"

    @property
    def served(self) -> Serving | None:
        """What answers decorated functions in the dependency's place; None: nothing does."""
        return self._served

    @served.setter
    def served(self, served: Serving | None) -> None:
        self._served = served
        self._aim()

    @property
    def shed(self) -> Callable[[], Refusal | None] | None:
        """Asked by the faces that know no fallback, whether the service has no load to spare for this."""
        return self._shed

    @shed.setter
    def shed(self, shed: Callable[[], Refusal | None] | None) -> None:
        self._shed = shed
        self._aim()

    # Calls

    def keep_out(self) -> None:
        """Refuse a call without the lock, where the breaker is known to be open for longer.

        Raises:
            ShutOut: it is. Else the breaker has to be asked.
        """
        shut = self._locked.shut
        if shut is None or not self.direct:
            return
        since_s = self.clock() - shut.at_s
        left_s = shut.left_s - since_s
        if left_s > CLOSE_S and since_s >= 0.0 and self.breaker.generation == shut.generation:
            shut.count += 1
            raise ShutOut(shut.refusal, left_s)

    def admit(self) -> Pass | Refusal:
        """Ask for one call on behalf of a face without fallback: while the feature is shed, it is refused."""
        shed = None if self._shed is None else self._shed()
        return self.enter() if shed is None else shed

    async def admit_async(self) -> Pass | Refusal:
        """The same without blocking the event loop."""
        shed = None if self._shed is None else self._shed()
        return await self.enter_async() if shed is None else shed

    def enter(self) -> Pass | Refusal:
        """Ask for one call.

        Waits for the fleet's store alone, at most its deadline: for the first state of a guard, and for leave
        to make a trial.
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
        """The same without blocking the event loop."""
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
        """Record how a call ended. Never waits and never raises.

        Args:
            pass_: what let it through; once for each call.
            outcome: how it ended.
            error: what was raised, or the failure in words, for ``last_failure``.
        """
        core = self.breaker
        if outcome is _SUCCESS and core.clean and core.fast is pass_:
            return
        note = failure_text(error) if outcome is Outcome.FAILURE and error is not None else ""
        self._locked.record(pass_, outcome, note)

    def settle(self, pass_: Pass, seen: object, *, raised: bool, elapsed_s: float = 0.0) -> Outcome:
        """Judge what a call gave and record it.

        Args:
            pass_: what let it through.
            seen: the returned value or the exception.
            raised: whether it was raised.
            elapsed_s: seconds that the call took; they matter with ``slow_call_s`` alone.
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
        """Monotonic seconds, if it matters how long a call takes, else 0."""
        return 0.0 if self.slow_s is None else self.clock()

    def since(self, begun_s: float) -> float:
        """Seconds since `begin`; 0 where they do not matter."""
        return 0.0 if self.slow_s is None else self.clock() - begun_s

    def outcome_of(self, seen: object, *, raised: bool, otherwise: Outcome = _SUCCESS) -> Outcome:
        """Judge what a call gave. A classifier that raises is logged and counted; its answer is neutral.

        Args:
            seen: the returned value or the exception.
            raised: whether it was raised.
            otherwise: what a returned value is where the user's own word is silent.
        """
        if not raised and self.judge.classify is None:
            return otherwise
        try:
            return self.judge.judge(seen, raised=raised, otherwise=otherwise)
        except Exception as error:  # noqa: BLE001 - the user's own, and no concern of his caller
            self._locked.fault()
            self.faults.say("classify", _FAULTY, error)
            return Outcome.NEUTRAL

    def opened_for(self, retry_after_s: float) -> None:
        """Open for as long as the dependency itself says.

        Args:
            retry_after_s: seconds from now.
        """
        deed = partial(self.breaker.open_for, retry_after_s, Cause.RETRY_AFTER)
        self._locked.turn(deed, ours=True)

    # Operators

    def force_open(self) -> None:
        """Let nothing through until an operator says otherwise."""
        self._locked.operate(self.breaker.force_open, State.FORCED_OPEN)

    def disable(self) -> None:
        """Let everything through and count nothing until an operator says otherwise."""
        self._locked.operate(self.breaker.disable, State.DISABLED)

    def metrics_only(self) -> None:
        """Let everything through and count what would be refused; in this process alone."""
        self._locked.turn(self.breaker.metrics_only, ours=False)

    def reset(self) -> None:
        """Close, and forget what was."""
        self._locked.operate(self.breaker.reset, State.CLOSED)

    # What there is to see

    def refuses(self) -> Refusal | None:
        """What a call would be refused with now; free of effects."""
        shed = None if self._served is None else self._served.would_shed()
        return shed or self._locked.refuses()

    def state(self) -> State:
        """What a caller sees now; free of effects."""
        return self._locked.state()

    def view(self) -> BreakerView:
        """The breaker now; free of effects."""
        return self._locked.view()

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost with it: as it began, no failure in mind, nothing under way."""
        view = self._locked.view()
        return (
            view.machine is State.CLOSED
            and not (view.streak or view.window_failures or view.window_slow or view.in_flight)
            and view.metrics_only is (self.rules.mode is Mode.METRICS_ONLY)
        )

    def forget(self) -> None:
        """Begin anew in a fork: the parent's threads are gone, and with them the calls that they made."""
        self._locked.begin()
        self.breaker.forget(self.clock())
        self._aim()
        if self._served is not None:
            self._served.forget()

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
        """Take over a newer state of the fleet."""
        self._locked.adopt(remote)

    def _answered(self, reply: Lease | Remote | None) -> Pass | Refusal:
        """Go by the fleet's answer to who asked for a trial.

        Args:
            reply: the lease, the state that stands against it, or None where the store is away.
        """
        if isinstance(reply, Lease):
            return self._locked.grant(reply)
        if reply is not None:
            self.adopt(reply)
        store = self.store
        return self._locked.ask(leased=store is not None and store.up)
