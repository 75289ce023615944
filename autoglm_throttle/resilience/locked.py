"""A breaker under its lock: one change at a time, and who has to know is told after it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from autoglm_throttle.model import (
    BreakerView,
    Cause,
    Clock,
    Outcome,
    Pass,
    Refusal,
    State,
    Transition,
)
from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.courier import Courier
from autoglm_throttle.resilience.membership import Membership
from autoglm_throttle.resilience.seldom import Seldom
from autoglm_throttle.resilience.shut import Shut
from autoglm_throttle.resilience.store import BreakerStore, Lease, Remote


class LockedBreaker:
    """A breaker that threads share.

    It is changed under the lock alone, and nothing is called or awaited under it. The lock is re-entrant,
    because the garbage collector or a signal handler may run under it in the same thread and end an abandoned
    stream: such a change waits until the one at hand is done.

    Args:
        core: the breaker; nobody else changes it.
        clock: monotonic seconds.
        store: the state that a fleet shares; None: this process goes by itself.
        told: is told each change of the state, in order, after the lock.
        faults: what logs a ``told`` that raises.
    """

    __slots__ = (
        *("_clock", "_core", "_courier", "_faults", "_inside", "_kept_out", "_late", "_lock", "_store"),
        *("_told", "fleet", "shut"),
    )

    def __init__(
        self,
        core: Breaker,
        clock: Clock,
        store: BreakerStore | None,
        told: Callable[[Sequence[Transition]], None] | None,
        faults: Seldom,
    ) -> None:
        self._core = core
        self._clock = clock
        self._store = store
        self._told = told
        self._faults = faults
        self._kept_out: dict[Cause, int] = {}
        self._late: deque[Callable[[], None]] = deque()
        self.begin()

    def begin(self) -> None:
        """Take new locks, and forget whatever was under way."""
        self._lock = threading.RLock()
        self._inside = False
        self._late.clear()
        self._courier = Courier(self._faults)
        self.shut: Shut | None = None
        """The newest open period, while it may last."""
        core, store = self._core, self._store
        self.fleet: Membership | None = (
            None if store is None else Membership(core.name, core.rules, store, self._courier)
        )

    def ask(self, *, leased: bool) -> Pass | Refusal:
        """Ask leave for one call.

        Args:
            leased: whether a trial needs the fleet's lease.
        """
        core = self._core
        pass_ = core.fast
        if pass_ is not None:
            core.calls += 1
            return pass_
        now = self._clock()
        with self._lock:
            if self._inside:
                return Refusal(core.name, State.HALF_OPEN, Cause.IN_FLIGHT, 0.0)
            self._inside = True
            try:
                generation = core.generation
                core.leased = leased
                answer = core.allow(now)
                if core.generation != generation:
                    self._spread(ours=True)
            finally:
                self._inside = False
            if isinstance(answer, Refusal) and answer.state is State.OPEN:
                self._keep(answer, now)
            self._catch_up()
        self._courier.deliver()
        return answer

    def record(self, pass_: Pass, outcome: Outcome, note: str) -> None:
        """Record how a call ended.

        Args:
            pass_: what let it through.
            outcome: how it ended.
            note: the failure in words, or nothing.
        """
        self._change(partial(self._record, pass_, outcome, note, self._clock()))

    def turn(self, deed: Callable[[float], None], *, ours: bool) -> None:
        """Do something to the breaker that may change its state.

        Args:
            deed: is told the time.
            ours: whether an opening by it is news for the fleet.
        """
        self._change(partial(self._turn, deed, ours=ours))

    def operate(self, deed: Callable[[float], None], state: State) -> None:
        """Do what an operator wants, here and in the fleet."""
        self._change(partial(self._turn, deed, ours=False))
        if self.fleet is not None:
            self.fleet.operated(state)
            self._courier.deliver()

    def adopt(self, remote: Remote) -> None:
        """Take over a newer state of the fleet."""
        self.turn(partial(self._core.adopt, remote), ours=False)

    def grant(self, lease: Lease) -> Pass | Refusal:
        """Begin a trial under a lease; where the machine has moved on, the lease is given back."""
        answers: list[Pass | Refusal] = []
        self._change(partial(self._grant, lease, answers))
        return answers[0]

    def fault(self) -> None:
        """Count a classifier that has raised."""
        with self._lock:
            self._core.classifier_errors += 1

    def state(self) -> State:
        """What a caller sees now; free of effects."""
        with self._lock:
            return self._core.state(self._clock())

    def refuses(self) -> Refusal | None:
        """What a call would be refused with now; free of effects."""
        with self._lock:
            return self._core.refuses(self._clock())

    def view(self) -> BreakerView:
        """The breaker now; free of effects."""
        with self._lock:
            view = self._core.view(self._clock())
            refused = dict(view.refused)
            shut = self.shut
            kept_out = [*self._kept_out.items()] + ([(shut.refusal.cause, shut.count)] if shut else [])
        for cause, count in kept_out:
            refused[cause] = refused.get(cause, 0) + count
        return replace(view, refused=refused)

    def _change(self, deed: Callable[[], None]) -> None:
        """Do it under the lock; where this thread is under it already, as soon as it can."""
        self._late.append(deed)
        with self._lock:
            if self._inside:
                return
            self._catch_up()
        self._courier.deliver()

    def _catch_up(self) -> None:
        while self._late:
            self._inside = True
            try:
                self._late.popleft()()
            finally:
                self._inside = False

    def _keep(self, refusal: Refusal, now: float) -> None:
        before, self.shut = self.shut, Shut(refusal, self._core.generation, now)
        if before is not None:
            cause = before.refusal.cause
            self._kept_out[cause] = self._kept_out.get(cause, 0) + before.count

    def _turn(self, deed: Callable[[float], None], *, ours: bool) -> None:
        generation = self._core.generation
        deed(self._clock())
        if self._core.generation != generation:
            self._spread(ours=ours)

    def _record(self, pass_: Pass, outcome: Outcome, note: str, now: float) -> None:
        core = self._core
        if note:
            core.fail_note(note)
        generation = core.generation
        core.record(pass_, outcome, now)
        if core.generation != generation:
            self._spread(ours=not pass_.fence)
        if self.fleet is not None and pass_.fence:
            self.fleet.ended(pass_.fence, outcome)

    def _spread(self, *, ours: bool) -> None:
        """Have the changes told to the observers; and openings that are this process's own to its fleet.

        What a breaker that only counts would do is nobody else's business.
        """
        changes = self._core.drain()
        if changes and self._told is not None:
            self._courier.take(partial(self._told, changes))
        if ours and self.fleet is not None and not self._core.view(self._clock()).metrics_only:
            self.fleet.opened(changes)

    def _grant(self, lease: Lease, answers: list[Pass | Refusal]) -> None:
        core, fleet = self._core, self.fleet
        generation = core.generation
        answer = core.grant(lease, self._clock())
        answers.append(answer)
        if fleet is not None and isinstance(answer, Pass) and answer.fence:
            fleet.hold(lease)
        elif fleet is not None:
            fleet.give_back(lease)
        if core.generation != generation:
            self._spread(ours=False)
