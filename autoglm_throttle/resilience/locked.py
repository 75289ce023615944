"""A thread-safe breaker: changes are serialized, notifications follow after the lock is released."""

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
    """A breaker shared by threads.

    It is changed only under the lock; no callback runs and no I/O happens under it. A change that finds the
    lock held by its own thread is deferred until the current change is done.

    Args:
        core: the breaker; only this class changes it.
        clock: monotonic seconds.
        store: the state shared by the fleet; None: this process decides alone.
        on_transitions: receives the transitions in order, after the lock is released.
        fault_log: logs exceptions of ``on_transitions``.
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
        """Create new locks and drop all deferred work."""
        # Re-entrant: the garbage collector or a signal handler may run under it in the same thread and settle
        # an abandoned stream. `_is_locked_here` then defers that change.
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
        """Request one call.

        Args:
            lease_required: whether a probe needs the fleet's lease.
        """
        core = self._core
        pass_ = core.fast
        if pass_ is not None:
            core.calls += 1
            return pass_
        now = self._clock()
        with self._lock:
            if self._inside:
                # A finalizer makes a guarded call while this thread changes the breaker: reject, do not
                # deadlock.
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
        """Record the outcome of a call.

        Args:
            permit: of the call.
            outcome: of the call.
            failure_text: text of the failure; empty without one.
        """
        self._change(partial(self._record, pass_, outcome, note, self._clock()))

    def turn(self, deed: Callable[[float], None], *, ours: bool) -> None:
        """Run an action that may change the breaker's state.

        Args:
            action: receives the time.
            is_local: whether the fleet must be informed of an opening.
        """
        self._change(partial(self._turn, deed, ours=ours))

    def operate(self, deed: Callable[[float], None], state: State) -> None:
        """Run an operator command here and send it to the fleet."""
        self._change(partial(self._turn, deed, ours=False))
        if self.fleet is not None:
            self.fleet.operated(state)
            self._courier.deliver()

    def adopt(self, remote: Remote) -> None:
        """Apply a newer state of the fleet."""
        self.turn(partial(self._core.adopt, remote), ours=False)

    def grant(self, lease: Lease) -> Pass | Refusal:
        """Start a probe with a lease; if the state has changed meanwhile, the lease is returned."""
        answers: list[Pass | Refusal] = []
        self._change(partial(self._grant, lease, answers))
        return answers[0]

    def fault(self) -> None:
        """Count an exception of the user's classifier."""
        with self._lock:
            self._core.classifier_errors += 1

    def state(self) -> State:
        """Return the state visible to callers. Has no effects."""
        with self._lock:
            return self._core.state(self._clock())

    def refuses(self) -> Refusal | None:
        """Return the rejection of a call made now, or None. Has no effects."""
        with self._lock:
            return self._core.refuses(self._clock())

    def view(self) -> BreakerView:
        """Return an immutable view of the breaker. Has no effects."""
        with self._lock:
            view = self._core.view(self._clock())
            refused = dict(view.refused)
            shut = self.shut
            kept_out = [*self._kept_out.items()] + ([(shut.refusal.cause, shut.count)] if shut else [])
        for cause, count in kept_out:
            refused[cause] = refused.get(cause, 0) + count
        return replace(view, refused=refused)

    def _change(self, deed: Callable[[], None]) -> None:
        """Run an action under the lock; defer it if this thread already holds the lock."""
        # Append before locking: a nested call returns at once, and the outer one runs its action.
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
            # The store derives the opening from the probe's result itself: do not report it twice.
            self._spread(ours=not pass_.fence)
        if self.fleet is not None and pass_.fence:
            self.fleet.ended(pass_.fence, outcome)

    def _spread(self, *, ours: bool) -> None:
        """Queue the transitions for the observers, and local openings for the fleet.

        A breaker in metrics-only mode sends nothing to the fleet.
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
