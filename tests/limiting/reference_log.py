"""The user window as one would write it down: a list for each user, counted anew each time."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from autoglm_throttle.types import UserLimit


@dataclass(frozen=True)
class Expected:
    """What the reference says about one request."""

    allowed: bool
    retry_after_s: float
    remaining: dict[str, int]
    reset_s: dict[str, float]
    """Only of limits that count something."""


class ReferenceLog:
    """Every unit ever admitted, with its instant, forgotten never."""

    def __init__(self, limits: tuple[UserLimit, ...]) -> None:
        self.limits = limits
        self.units: defaultdict[str, list[float]] = defaultdict(list)

    def hit(self, user: str, units: int, now: float) -> Expected:
        """Charge all limits or none."""
        expected = self.look(user, units, now)
        if expected.allowed:
            self.charge(user, units, now)
        return expected

    def charge(self, user: str, units: int, now: float) -> None:
        """Write units down; a clock that went back stands still."""
        self.units[user].extend([max([now, *self.units[user]])] * units)

    def give_back(self, user: str, units: int, charged_at: float) -> None:
        """Strike out units that were charged at that instant."""
        for _ in range(units):
            self.units[user].remove(charged_at)

    def look(self, user: str, units: int, now: float) -> Expected:
        """What `hit` would say."""
        log = self.units[user]
        live = {
            limit.name: sorted(spent for spent in log if spent + limit.window_s > now)
            for limit in self.limits
        }
        waits = [self._wait(live[limit.name], limit, units, now) for limit in self.limits]
        allowed = not any(waits)
        reset_s = {
            limit.name: live[limit.name][0] + limit.window_s - now
            for limit in self.limits
            if live[limit.name]
        }
        taken = units if allowed else 0
        return Expected(
            allowed,
            max(waits),
            {limit.name: max(0, limit.limit - len(live[limit.name]) - taken) for limit in self.limits},
            reset_s,
        )

    def most_in_any_window(self, user: str, window_s: int) -> int:
        """The most units in any half-open interval of that length; it may start with any unit."""
        log = self.units[user]
        return max((sum(first <= spent < first + window_s for spent in log) for first in log), default=0)

    @staticmethod
    def _wait(live: list[float], limit: UserLimit, units: int, now: float) -> float:
        if units > limit.limit:
            return math.inf
        excess = len(live) + units - limit.limit
        return live[excess - 1] + limit.window_s - now if excess > 0 else 0.0
