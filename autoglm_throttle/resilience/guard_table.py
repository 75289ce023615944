"""Guards by name, with a maximum number, and the counters of all guards."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final

from autoglm_throttle import events
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerMode, BreakerState, Clock, FallbackKind

EVICTION_CANDIDATES: Final = 8
"""Guards checked for eviction to free one entry: some 100 us."""

_DISABLED: Final = BreakerSettings.model_construct({"mode"}, mode=BreakerMode.DISABLED)
"""Not validated: the schema need not be built at each start."""

OTHERS: Final = "_others"
"""Stands for guards that were evicted or never had an entry."""


class GuardTable:
    """Guards with a maximum number, and their counters; idle guards are evicted. Its owner locks it."""

    __slots__ = (
        "_defer",
        "_evicted",
        "_is_full_logged",
        "_max_guards",
        "degraded",
        "guards",
        "registered",
        "transitions",
        "unguarded",
    )

    def __init__(
        self,
        max_guards: int,
        clock: Clock,
        defer: Callable[[Callable[[], object]], object],
    ) -> None:
        self._max_guards = max_guards
        self._defer = defer
        self._is_full_logged = False
        self.degraded: Counter[tuple[str, FallbackKind, str]] = Counter()
        """Answers without the dependency, by guard, kind of fallback and cause."""
        self.transitions: Counter[tuple[str, BreakerState]] = Counter()
        """State changes, by guard and new state."""
        self.guards: OrderedDict[str, GuardState] = OrderedDict()
        """Guards by name; the first ones are the next candidates for eviction."""
        self._evicted: weakref.WeakValueDictionary[str, GuardState] = weakref.WeakValueDictionary()
        """Evicted guards that callers may still hold: a name must never have two breakers."""
        self.registered: set[str] = set()
        """Guards registered in code; these are never evicted."""
        self.unguarded: GuardState = GuardState(OTHERS, _DISABLED, clock=clock)
        """The disabled guard for names above the maximum: an unprotected call is better than a failed one."""

    def __contains__(self, name: str) -> bool:
        return name in self.guards or name in self._evicted

    def add(self, circuit: GuardState) -> GuardState:
        """Add a guard and return it, or the guard that has the name already."""
        return self.guards.setdefault(circuit.name, circuit)

    def restore(self, name: str) -> GuardState | None:
        """Restore an evicted guard that a caller still holds, if there is capacity."""
        circuit = self._evicted.get(name)
        if circuit is not None and self.ensure_capacity():
            self.guards[name] = circuit
            del self._evicted[name]
        return circuit

    def ensure_capacity(self) -> bool:
        """Ensure capacity for one more guard, by evicting an idle one; False: none could be evicted.

        A candidate is closed and has no calls in flight. One without recorded failures is preferred.
        Each call checks few guards, in rotation, so that a new name does not wait for a thousand checks.
        """
        if len(self.guards) < self._max_guards:
            return True
        closed = None
        for name, circuit in list(islice(self.guards.items(), EVICTION_CANDIDATES)):
            self.guards.move_to_end(name)  # the next call checks other guards
            view = circuit.view()
            if name in self.registered or view.machine is not BreakerState.CLOSED or view.in_flight:
                continue
            if circuit.is_idle:
                self._evict(name)
                return True
            closed = name if closed is None else closed
        if closed is not None:
            self._evict(closed)
            return True
        if not self._is_full_logged:
            self._is_full_logged = True
            self._defer(events.guard_table_full(self._max_guards).write)
        return False

    def all(self) -> list[GuardState]:
        """Return all living guards, also evicted ones and the one for names above the maximum."""
        return [*(dict(self._evicted.items()) | self.guards).values(), self.unguarded]

    def take_over(self, other: GuardTable) -> None:
        """Take over the guards of another table, which another thread may be changing."""
        self.guards.update(other.guards)
        self.registered.update(other.registered)
        self.unguarded = other.unguarded
        for circuit in other.all():
            if circuit is not self.unguarded and circuit.name not in self.guards:
                self._evicted[circuit.name] = circuit

    def _evict(self, name: str) -> None:
        self._evicted[name] = self.guards[name]
        del self.guards[name]
        # Its transitions move to one shared name, so that totals never decrease.
        for state in BreakerState:
            count = self.transitions.pop((name, state), 0)
            if count:
                self.transitions[OTHERS, state] += count
