"""User limits shared through a store: local deny cache, store check, fallback when it is unavailable.

Everything here is used under the lock of the throttle, except `PendingCheck.send`.
"""

from __future__ import annotations

import math
from asyncio import _get_running_loop as running_loop
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from autoglm_throttle.limiting.decisions import OK, TOO_LARGE, USER, deciding_limit, seconds_until
from autoglm_throttle.store.fallback import StoreFallback
from autoglm_throttle.store.health import HealthChange, HealthState, StoreHealth
from autoglm_throttle.store.protocol import VALUES, Answer, StoreCharge, StoreErrorKind, StoreStats
from autoglm_throttle.types import Decision, Demand, LimitStatus, StoreFailureMode, UserLimit

if TYPE_CHECKING:
    from autoglm_throttle.limiting.user_limits import LimitSets
    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore

# Errors that other users of the same server would meet, too; the others may be ours alone.
UNREACHABLE_ERRORS: Final = frozenset(
    {StoreErrorKind.TIMEOUT, StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST}
)

COSTS_AT_MOST: Final = 8  # Denials stored for one caller, each for another number of units

# Callers checked per insertion: more than one, so that the cache shrinks faster than it grows.
SWEPT: Final = 2

US: Final = 1e-6  # Seconds in a microsecond
Key = tuple[str, str, str, int]  # Set of limits, user, address, units: equal for equal checks
# Units of a request, end of its validity, and the decision with instants instead of waits.
_Denial = tuple[int, float, Decision]

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
    """User limits in a store that several processes share.

    ``text_of`` makes an identity text from a user name.
    """

    def __init__(
        self,
        sets: LimitSets,
        text_of: Callable[[str], str],
        store: RedisUserLimitStore,
        settings: StoreSettings,
        fallback: StoreFallback,
    ) -> None:
        self.store: RedisUserLimitStore = store
        self.store_health: StoreHealth = StoreHealth(settings.redis_failures, (settings.redis_probe_s,))
        self.changes: list[HealthChange] = []  # Changes of the store's state, for the log
        self.probe_due: bool = False  # Whether a caller with an event loop should probe the store
        # Called under the lock when the store is lost, for other users of the same server.
        self.on_store_lost: Callable[[float], object] = lambda _: None
        self._sets = sets
        self._text_of = text_of
        self.deny_cache: DenyCache = DenyCache(settings)
        self.fallback: StoreFallback = fallback
        # Whether an asyncio loop runs, in which alone the store's client works.
        self.is_usable: Callable[[], object] = running_loop

    def hit(self, demand: Demand, now: float) -> Decision | PendingCheck | None:
        """Decide without the store, or return a `PendingCheck` to send. None if no user limit applies."""
        limit_set = self._sets.of(demand)
        if limit_set is None:
            return None
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
            self.poll(now)
        return self.fallback.decide(demand, charges, health.cause or StoreErrorKind.UNREACHABLE, health, now)

    def give_back(self, demand: Demand, charged_at: float, now: float) -> bool:
        """Refund a local charge, without the store."""
        return self.fallback.limits.give_back(demand, charged_at, now)

    def poll(self, now: float) -> None:
        """Request a probe if one is due."""
        if self.store_health.try_begin_probe(now):
            self.probe_due = True

    def report_failure(self, now: float) -> None:
        """Decide locally until a probe ends, after another user's timeout. Idempotent."""
        if self.store_health.report_failure(now):
            self.probe_due = True

    def record_change(self, change: HealthChange | None) -> None:
        """Record a change of the store's health; connections to a lost store are closed."""
        if change is None:
            return
        self.changes.append(change)
        if change.state is HealthState.DOWN:
            self.store.disconnect()
            if change.error_kind in UNREACHABLE_ERRORS:
                self.on_store_lost(change.at_s)

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
            decision = caller_decision(user, answer)
            record(user.kind, user.user, remaining_units(user.limits, decision), now)
            if len(charges) > 1:
                address = charges[1]
                of_address = caller_decision(address, answer[VALUES * len(user.limits) :])
                record(address.kind, address.user, remaining_units(address.limits, of_address), now)
                decision = combined(decision, of_address)
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
    decisions = [
        limit_decision(limit, *answer[at : at + 4]) for limit, at in zip(charge.limits, starts, strict=True)
    ]
    return deciding_limit(decisions, 0)


def limit_decision(limit: UserLimit, ok: int, remaining: int, retry_us: int, reset_us: int) -> Decision:
    """Return one limit's decision, from the first four of its `VALUES` in an answer."""
    name, most, window_s, reset_s = limit.name, limit.limit, limit.window_s, reset_us * US
    if ok:
        return Decision(True, OK, "", name, most, remaining, 0.0, reset_s, window_s)
    never = retry_us < 0
    reason, detail = (TOO_LARGE, f"too_large:{name}") if never else (USER, f"user:{name}")
    wait_s = math.inf if never else retry_us * US
    return Decision(False, reason, detail, name, most, remaining, wait_s, reset_s, window_s)


def combined(user: Decision, address: Decision) -> Decision:
    """Combine the decisions on a user and its address; of two rejections the longer one counts."""
    if not (user.allowed and address.allowed):
        return user if user.retry_after_s >= address.retry_after_s else address
    user.others += address.limits
    return user


def remaining_units(limits: Sequence[UserLimit], decision: Decision) -> tuple[int, ...]:
    """Return the remaining units of each limit, in their order, from a decision on one caller."""
    by_window = {state.window_s: state.remaining for state in decision.limits}
    return tuple(by_window[limit.window_s] for limit in limits)


class DenyCache:
    """Recent denials by the store that still hold.

    A denial carries the time at which it could end, counted from the sending of the check, so it ends here no
    later than in the store; charges of other requests can only delay that instant. It may end earlier by a
    refund, which `remove` handles for the same caller and process, or by a raised limit: other processes see
    both within ``refused_cache_s``. A request above the whole limit is never checked again.

    The oldest caller is evicted first: a denial holds for ``refused_cache_s`` at most, however often it is
    used, so no entry is worth keeping longer. A caller takes some 600 bytes.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.size: int = settings.refused_cache  # Most callers stored; 0 disables the cache
        self.recheck_after_s: float = settings.refused_cache_s
        self.hits: int = 0  # Requests rejected from this cache
        # Denials of each set of limits, user and address.
        self.callers: OrderedDict[tuple[str, str, str], tuple[_Denial, ...]] = OrderedDict()

    def find(self, key: Key, now: float) -> Decision | None:
        """Return the current denial of such a request; None: the store must be checked."""
        for units, valid_until_s, denial in self.callers.get(key[:3], ()):
            if units == key[3]:
                if now >= valid_until_s:
                    return None
                self.hits += 1
                return _moved(denial, seconds_until(denial.retry_after_s, now), -now)
        return None

    def put(self, key: Key, decision: Decision, sent_s: float, now: float) -> None:
        """Store a denial. The store's wait begins when the check was sent, or later.

        A denial without end is only stored if the request is too large.
        """
        # A request above the whole limit never fits, so its denial holds without end.
        too_large = decision.reason is TOO_LARGE
        free_s = math.inf if too_large else sent_s + decision.retry_after_s
        valid_until_s = free_s if too_large else min(free_s, now + self.recheck_after_s)
        if self.size <= 0 or valid_until_s <= now or (free_s == math.inf and not too_large):
            return
        caller, units = key[:3], key[3]
        others = [denial for denial in self.callers.pop(caller, ()) if denial[0] != units and denial[1] > now]
        self._sweep(now)
        denial = (units, valid_until_s, _moved(decision, free_s, sent_s))
        self.callers[caller] = (denial, *others[: COSTS_AT_MOST - 1])

    def remove(self, key: Key) -> None:
        """Remove a caller, with all units: units were refunded to it."""
        self.callers.pop(key[:3], None)

    def _sweep(self, now: float) -> None:
        """Evict expired callers among the oldest, and make space for one."""
        callers = self.callers
        for _ in range(min(SWEPT, len(callers))):
            caller, denials = next(iter(callers.items()))
            ends_s = max(valid_until_s for _, valid_until_s, _ in denials)
            if ends_s <= now:
                del callers[caller]
            elif ends_s == math.inf:
                callers.move_to_end(caller)
            else:
                break
        if len(callers) >= self.size:
            callers.popitem(last=False)


def _moved(decision: Decision, retry_after_s: float, by_s: float) -> Decision:
    """Return a copy that shares nothing with its source: with another wait, and resets moved by ``by_s``."""
    return Decision(
        False,
        decision.reason,
        decision.detail,
        decision.policy,
        decision.limit,
        decision.remaining,
        retry_after_s,
        max(0.0, decision.reset_after_s + by_s),
        decision.window_s,
        tuple([_shifted(state, by_s) for state in decision.others]) if decision.others else (),
    )


def _shifted(state: LimitStatus, by_s: float) -> LimitStatus:
    reset_s = max(0.0, state.reset_s + by_s)
    return LimitStatus(state.name, state.limit, state.window_s, state.remaining, reset_s)
