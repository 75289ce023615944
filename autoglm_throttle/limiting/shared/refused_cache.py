"""Who was refused by the store and need not ask it again yet.

A refusal says when it could end. What others spend meanwhile can only move that instant further away, so
until then the same request is refused here, with what is left of its wait. The wait is counted from the
sending of the question, so it ends here no later than in the store.

It may end earlier in the store for two reasons. Units may be given back: what is given back to the caller by
this process is taken in by `RefusedCache.remove`; by another process, or to another user of its address, it
shows within ``ask_again_s``, after which the store is asked in any case. And a limit may be raised: settings
are frozen, so that comes with a new process, whose cache is empty; the others see it within ``ask_again_s``,
but for a request above the whole limit, which is never asked again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from autoglm_throttle.limiting.instant import until
from autoglm_throttle.limiting.shared.question import Key
from autoglm_throttle.model import Decision, Reason, WindowState

SIZE = 100_000
"""Callers. Each takes some 600 bytes, and is forgotten soon after it could ask again."""

ASK_AGAIN_S = 1.0
"""Whoever is refused and comes back ten times a second reaches the store with one request in ten."""

COSTS_AT_MOST = 8
"""Refusals remembered for one caller, each for another number of units."""

SWEPT = 2
"""Callers looked at when one is added: more than one, so that they leave faster than others come."""

_TOO_LARGE: Final = Reason.TOO_LARGE


class RefusedCache:
    """Refusals that still hold.

    The one who was added first goes first: a refusal holds for ``ask_again_s`` at most, however
    often it is looked up, so there is nothing that is worth keeping longer.

    Args:
        size: most callers remembered; 0 remembers nobody.
        ask_again_s: seconds after which the store is asked again even if the refusal should still hold.
    """

    def __init__(self, size: int = SIZE, ask_again_s: float = ASK_AGAIN_S) -> None:
        self._size = size
        self._ask_again_s = ask_again_s
        self._callers: OrderedDict[tuple[str, str, str], tuple[_Refusal, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._callers)

    def __repr__(self) -> str:
        return f"RefusedCache({len(self)} of {self._size} callers)"

    def find(self, key: Key, now: float) -> Decision | None:
        """The refusal of such a request, as it stands now; None: the store must be asked."""
        refusals = self._callers.get(key[:3])
        if refusals is not None:
            units = key[3]
            for refusal in refusals:
                if refusal.units == units:
                    return refusal.at(now) if now < refusal.ask_again_s else None
        return None

    def put(self, key: Key, decision: Decision, sent_s: float, now: float) -> None:
        """Remember the store's refusal of such a request.

        Args:
            key: set of limits, user, address, units.
            decision: the refusal; one without end is only remembered if the request is too large.
            sent_s: when the question was sent: the store's wait begins there or later.
            now: monotonic seconds.
        """
        too_large = decision.reason is _TOO_LARGE
        free_s = math.inf if too_large else sent_s + decision.retry_after_s
        ask_again_s = free_s if too_large else min(free_s, now + self._ask_again_s)
        if self._size <= 0 or ask_again_s <= now or (free_s == math.inf and not too_large):
            return
        caller, units = key[:3], key[3]
        others = [
            refusal
            for refusal in self._callers.pop(caller, ())
            if refusal.units != units and refusal.ask_again_s > now
        ]
        refusal = _Refusal(decision, units, sent_s, ask_again_s, free_s)
        self._sweep(now)
        self._callers[caller] = (refusal, *others[: COSTS_AT_MOST - 1])

    def remove(self, key: Key) -> None:
        """Let a caller ask again, whatever for: units were given back to it."""
        self._callers.pop(key[:3], None)

    def _sweep(self, now: float) -> None:
        """Forget those whose time is over among the oldest, and make room for one."""
        callers = self._callers
        for _ in range(min(SWEPT, len(callers))):
            caller, refusals = next(iter(callers.items()))
            ends_s = max(refusal.ask_again_s for refusal in refusals)
            if ends_s <= now:
                del callers[caller]
            elif ends_s == math.inf:
                callers.move_to_end(caller)
            else:
                break
        if len(callers) >= self._size:
            callers.popitem(last=False)


class _Refusal:
    """A decision, as instants instead of waits; nothing of it is shared with the one it was made from."""

    __slots__ = (
        "ask_again_s",
        "detail",
        "free_s",
        "limit",
        "others",
        "policy",
        "reason",
        "remaining",
        "reset_s",
        "units",
        "window_s",
    )

    def __init__(
        self, decision: Decision, units: int, sent_s: float, ask_again_s: float, free_s: float
    ) -> None:
        self.units: int = units
        self.ask_again_s: float = ask_again_s
        self.free_s: float = free_s
        self.reset_s: float = sent_s + decision.reset_after_s
        self.reason: Reason = decision.reason
        self.detail: str = decision.detail
        self.policy: str = decision.policy
        self.limit: float = decision.limit
        self.remaining: float = decision.remaining
        self.window_s: int = decision.window_s
        self.others: list[WindowState] = [_shifted(state, sent_s) for state in decision.others]

    def at(self, now: float) -> Decision:
        """The decision for somebody who asks at that instant."""
        reset_s = self.reset_s - now
        return Decision(
            False,
            self.reason,
            self.detail,
            self.policy,
            self.limit,
            self.remaining,
            until(self.free_s, now),
            reset_s if reset_s > 0.0 else 0.0,
            self.window_s,
            tuple([_shifted(state, -now) for state in self.others]) if self.others else (),
        )


def _shifted(state: WindowState, by_s: float) -> WindowState:
    reset_s = max(0.0, state.reset_s + by_s)
    return WindowState(state.name, state.limit, state.window_s, state.remaining, reset_s)
