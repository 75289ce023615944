"""User limits shared through a store: local deny cache, store check, fallback when it is unavailable.

The lock of the throttle guards them. Without it a check is sent, and the store is maintained: results are
recorded, changes logged, and probes sent in the running event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from asyncio import _get_running_loop as running_loop  # a call of C
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import LogEvent
from autoglm_throttle.limiting.decisions import OK, TOO_LARGE, USER, Usage, Usages, decide, decision_of
from autoglm_throttle.limiting.user_limits import NO_LIMIT
from autoglm_throttle.store.fallback import DenyCache, Key, StoreFallback
from autoglm_throttle.store.health import HealthState, StoreHealth
from autoglm_throttle.store.protocol import VALUES, Answer, StoreCharge, StoreErrorKind, StoreStats
from autoglm_throttle.types import Clock, Decision, Demand, StoreFailureMode, UserLimit

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore

# Errors that other users of the same server would meet, too; the others may be ours alone.
UNREACHABLE_ERRORS: Final = {StoreErrorKind.TIMEOUT, StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST}

T = TypeVar("T")

POLL_MIN_S: Final = 0.05
# Seconds between two checks whether a probe is due: a hung probe is abandoned after some seconds.
POLL_MAX_S: Final = 5.0

# Name of a thread that repeats work which its event loop did not finish.
THREAD: Final = "autoglm-throttle-store"

_MEANWHILE: Final = {
    StoreFailureMode.LOCAL: "each process enforces {share} of the user limits until it recovers",
    StoreFailureMode.ALLOW: "user limits are not enforced until it recovers",
    StoreFailureMode.DENY: "requests under a user limit are rejected until it recovers",
}

_running: set[asyncio.Task[None]] = set()  # Strong references to tasks: a loop holds its tasks only weakly

US: Final = 1e-6  # Seconds in a microsecond
_UP = HealthState.UP


@dataclass(frozen=True, slots=True)
class StoreView:
    """The shared store at one moment. Counters only grow."""

    kind: str
    state: HealthState
    cause: StoreErrorKind | None  # Cause of the outage; None while the store answers
    since_s: float  # Monotonic time at which it entered this state
    on_error: StoreFailureMode
    processes: int  # Processes that share the limits, as far as is known here
    fallbacks: dict[StoreErrorKind, int]  # Decisions without the store, by cause
    deny_cache_hits: int  # Denials from the local cache, without a check of the store
    stats: StoreStats


class SharedUserLimits:
    """User limits that several processes share; ``text_of`` makes an identity text from a user name."""

    def __init__(
        self,
        text_of: Callable[[str], str],
        store: RedisUserLimitStore,
        settings: StoreSettings,
        fallback: StoreFallback,
        lock: SerialLock,
        clock: Clock,
    ) -> None:
        self.store: RedisUserLimitStore = store
        self.store_health: StoreHealth = StoreHealth(settings.redis_failures, (settings.redis_probe_s,))
        self.events: list[LogEvent] = []  # Losses and recoveries of the store, to be written without the lock
        self.probe_due: bool = False  # Whether a caller with an event loop should probe the store
        # Called under the lock when the store is lost, for other users of the same server.
        self.on_store_lost: Callable[[float], object] = lambda _: None
        self._sets = fallback.sets
        self._text_of = text_of
        self._lock = lock
        self._clock = clock
        # When the pending timer will have fired: the store is probed even without requests.
        self._timer_until_s = -math.inf
        self.deny_cache: DenyCache = DenyCache(settings)
        self.fallback: StoreFallback = fallback
        # Whether an asyncio loop runs, in which alone the store's client works.
        self.is_usable: Callable[[], object] = running_loop
        store.listen(self._on_result)

    def hit(self, demand: Demand, now: float) -> Usages | Decision | PendingCheck:
        """Decide without the store, or return a `PendingCheck` to send. Empty if no user limit applies."""
        limit_set = self._sets.of(demand)
        if limit_set is None:
            return NO_LIMIT
        units = 1 if demand.cost <= 1.0 else math.ceil(demand.cost)
        user = self._text_of(demand.user)
        address = self._text_of(demand.address) if demand.address else ""
        name = limit_set.name
        key = (name, user, address, units)
        if key[:3] in self.deny_cache.callers:
            known = self.deny_cache.find(key, now)
            if known is not None:
                return known
        charges: tuple[StoreCharge, ...] = (StoreCharge(name, limit_set.users, user, units),)
        if address:
            kind = "address" if name == "user" else f"{name}-address"
            charges = (*charges, StoreCharge(kind, limit_set.addresses, address, units))
        health, usable = self.store_health, self.is_usable()
        if health.state is _UP:
            if usable:
                return PendingCheck(self, demand, key, charges, now, partial(self.store.charge, charges))
            return self.fallback.decide(demand, charges, StoreErrorKind.LOOP, health, now)
        if usable:
            self.request_probe(now)
        return self.fallback.decide(demand, charges, health.cause or StoreErrorKind.UNREACHABLE, health, now)

    def give_back(self, demand: Demand, charged_at: float, now: float) -> bool:
        """Refund a local charge, without the store."""
        return self.fallback.limits.give_back(demand, charged_at, now)

    def request_probe(self, now: float) -> None:
        """Request a probe if one is due."""
        if self.store_health.try_begin_probe(now):
            self.probe_due = True

    def report_failure(self, now: float) -> None:
        """Decide locally until a probe ends, after another user's timeout. Idempotent."""
        if self.store_health.report_failure(now):
            self.probe_due = True

    def record_change(self, state: HealthState | None, now: float) -> None:
        """Record a loss or a recovery of the store; connections to a lost store are closed."""
        if state is None:
            return
        self.events.append(store_changed(self.view(), self.store_health.lasted_s, self.store.last_error))
        if state is HealthState.DOWN:
            self.store.disconnect()
            if self.store_health.cause in UNREACHABLE_ERRORS:
                self.on_store_lost(now)

    def view(self) -> StoreView:
        """Return the state of the store."""
        store_health, fallback = self.store_health, self.fallback
        return StoreView(
            kind=self.store.kind,
            state=store_health.state,
            cause=store_health.cause,
            since_s=store_health.since_s,
            on_error=fallback.on_error,
            processes=fallback.processes(),
            fallbacks=fallback.counts.copy(),
            deny_cache_hits=self.deny_cache.hits,
            stats=self.store.stats(),
        )

    @property
    def users(self) -> int:
        """Users counted here during outages of the store."""
        return self.fallback.limits.users

    @property
    def overflowed(self) -> int:
        """Decisions taken on a shared log because the table here was full of exhausted users."""
        return self.fallback.limits.overflowed

    def sweep(self, now: float, users: int) -> None:
        """Evict idle users among the next ``users`` of each table."""
        self.fallback.limits.sweep(now, users)

    # Maintenance, without the lock

    def connect(self) -> None:
        """Connect before the first decision; without a running event loop, the first decision connects."""
        begin(self.store.probe, self._on_result)

    def unsupported_loop(self) -> str:
        """Return why the store cannot be used from the running event loop; empty if it can."""
        return "" if running_loop() else "REDIS_URL requires asyncio; this event loop is not asyncio"

    def poll(self) -> None:
        """Write pending log events, and start a probe if one is due; without the lock."""
        probes = self.probe_due and running_loop() is not None
        waits = self.store_health.state is not HealthState.UP and self._clock() >= self._timer_until_s
        if not (probes or self.events or waits):
            return
        with self._lock:
            if probes:  # otherwise it stays due until a caller has an event loop
                probes, self.probe_due = self.probe_due, False
            events, self.events = self.events, []
        for event in events:
            event.write()
        if waits:
            self._schedule_poll()
        if probes:
            begin(self.store.probe, self._on_probe_result, retry_in_thread=True)

    def _schedule_poll(self) -> None:
        """Set the timer for the next probe, in the running loop, without holding this object."""
        loop, now = running_loop(), self._clock()
        if loop is not None:
            wait = min(max(self.store_health.next_probe_s - now, POLL_MIN_S), POLL_MAX_S)
            loop.call_later(wait, weak_method(self._on_timer))
            self._timer_until_s = now + wait + POLL_MAX_S  # the loop of the timer may end before it fires

    def _on_timer(self) -> None:
        self._timer_until_s = -math.inf
        with self._lock:
            self.request_probe(self._clock())
        self.poll()

    def _on_result(self, error: StoreErrorKind | None) -> None:
        """Record the result of a round trip, in its event loop."""
        if error is None and self.store_health.cause is None:  # up, without a failure before: nothing changes
            return
        with self._lock:
            now = self._clock()
            self.record_change(self.store_health.record_result(error, now), now)
        self.poll()

    def _on_probe_result(self, error: StoreErrorKind | None) -> None:
        with self._lock:
            now = self._clock()
            self.record_change(self.store_health.record_probe(error, now), now)
        self.poll()


@dataclass(slots=True, eq=False)
class PendingCheck:
    """One request that waits for the answer of the store."""

    limits: SharedUserLimits
    demand: Demand
    key: Key
    charges: tuple[StoreCharge, ...]
    sent_s: float
    # Sends the check, without the lock; it ends before the deadline, with or without an answer.
    send: Callable[[], Awaitable[Answer | StoreErrorKind]]
    answer: Answer | None = None  # The answer of an admission, for the refund
    charged_s: float | None = None  # Time at which this process alone has charged it
    allowed: Literal[False] = False

    def resolve(self, answer: Answer | StoreErrorKind, now: float) -> Decision:
        """Return the decision, under the lock: the same as that of the windows in memory."""
        limits, charges = self.limits, self.charges
        if isinstance(answer, StoreErrorKind):
            decision = limits.fallback.decide(self.demand, charges, answer, limits.store_health, now)
            if decision.allowed:
                self.charged_s = now
            return decision
        record, user = limits.fallback.last_known.record, charges[0]
        if len(answer) == VALUES:
            ok, remaining, retry_us, reset_us, _ = answer
            record(user.kind, user.user, (remaining,), now)
            decision = limit_decision(user.limits[0], ok, remaining, retry_us, reset_us)
        else:
            size = VALUES * len(user.limits)
            record(user.kind, user.user, tuple(answer[1:size:VALUES]), now)
            decision = caller_decision(user, answer)
            if len(charges) > 1:
                address = charges[1]
                record(address.kind, address.user, tuple(answer[size + 1 :: VALUES]), now)
                other = caller_decision(address, answer[size:])
                if decision.allowed and other.allowed:
                    decision.others += other.limits
                elif other.retry_after_s > decision.retry_after_s:
                    decision = other  # of two rejections the longer one counts
        if decision.allowed:
            self.answer = answer
        else:
            limits.deny_cache.put(self.key, decision, self.sent_s, now)
        return decision

    def undo(self, now: float) -> None:
        """Refund an admission, under the lock. Idempotent."""
        answer, self.answer = self.answer, None
        charged_s, self.charged_s = self.charged_s, None
        if answer is not None:
            self.limits.deny_cache.remove(self.key)
            self.limits.store.give_back(self.charges, answer)
        elif charged_s is not None:
            self.limits.give_back(self.demand, charged_s, now)


def caller_decision(charge: StoreCharge, answer: Answer) -> Decision:
    """Return one caller's decision: the rejection with the longest wait, else the fullest limit."""
    starts = range(0, VALUES * len(charge.limits), VALUES)
    verdicts: list[Usage | Decision] = []
    for limit, at in zip(charge.limits, starts, strict=True):
        decision = limit_decision(limit, *answer[at : at + 4])
        verdicts.append((limit, answer[at + 1], decision.reset_after_s) if decision.allowed else decision)
    return decision_of(decide(verdicts, 0))


def limit_decision(limit: UserLimit, ok: int, remaining: int, retry_us: int, reset_us: int) -> Decision:
    """Return one limit's decision, from the first four of its `VALUES` in an answer."""
    name, most, window_s, reset_s = limit.name, limit.limit, limit.window_s, reset_us * US
    if ok:
        return Decision(True, OK, "", name, most, remaining, 0.0, reset_s, window_s)
    never = retry_us < 0
    reason, detail = (TOO_LARGE, f"too_large:{name}") if never else (USER, f"user:{name}")
    wait_s = math.inf if never else retry_us * US
    return Decision(False, reason, detail, name, most, remaining, wait_s, reset_s, window_s)


def store_changed(view: StoreView, lasted_s: float, error: str) -> LogEvent:
    """Build the event of a shared store that was lost or has recovered; the state before lasted so long."""
    if view.state is HealthState.UP:
        text = f"{view.kind} answers again after {lasted_s:.1f} s; user limits are shared again"
        return LogEvent("store_recovered", logging.INFO, text, {"store": view.kind, "down_s": lasted_s})
    error_kind = str(view.cause)
    because = f" ({error})" if error else ""
    meanwhile = _MEANWHILE[view.on_error].format(share=f"1/{view.processes}")
    keys: dict[str, object] = {"store": view.kind, "reason": error_kind, "on_error": view.on_error.value}
    text = f"{view.kind} is unavailable: {error_kind}{because}; {meanwhile}"
    return LogEvent("store_lost", logging.WARNING, text, keys)


def begin(
    work: Callable[[], Awaitable[T]], done: Callable[[T], None], *, retry_in_thread: bool = False
) -> bool:
    """Start work in the running asyncio loop and hand its result to ``done``; False without a loop.

    If the loop ends before, the work is cancelled, and may be repeated in a thread: where each request has a
    loop of its own, no loop lives long enough for background work.
    """
    loop = running_loop()
    if loop is None:
        return False

    async def run() -> None:
        done(await work())

    def ended(task: asyncio.Task[None]) -> None:
        _running.discard(task)
        if retry_in_thread and task.cancelled():
            with contextlib.suppress(RuntimeError):  # the interpreter ends, too
                threading.Thread(target=lambda: asyncio.run(run()), name=THREAD, daemon=True).start()

    task = loop.create_task(run())
    _running.add(task)
    task.add_done_callback(ended)
    return True
