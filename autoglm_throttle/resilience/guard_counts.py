"""Counters of all guards: degraded answers and state changes."""

from __future__ import annotations

from collections import Counter

from autoglm_throttle.resilience.guard_table import OTHERS
from autoglm_throttle.types import BreakerState, BreakerTransition, FallbackKind


class GuardCounts:
    """Counters of all guards. The lock of its owner guards it."""

    __slots__ = ("degraded", "transitions")

    def __init__(self) -> None:
        self.degraded: Counter[tuple[str, FallbackKind, str]] = Counter()
        """Answers without the dependency, by guard, kind of fallback and cause."""
        self.transitions: Counter[tuple[str, BreakerState]] = Counter()
        """State changes, by guard and new state."""

    def record_degraded(self, name: str, kind: FallbackKind, cause: str) -> None:
        """Count a degraded answer."""
        self.degraded[name, kind, cause] += 1

    def record_transition(self, change: BreakerTransition) -> None:
        """Count a change of state."""
        self.transitions[change.name, change.after] += 1

    def forget_name(self, name: str) -> None:
        """Move the transitions of a guard to one shared name, so that totals never decrease."""
        for state in BreakerState:
            count = self.transitions.pop((name, state), 0)
            if count:
                self.transitions[OTHERS, state] += count
