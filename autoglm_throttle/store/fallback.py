"""Decisions of one process alone: by recent denials of the shared store, or because it gives none."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from autoglm_throttle.limiting.decisions import TOO_LARGE, decision_of, seconds_until
from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.limiting.user_slots import SlottedUserLimits
from autoglm_throttle.store.health import HealthState, StoreHealth
from autoglm_throttle.store.protocol import AnyCharge, StoreErrorKind
from autoglm_throttle.types import (
    EXACT_AT_MOST,
    Decision,
    LimitStatus,
    Reason,
    StoreFailureMode,
    TokenLimit,
    UserLimit,
)

if TYPE_CHECKING:
    from autoglm_throttle.limiting.token_limits import TokenLimits
    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.types import Demand, TokenCost

COSTS_AT_MOST: Final = 8  # Denials stored for one caller, each for another number of units

# Callers checked per insertion: more than one, so that the cache shrinks faster than it grows.
SWEPT: Final = 2

Key = tuple[str, str, str, int]  # Set of limits, user, address, units: equal for equal checks
# Units of a request, end of its validity, and the decision with instants instead of waits.
_Denial = tuple[int, float, Decision]


class StoreFallback:
    """Decides by the failure mode: by the share of one of ``processes()``, always yes, or always no."""

    def __init__(
        self, sets: LimitSets, settings: StoreSettings, limits: UserLimits, processes: Callable[[], int]
    ) -> None:
        # Units left at the store's last answers.
        self.last_known: LastKnownRemaining = LastKnownRemaining(limits.max_users)
        self.on_error: StoreFailureMode = settings.redis_on_error
        self.processes: Callable[[], int] = processes
        self.counts: dict[StoreErrorKind, int] = dict.fromkeys(StoreErrorKind, 0)  # Decisions, by cause
        self.limits: UserLimits = limits  # Units counted here
        self.sets: LimitSets = sets
        self.tokens: TokenLimits | None = None  # Tokens counted here, if they are limited
        self._shared_by = 0

    def decide(
        self,
        demand: Demand,
        charges: Sequence[AnyCharge],
        kind: StoreErrorKind,
        health: StoreHealth,
        now: float,
        tokens: TokenCost | None = None,
    ) -> Decision:
        """Decide on a demand and its charges, because of an error of the store; ``tokens`` are reserved."""
        self.counts[kind] += 1
        if self.on_error is StoreFailureMode.ALLOW:
            return Decision(True, Reason.OK, f"store:{kind}")
        if self.on_error is StoreFailureMode.DENY:
            answers = health.state is HealthState.UP
            wait = 0.0 if answers else max(0.0, health.next_probe_s - now)
            return Decision(False, Reason.STORE, f"store:{kind}", "store", math.inf, 0.0, wait, wait)
        limits = self._fair_limits()
        # Units counted here reduce the last known rest, as the store does not know them.
        parts = {
            c.kind: self.last_known.seed(c.kind, c.user, c.limits, self._shared_by, now) for c in charges
        }
        if tokens is not None and self.tokens is not None:
            return self.tokens.reserve(demand, tokens, now, parts)
        return decision_of(limits.hit_units(demand, max(1, math.ceil(demand.cost)), now, parts))

    def _fair_limits(self) -> UserLimits:
        """Return the local windows. When the share of this process changes, counted units stay."""
        processes = max(1, self.processes())
        if processes != self._shared_by:
            self._shared_by = processes
            share = partial(fair_share, processes=processes)
            self.limits.resize(self.sets.map(share))
            if isinstance(self.limits, SlottedUserLimits):
                self.limits.processes = processes
            if self.tokens is not None:
                self.tokens.resize(share)
        return self.limits


class LastKnownRemaining:
    """Units left of each user at the store's newest answers.

    A user that had used up most of a limit begins an outage with its share of the rest. Answers are stored in
    two halves; when the young half is full it replaces the old one. So the last ``size / 2`` users are always
    present, at most ``size``, and a record is one dictionary write. With one limit a user takes some 220
    bytes, and 30 to 60 more for each further limit.
    """

    def __init__(self, size: int) -> None:
        self.size: int = size  # Most users stored, of all kinds together; >= 2
        self._young: dict[str, tuple[float, ...]] = {}
        self._old: dict[str, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def record(self, kind: str, user: str, remaining: tuple[int, ...], now: float) -> None:
        """Store the units left of each limit of the set ``kind``, for the identity text ``user``."""
        young = self._young
        # All identity texts are equally long, so that a user and a kind join without ambiguity.
        young[user + kind] = (now, *remaining)
        # Two halves instead of an order of use: a list of uses would cost half as much memory again.
        if len(young) >= self.size // 2:
            self._old, self._young = young, {}

    def seed(
        self, kind: str, user: str, limits: tuple[UserLimit, ...], processes: int, now: float
    ) -> tuple[int, ...] | None:
        """Return the units that one of several processes may give a user: its part of the rest, rounded down.

        A window that has passed since then is whole again. None: the user was not recorded within any.
        """
        key = user + kind
        entry = self._young.get(key) or self._old.get(key)
        if entry is None:
            return None
        age_s = now - entry[0]
        if age_s >= max(limit.window_s for limit in limits):
            return None
        return tuple(
            int(left) // processes if age_s < limit.window_s else -(-limit.limit // processes)
            for limit, left in zip(limits, entry[1:], strict=True)
        )


@dataclass(frozen=True, slots=True)
class ReducedLimit(UserLimit):
    """The part of a user limit that one process applies alone."""

    full_limit: int  # Units of the whole limit, which decide on its layout

    @property
    def exact(self) -> bool:
        """Whether the whole limit is exact: a share keeps its layout with any number of processes."""
        return self.full_limit <= EXACT_AT_MOST


def fair_share(limits: tuple[UserLimit, ...], processes: int) -> tuple[UserLimit, ...]:
    """Return the share of each of several processes; together they stay below limit + processes."""
    if processes <= 1:
        return limits
    return tuple(_share(limit, -(-limit.limit // processes)) for limit in limits)


def _share(limit: UserLimit, units: int) -> UserLimit:
    if isinstance(limit, TokenLimit):
        return replace(limit, limit=units)
    return ReducedLimit(limit.name, units, limit.window_s, limit.limit)


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
        """Store a denial, whose wait begins with the sending or later; one without end only if too large."""
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
