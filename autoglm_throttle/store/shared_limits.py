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
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import LogEvent
from autoglm_throttle.limiting.decisions import (
    Usage,
    Usages,
    decide,
    decision_of,
    fullest_first,
    rejection,
)
from autoglm_throttle.limiting.ticket import TicketCharges
from autoglm_throttle.limiting.token_limits import Reservation
from autoglm_throttle.limiting.user_limits import NO_LIMIT
from autoglm_throttle.limiting.user_slots import SlottedUserLimits
from autoglm_throttle.store.fallback import DenyCache, Key, StoreFallback
from autoglm_throttle.store.health import HealthState, StoreHealth
from autoglm_throttle.store.protocol import (
    VALUES,
    AnyCharge,
    StoreCharge,
    StoreErrorKind,
    StoreStats,
    WindowEntry,
)
from autoglm_throttle.types import Clock, Decision, Demand, SlotLimit, StoreFailureMode, TokenLimit, UserLimit

if TYPE_CHECKING:
    from autoglm_throttle.limiting.user_limits import LimitSet, LimitSets
    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.protocol import Answer
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
        self.sets: LimitSets = fallback.sets
        self._text_of = text_of
        self._lock = lock
        self._clock = clock
        # When the pending timer will have fired: the store is probed even without requests.
        self._timer_until_s = -math.inf
        self.deny_cache: DenyCache = DenyCache(settings)
        self.fallback: StoreFallback = fallback
        # Limits requests in progress where the store does not; None: nothing does.
        self.slots: SlottedUserLimits | None = None
        if isinstance(fallback.limits, SlottedUserLimits):
            self.slots = fallback.limits
        # The checks of the newest callers: one that comes again takes a quarter of the time to build it.
        self._checks: OrderedDict[Key, WindowEntry] = OrderedDict()
        # Whether an asyncio loop runs, in which alone the store's client works.
        self.is_usable: Callable[[], object] = running_loop
        store.listen(self._on_result)

    def hit(self, demand: Demand, now: float) -> Usages | Decision | WindowEntry:
        """Decide without the store, or return the check to send. Empty if no user limit applies."""
        sets = self.sets
        limit_set = sets.by_priority[demand.rank] if sets.plain else sets.of(demand)
        if limit_set is None and (self.slots is None or not demand.holds_slot):
            return NO_LIMIT
        units = 1 if demand.cost <= 1.0 else math.ceil(demand.cost)
        key = ("" if limit_set is None else limit_set.name, demand.user, demand.address, units)
        if self.deny_cache.callers:
            known = self.deny_cache.find(key, now)
            if known is not None:
                return known
        if self.slots is not None and not demand.holds_slot:
            key = (*key[:3], -units)
        entry = self._checks.get(key) or self._build_check(key, demand)
        if self.store_health.state is _UP and self.is_usable():
            return entry
        return self.decide_here(demand, entry, now)

    def decide_here(self, demand: Demand, check: WindowEntry, now: float) -> Decision:
        """Decide without the store, which is unavailable or cannot be used from here."""
        health, kind = self.store_health, StoreErrorKind.LOOP
        if health.state is not _UP:
            if self.is_usable():
                self.request_probe(now)
            kind = health.cause or StoreErrorKind.UNREACHABLE
        return self.fallback.decide(demand, check.charges, kind, health, now, check.tokens)

    def _build_check(self, key: Key, demand: Demand) -> WindowEntry:
        """Build the check of a caller, and keep it in place of the oldest one."""
        if len(self._checks) >= self.fallback.limits.max_users:
            self._checks.popitem(last=False)
        self._checks[key] = entry = self.store.protocol.build_check(self.charges_of(demand))
        return entry

    def charges_of(self, demand: Demand) -> list[AnyCharge]:
        """Return the charges of a demand under the user limits, then those of its slots."""
        limit_set, slots, charges = self.sets.of(demand), self.slots, list[AnyCharge]()
        if limit_set is not None:
            charges += self.charges(limit_set, demand.user, demand.address, max(1, math.ceil(demand.cost)))
        if slots is not None and demand.holds_slot:
            charges += self.charges(slots.slots, demand.user, demand.address, 1)
        return charges

    def charges(self, limit_set: LimitSet, user: str, address: str, units: int) -> list[AnyCharge]:
        """Return the charges of a caller under a set of limits."""
        charges: list[AnyCharge] = [StoreCharge(limit_set.name, limit_set.users, self._text_of(user), units)]
        if address:
            text = self._text_of(address)
            charges.append(StoreCharge(limit_set.address_name, limit_set.addresses, text, units))
        return charges

    def resolve(  # noqa: C901, PLR0912 - a call costs 1 %
        self, demand: Demand, charges: TicketCharges, answer: Answer | StoreErrorKind, now: float
    ) -> Usages | Decision:
        """Return the verdict of the store on a pending check: the same as that of the windows in memory."""
        check: WindowEntry = charges.pending_check
        if isinstance(answer, StoreErrorKind):
            health, tokens = self.store_health, check.tokens
            decision = self.fallback.decide(demand, check.charges, answer, health, now, tokens)
            if decision.allowed:  # and charged here alone
                charges.pending_check, charges.charged_s = None, now
                if tokens is not None:
                    charges.reservation = Reservation(demand, tokens, now)
            return decision
        record = self.fallback.last_known.record
        if self.deny_cache.callers and not any(answer[::VALUES]):
            # An earlier rejection of more units would name too early a time from now on.
            self.deny_cache.remove(_key_of(demand, check))
        # As below, without the loop.
        if len(answer) == VALUES and not answer[0] and check.tokens is None and self.slots is None:
            charges.answer = answer
            record(check.kind, check.user, (answer[1],), now)
            return ((check.limits[0], answer[1], answer[2] * US),)
        verdict: Usages | Decision = ()
        rest, rejecting = answer, check.charges[0]
        for charge in check.charges:
            size = VALUES * len(charge.limits)
            part, rest = rest[:size], rest[size:]
            if self.slots is not None and isinstance(charge.limits[0], SlotLimit):
                other = self.slots.verdict(charge.limits[0], is_full=part[0] != 0)
            else:
                record(charge.kind, charge.user, tuple(part[1::VALUES]), now)
                other = charge_verdict(charge, part)
            if isinstance(other, Decision):
                if isinstance(verdict, tuple) or other.retry_after_s > verdict.retry_after_s:
                    verdict, rejecting = other, charge  # of two rejections the longer one counts
            elif isinstance(verdict, tuple):
                verdict += other
        if isinstance(verdict, Decision):
            # Slots may be free at any time, and a lack of tokens says nothing about a request of fewer.
            if not isinstance(rejecting.limits[0], TokenLimit | SlotLimit):
                self.deny_cache.put(_key_of(demand, check), verdict, charges.charged_s, now)
            return verdict
        charges.answer = answer
        limits = self.fallback.tokens
        if check.tokens is None or limits is None:
            return verdict
        charges.reservation = limits.reservation(demand, check.tokens, now, (check, answer))
        return decision_of(fullest_first(verdict))

    def refund(self, demand: Demand, charges: TicketCharges, now: float) -> None:
        """Refund the admission of a check, by the store or by this process alone. Idempotent."""
        answer, charges.answer = charges.answer, None
        check: WindowEntry | None = charges.pending_check
        if check is None:
            self.give_back(demand, charges.charged_s, now)
        elif answer is not None:
            self.deny_cache.remove(_key_of(demand, check))
            if check.tokens is not None:  # they are given back with their reservation
                own = [each for each in check.charges if not isinstance(each.limits[0], TokenLimit)]
                if not own:
                    return
                check, answer = self.store.protocol.part_of(check, answer, own)
            self.store.give_back(check, answer)

    def release(self, demand: Demand, charges: object, held_s: float) -> None:
        """Free the slots of an admitted request: those of the store with its next call."""
        slots = self.slots
        if slots is None:
            return
        if not isinstance(charges, TicketCharges) or charges.pending_check is None:
            slots.release(demand, charges, held_s)
            return
        slots.record(held_s)
        own = self.charges(slots.slots, demand.user, demand.address, 1)
        part = self.store.protocol.part_of(charges.pending_check, charges.answer, own)
        self.store.give_back(*part)

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


def _key_of(demand: Demand, check: WindowEntry) -> Key:
    user = check.charges[0]
    return user.kind, demand.user, demand.address, user.units


def charge_verdict(charge: AnyCharge, answer: Answer) -> Usages | Decision:
    """Return the verdict on one caller: the rejection with the longest wait, else the usages."""
    starts = range(0, len(answer), VALUES)
    limits = zip(charge.limits, starts, strict=True)
    return decide([limit_verdict(limit, *answer[at : at + VALUES - 1]) for limit, at in limits], 0)


def limit_verdict(limit: UserLimit, wait_us: int, remaining: int, reset_us: int) -> Usage | Decision:
    """Return the verdict on one limit, from the first three of its `VALUES` in an answer."""
    reset_s = reset_us * US
    if not wait_us:
        return limit, remaining, reset_s
    return rejection(limit, limit.limit - remaining, reset_s, math.inf if wait_us < 0 else wait_us * US)


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
