"""Schedules the return of rejected requests, so that they do not all come back at once."""

from __future__ import annotations

import math

RETRY_MAX_S = 54.0
"""Longest time told: clients follow a Retry-After up to a minute, and jitter adds a tenth."""

RETRY_SHARE = 0.5
"""Share of the service rate kept for returning requests; the others come for the first time.
[simulated: the whole rate lets 83 % of the calls of a crowd fail, half of it none]
"""


TURNS_MAX = 10_000
"""Users whose turns are remembered."""


class RetrySchedule:
    """Turns of the rejected requests, one after another at half of the service rate.

    Args:
        now: monotonic seconds.
    """

    __slots__ = ("_last_s", "turns")

    def __init__(self, now: float) -> None:
        self._last_s = now
        self.turns: dict[str, float] = {}
        """The newest turn of each rejected user, the oldest first."""

    def next_turn_s(self, user: str, rate_rps: float, now: float) -> float:
        """Assign the next turn to a user, and return the seconds until it; at most `RETRY_MAX_S`."""
        turn_s = max(self._last_s, now) + 1.0 / (RETRY_SHARE * rate_rps)
        self._last_s = turn_s = min(turn_s, now + RETRY_MAX_S)
        turns = self.turns
        if user:  # without one nobody can be told from the others
            turns.pop(user, None)
            turns[user] = turn_s
        if len(turns) > TURNS_MAX:
            del turns[next(iter(turns))]
        return turn_s - now

    def take_turn(self, user: str, now: float) -> bool:
        """Return whether a user has returned in its turn, which is then used up; not before it."""
        is_turn = now >= self.turns.get(user, math.inf)
        if is_turn:
            del self.turns[user]
        return is_turn

    def backlog_s(self, now: float) -> float:
        """Return the seconds until the last turn that was assigned; 0 if all are over."""
        return max(0.0, self._last_s - now)
