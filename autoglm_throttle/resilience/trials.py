"""A round of trials: who makes one now, and how many have succeeded."""

from __future__ import annotations

from autoglm_throttle.resilience.places import Places
from autoglm_throttle.resilience.rules import Rules


class Trials(Places):
    """The trials of one half-open round.

    Without ``success_threshold`` a round admits ``half_open_max`` trials in all, so a success keeps its
    place; with one, so many at a time. A trial that gives no evidence gives its place back in both.
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
        """Whether no further trial may begin here; free of effects.

        Args:
            now: monotonic seconds.
            leased: the round is the fleet's, which knows better how many have succeeded.
        """
        kept = self.won if self._in_all and not leased else 0
        return self.held(now) + kept >= self._most

    def win(self) -> bool:
        """Note a success; whether there are enough now."""
        self.won += 1
        return self.won >= self._need

    def clear(self) -> None:
        """Begin a new round."""
        super().clear()
        self.won = 0
