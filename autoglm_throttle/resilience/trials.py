"""A round of half-open probes: free slots, and successes so far."""

from __future__ import annotations

from autoglm_throttle.resilience.places import Places
from autoglm_throttle.resilience.rules import Rules


class Trials(Places):
    """The probes of one half-open round.

    Without ``success_threshold`` a round admits ``half_open_max`` probes in total, so a success keeps its
    slot. With it, ``half_open_max`` limits the concurrent probes. A probe with a neutral outcome returns its
    slot in both cases.
    """

    __slots__ = ("_in_all", "_most", "_need", "won")

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules.lease_s)
        self.won: int = 0
        """Successes of this round."""
        self._most = rules.half_open_max
        self._need = rules.need
        self._in_all = rules.success_threshold is None

    def full(self, now: float, leased: bool) -> bool:
        """Whether no further probe may start here. Has no effects.

        Args:
            now: monotonic seconds.
            lease_required: the round belongs to the fleet, and its store counts the successes.
        """
        kept = self.won if self._in_all and not leased else 0
        return self.held(now) + kept >= self._most

    def win(self) -> bool:
        """Record a success and return whether the round has enough."""
        self.won += 1
        return self.won >= self._need

    def clear(self) -> None:
        """Start a new round."""
        super().clear()
        self.won = 0
