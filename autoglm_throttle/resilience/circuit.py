"""One guard of one process: its breaker, the lock round it, its clock, its observers, and its fleet."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

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
from autoglm_throttle.resilience.courier import Courier
from autoglm_throttle.resilience.judge import Judge, timed
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.store import Ask, BreakerStore, Lease, Remote

_log = logging.getLogger("autoglm_throttle")

TEXT_AT_MOST: Final = 200
"""Characters of a failure that are kept: enough for a cause, too little for a body."""

FAULTS_EVERY_S: Final = 10.0
"""Seconds between two log lines on one classifier that raises: as for every repeated fault of this library."""


class Serving(Protocol):
    """What answers in place of a guarded function, or calls it."""

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Answer one call of a plain function."""
        ...

    async def call_async(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401
        """Answer one call of a coroutine function."""
        ...


def _nobody(_: Sequence[Transition]) -> None:
    """No observer."""


def failure_text(error: BaseException) -> str:
    """Type and text of an exception, never the exception itself: its traceback would keep frames alive."""
    try:
        text = str(error)[:TEXT_AT_MOST]
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Circuit:
    """One guard of one process.

    The breaker is changed under the lock alone, and nothing is called or awaited under it. The lock is
    re-entrant: the garbage collector, or a signal handler, may run under it in the same thread and end an
    abandoned stream; such a change waits until the one at hand is done.

    Args:
        name: of the guard.
        rules: its figures.
        clock: monotonic seconds.
        judge: what counts as what.
        store: the state that a fleet shares; None: this process goes by itself.
        told: is told each change of the state, in order, after the lock.
    """

    __slots__ = (
        *("_cold", "_courier", "_fault_s", "_inside", "_late", "_leases", "_lock", "_served", "_shed"),
        *("_told", "breaker", "clock", "judge", "name", "rules", "store", "straight"),
    )

    def __init__(  # noqa: PLR0913 - its parts
        self,
        name: str,
        rules: Rules,
        *,
        clock: Clock = time.monotonic,
        judge: Judge | None = None,
        store: BreakerStore | None = None,
        told: Callable[[Sequence[Transition]], None] = _nobody,
    ) -> None:
        self.name: str = name
        self.rules: Rules = rules
        self.clock: Clock = clock
        self.judge: Judge = judge or Judge()
        self.store: BreakerStore | None = store
        self.breaker: Breaker = Breaker(name, rules, clock())
        self.straight: bool = False
        """Whether a call may take the short way: no time to read, no value to judge, nobody who might answer
        in its place, and no first word of the fleet to wait for."""
        self._told = told
        self._served: Serving | None = None
        self._shed: Callable[[], Refusal | None] | None = None
        self._cold = store is not None
        self._leases: dict[int, Lease] = {}
        self._fault_s = float("-inf")
        self._late: deque[Callable[[], None]] = deque()
        self._renew_locks()
        self._straighten()
        if store is not None:
            store.watch(name, self._adopt)

    @property
    def served(self) -> Serving | None:
        """What answers decorated functions in the dependency's place; None: nothing does."""
        return self._served

    @served.setter
    def served(self, served: Serving | None) -> None:
        self._served = served
        self._straighten()

    @property
    def shed(self) -> Callable[[], Refusal | None] | None:
        """Asked by the faces that know no fallback, whether the service has no load to spare for this."""
        return self._shed

    @shed.setter
    def shed(self, shed: Callable[[], Refusal | None] | None) -> None:
        self._shed = shed
        self._straighten()

    def _straighten(self) -> None:
        rules = self.rules
        told = (rules.slow_call_s, rules.timeout_s, self.judge.classify, self._served, self._shed)
        self.straight = not self._cold and all(each is None for each in told)

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

        Waits only for the fleet's store, at most its deadline: for the first state of a guard, and for a trial.
        """
        store = self.store
        if store is None:
            return self._ask(leased=False)
        if self._cold:
            self._meet(store.known(self.name))
        answer = self._ask(leased=store.up)
        if isinstance(answer, Refusal) and answer.lease_wanted:
            return self._answered(store.acquire(self.name, self._asking()))
        return answer

    async def enter_async(self) -> Pass | Refusal:
        """The same without blocking the event loop."""
        store = self.store
        if store is None:
            return self._ask(leased=False)
        if self._cold:
            self._meet(await store.known_async(self.name))
        answer = self._ask(leased=store.up)
        if isinstance(answer, Refusal) and answer.lease_wanted:
            return self._answered(await store.acquire_async(self.name, self._asking()))
        return answer

    def leave(self, pass_: Pass, outcome: Outcome, error: BaseException | str | None = None) -> None:
        """Record how a call ended. Never waits and never raises.

        Args:
            pass_: what let it through; once for each call.
            outcome: how it ended.
            error: what was raised, or the failure in words, for ``last_failure``.
        """
        core = self.breaker
        if outcome is Outcome.SUCCESS and core.clean and core.fast is pass_:
            return
        note = ""
        if outcome is Outcome.FAILURE and error is not None:
            note = error[:TEXT_AT_MOST] if isinstance(error, str) else failure_text(error)
        self._change(partial(self._record, pass_, outcome, note, self.clock()))

    def settle(self, pass_: Pass, seen: object, *, raised: bool, elapsed_s: float = 0.0) -> Outcome:
        """Judge what a call gave and record it.

        Args:
            pass_: what let it through.
            seen: the returned value or the exception.
            raised: whether it was raised.
            elapsed_s: seconds that the call took.
        """
        outcome = Outcome.NEUTRAL
        try:
            outcome = timed(self.outcome_of(seen, raised=raised), elapsed_s, self.rules.slow_call_s)
        finally:
            self.leave(pass_, outcome, seen if raised and isinstance(seen, BaseException) else None)
        return outcome

    def begin(self) -> float | None:
        """The time, if it matters how long the call takes."""
        return None if self.rules.slow_call_s is None else self.clock()

    def since(self, begun_s: float | None) -> float:
        """Seconds since `begin`; 0 where they do not matter."""
        return 0.0 if begun_s is None else self.clock() - begun_s

    def timed(self, elapsed_s: float) -> Outcome:
        """The outcome of a call that came to its end, by the time it took."""
        return timed(Outcome.SUCCESS, elapsed_s, self.rules.slow_call_s)

    def outcome_of(self, seen: object, *, raised: bool, otherwise: Outcome = Outcome.SUCCESS) -> Outcome:
        """Judge what a call gave. A classifier that raises is logged and counted; its answer is neutral.

        Args:
            seen: the returned value or the exception.
            raised: whether it was raised.
            otherwise: what a returned value is where the user's own word is silent.
        """
        try:
            return self.judge.judge(seen, raised=raised, otherwise=otherwise)
        except Exception:
            with self._lock:
                self.breaker.classifier_errors += 1
                now = self.clock()
                due = now - self._fault_s >= FAULTS_EVERY_S
                self._fault_s = now if due else self._fault_s
            if due:
                _log.exception(
                    "the classifier of %s failed; what it was asked about counts as neutral", self.name
                )
            return Outcome.NEUTRAL

    def opened_for(self, retry_after_s: float) -> None:
        """Open for as long as the dependency itself says.

        Args:
            retry_after_s: seconds from now.
        """
        deed = partial(self.breaker.open_for, retry_after_s, Cause.RETRY_AFTER)
        self._change(partial(self._turn, deed, ours=True))

    def force_open(self) -> None:
        """Let nothing through until an operator says otherwise."""
        self._operate(self.breaker.force_open, State.FORCED_OPEN)

    def disable(self) -> None:
        """Let everything through and count nothing until an operator says otherwise."""
        self._operate(self.breaker.disable, State.DISABLED)

    def metrics_only(self) -> None:
        """Let everything through and count what would be refused; in this process alone."""
        self._change(partial(self._turn, self.breaker.metrics_only, ours=False))

    def reset(self) -> None:
        """Close, and forget what was."""
        self._operate(self.breaker.reset, State.CLOSED)

    def refuses(self) -> Refusal | None:
        """What a call would be refused with now; free of effects."""
        shed = None if self._shed is None else self._shed()
        with self._lock:
            return shed or self.breaker.refuses(self.clock())

    def state(self) -> State:
        """What a caller sees now; free of effects."""
        with self._lock:
            return self.breaker.state(self.clock())

    def view(self) -> BreakerView:
        """The breaker now; free of effects."""
        with self._lock:
            return self.breaker.view(self.clock())

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost with it: closed as it began, no failure in mind, nothing under way."""
        view = self.view()
        return (
            view.machine is State.CLOSED
            and not (view.streak or view.window_failures or view.window_slow or view.in_flight)
            and view.metrics_only is (self.rules.mode is Mode.METRICS_ONLY)
        )

    def forget(self) -> None:
        """Begin anew in a fork: the parent's threads are gone, and with them the calls that they made."""
        self._renew_locks()
        self._late.clear()
        self._leases.clear()
        self.breaker.forget(self.clock())
        self._cold = self.store is not None
        self._straighten()

    def _renew_locks(self) -> None:
        self._lock = threading.RLock()
        self._inside = False
        self._courier = Courier(self.name)

    def _ask(self, *, leased: bool) -> Pass | Refusal:
        core = self.breaker
        now = self.clock()
        with self._lock:
            if self._inside:
                return Refusal(self.name, State.HALF_OPEN, Cause.IN_FLIGHT, 0.0)
            self._inside = True
            try:
                generation = core.generation
                core.leased = leased
                answer = core.allow(now)
                if core.generation != generation:
                    self._spread(ours=True)
            finally:
                self._inside = False
            if self._late:
                self._catch_up()
        if self._courier.laden:
            self._courier.deliver()
        return answer

    def _change(self, deed: Callable[[], None]) -> None:
        """Do something to the breaker under the lock; if this thread is under it already, as soon as it can."""
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

    def _turn(self, deed: Callable[[float], None], *, ours: bool) -> None:
        generation = self.breaker.generation
        deed(self.clock())
        if self.breaker.generation != generation:
            self._spread(ours=ours)

    def _spread(self, *, ours: bool) -> None:
        """Have the changes told: to the observers, and an opening that the fleet cannot know to the fleet."""
        changes = self.breaker.drain()
        if not changes:
            return
        self._courier.take(partial(self._told, changes))
        store = self.store
        if store is None or not ours:
            return
        for change in changes:
            if change.after is State.OPEN:
                self._courier.take(
                    partial(store.opened, self.name, change.retry_after_s, change.rounds, change.cause)
                )

    def _record(self, pass_: Pass, outcome: Outcome, note: str, now: float) -> None:
        core = self.breaker
        if note:
            core.fail_note(note)
        generation = core.generation
        core.record(pass_, outcome, now)
        if core.generation != generation:
            self._spread(ours=not pass_.fence)
        lease = self._leases.pop(pass_.fence, None)
        if lease is not None:
            self._finish(lease, outcome)

    def _operate(self, deed: Callable[[float], None], state: State) -> None:
        self._change(partial(self._turn, deed, ours=False))
        if self.store is not None:
            self._courier.take(partial(self.store.operated, self.name, state))
            self._courier.deliver()

    def _asking(self) -> Ask:
        rules = self.rules
        return Ask(
            half_open_max=rules.half_open_max,
            need=rules.need,
            threshold=rules.success_threshold is not None,
            lease_s=rules.lease_s,
        )

    def _meet(self, remote: Remote | None) -> None:
        if remote is not None:
            self._adopt(remote)
        self._cold = False
        self._straighten()

    def _adopt(self, remote: Remote) -> None:
        self._change(partial(self._turn, partial(self.breaker.adopt, remote), ours=False))

    def _answered(self, reply: Lease | Remote | None) -> Pass | Refusal:
        """Go by the fleet's answer to who asked for a trial.

        Args:
            reply: the lease, the state that stands against it, or None where the store is away.
        """
        if isinstance(reply, Lease):
            answers: list[Pass | Refusal] = []
            self._change(partial(self._grant, reply, answers))
            return answers[0]
        if reply is not None:
            self._adopt(reply)
        return self._ask(leased=reply is not None)

    def _grant(self, lease: Lease, answers: list[Pass | Refusal]) -> None:
        core = self.breaker
        generation = core.generation
        answer = core.grant(lease, self.clock())
        answers.append(answer)
        if isinstance(answer, Pass) and answer.fence:
            self._leases[lease.fence] = lease
        else:
            self._finish(lease, Outcome.NEUTRAL)
        if core.generation != generation:
            self._spread(ours=False)

    def _finish(self, lease: Lease, outcome: Outcome) -> None:
        store = self.store
        if store is not None:
            wait_s = self.rules.wait_s(lease.rounds + 1)
            self._courier.take(partial(store.finished, self.name, lease, outcome, self.rules.need, wait_s))
