"""Local cache of recent denials by the store.

A denial carries the time at which it could end. Charges of other requests can only delay that instant. Until
then the same request is rejected here, with the rest of its wait. The wait is counted from the sending of
the check, so it ends here no later than in the store.

It may end earlier in the store for two reasons. First, units may be refunded. `DenyCache.remove` handles
refunds to the same caller by this process. Refunds by another process, or to another user of the
address, take effect within ``refused_cache_s``. Second, a limit may be raised. Settings are frozen, so that
takes a new process with an empty cache; the others see it within ``refused_cache_s``. The exception is a
request above the whole limit, which is never checked again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from autoglm_throttle.limiting.decisions import seconds_until
from autoglm_throttle.store.pending_check import Key
from autoglm_throttle.types import Decision, LimitStatus, Reason

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.store import StoreSettings

COSTS_AT_MOST = 8
"""Denials stored for one caller, each for another number of units."""

SWEPT = 2
"""Callers checked per insertion: more than one, so that the cache shrinks faster than it grows."""

_TOO_LARGE: Final = Reason.TOO_LARGE


class DenyCache:
    """Denials that still hold.

    The oldest caller is evicted first. A denial holds for ``refused_cache_s`` at most, however often it is
    used, so no entry is worth keeping longer. A caller takes some 600 bytes.

    Args:
        settings: most callers stored, and the time after which the store is checked again.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.size: int = settings.refused_cache
        """Most callers stored; 0 disables the cache."""
        self.recheck_after_s: float = settings.refused_cache_s
        self.hits: int = 0
        """Requests rejected from this cache."""
        self._callers: OrderedDict[tuple[str, str, str], tuple[_Denial, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._callers)

    def __repr__(self) -> str:
        return f"DenyCache({len(self)} of {self.size} callers)"

    def find(self, key: Key, now: float) -> Decision | None:
        """Return the current denial of such a request; None: the store must be checked."""
        denials = self._callers.get(key[:3])
        if denials is not None:
            units = key[3]
            for denial in denials:
                if denial.units == units:
                    if now >= denial.valid_until_s:
                        return None
                    self.hits += 1
                    return denial.at(now)
        return None

    def put(self, key: Key, decision: Decision, sent_s: float, now: float) -> None:
        """Store the denial of such a request.

        Args:
            key: set of limits, user, address, units.
            decision: the denial; one without end is only stored if the request is too large.
            sent_s: when the check was sent: the store's wait begins there or later.
            now: monotonic seconds.
        """
        # A request above the whole limit never fits, so its denial holds without end.
        too_large = decision.reason is _TOO_LARGE
        free_s = math.inf if too_large else sent_s + decision.retry_after_s
        valid_until_s = free_s if too_large else min(free_s, now + self.recheck_after_s)
        if self.size <= 0 or valid_until_s <= now or (free_s == math.inf and not too_large):
            return
        caller, units = key[:3], key[3]
        others = [
            denial
            for denial in self._callers.pop(caller, ())
            if denial.units != units and denial.valid_until_s > now
        ]
        denial = _Denial(decision, units, sent_s, valid_until_s, free_s)
        self._sweep(now)
        self._callers[caller] = (denial, *others[: COSTS_AT_MOST - 1])

    def remove(self, key: Key) -> None:
        """Remove a caller, with all units: units were refunded to it."""
        self._callers.pop(key[:3], None)

    def _sweep(self, now: float) -> None:
        """Evict expired callers among the oldest, and make space for one."""
        callers = self._callers
        for _ in range(min(SWEPT, len(callers))):
            caller, denials = next(iter(callers.items()))
            ends_s = max(denial.valid_until_s for denial in denials)
            if ends_s <= now:
                del callers[caller]
            elif ends_s == math.inf:
                callers.move_to_end(caller)
            else:
                break
        if len(callers) >= self.size:
            callers.popitem(last=False)


class _Denial:
    """A decision with instants instead of waits; it shares nothing with its source."""

    __slots__ = ("detail", "free_s", "limit", "others", "reason", "units", "valid_until_s")

    def __init__(
        self, decision: Decision, units: int, sent_s: float, valid_until_s: float, free_s: float
    ) -> None:
        self.units: int = units
        self.valid_until_s: float = valid_until_s
        self.free_s: float = free_s
        self.reason: Reason = decision.reason
        self.detail: str = decision.detail
        first, *others = decision.limits
        self.limit: LimitStatus = _shifted(first, sent_s)
        """The deciding limit; like the others it resets at an instant."""
        self.others: list[LimitStatus] = [_shifted(state, sent_s) for state in others]

    def at(self, now: float) -> Decision:
        """Return the decision for a request at that instant."""
        limit = self.limit
        reset_s = limit.reset_s - now
        return Decision(
            False,
            self.reason,
            self.detail,
            limit.name,
            limit.limit,
            limit.remaining,
            seconds_until(self.free_s, now),
            reset_s if reset_s > 0.0 else 0.0,
            limit.window_s,
            tuple([_shifted(state, -now) for state in self.others]) if self.others else (),
        )


def _shifted(state: LimitStatus, by_s: float) -> LimitStatus:
    reset_s = max(0.0, state.reset_s + by_s)
    return LimitStatus(state.name, state.limit, state.window_s, state.remaining, reset_s)
