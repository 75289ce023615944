"""A round of half-open probes: free slots, and successes so far."""

from __future__ import annotations

from autoglm_throttle.resilience.half_open_slots import HalfOpenSlots
from autoglm_throttle.settings.groups.breaker import BreakerSettings


class HalfOpenProbes(HalfOpenSlots):
    """The probes of one half-open round.

    Without ``success_threshold`` a round admits ``half_open_max`` probes in total, so a success keeps its
    slot. With it, ``half_open_max`` limits the concurrent probes. A probe with a neutral outcome returns its
    slot in both cases.
    """

    __slots__ = ("_limits_round", "_max_probes", "_successes_needed", "successes")

    def __init__(self, settings: BreakerSettings) -> None:
        super().__init__(settings.lease_s)
        self.successes: int = 0
        """Successes of this round."""
        self._max_probes = settings.half_open_max
        self._successes_needed = settings.successes_needed
        self._limits_round = settings.success_threshold is None

    def is_full(self, now: float, lease_required: bool) -> bool:
        """Whether no further probe may start here. Has no effects.

        Args:
            now: monotonic seconds.
            lease_required: the round belongs to the fleet, and its store counts the successes.
        """
        held_by_successes = self.successes if self._limits_round and not lease_required else 0
        return self.count_held(now) + held_by_successes >= self._max_probes

    def record_success(self) -> bool:
        """Record a success and return whether the round has enough."""
        self.successes += 1
        return self.successes >= self._successes_needed

    def clear(self) -> None:
        """Start a new round."""
        super().clear()
        self.successes = 0
