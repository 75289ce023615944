"""Sub-buckets as one would write them down: a list of what was spent, each with the number of its bucket."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

from autoglm_throttle.types import UserLimit
from tests.limiting.reference_log import Expected, ReferenceLog

MILLION = 1_000_000


class ReferenceBuckets:
    """One limit, every spending of every user, forgotten never."""

    def __init__(self, limit: UserLimit) -> None:
        self.limit = limit
        self.width_us = math.ceil(Fraction(limit.window_s * MILLION, 60))
        self.spent: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)

    def bucket(self, now: float) -> int:
        return math.floor(now * MILLION) // self.width_us

    def look(self, user: str, units: int, now: float) -> Expected:
        limit, spent = self.limit, self.spent[user]
        present = max([self.bucket(now), *(bucket for bucket, _ in spent)])
        inside = sorted((bucket, count) for bucket, count in spent if present - bucket <= 60 and count)
        used = sum(count for _, count in inside)
        reset_s = {limit.name: self.leaves_us(inside[0][0]) / MILLION - now} if inside else {}
        allowed, wait = used + units <= limit.limit, 0.0
        if units > limit.limit:
            wait = math.inf
        elif not allowed:
            left, last = used, 0
            for bucket, count in inside:
                if left + units > limit.limit:
                    left, last = left - count, bucket
            wait = self.leaves_us(last) / MILLION - now
        taken = units if allowed else 0
        return Expected(allowed, wait, {limit.name: max(0, limit.limit - used - taken)}, reset_s)

    def used(self, user: str, now: float) -> int:
        """Units that count now."""
        present = self.bucket(now)
        return sum(count for bucket, count in self.spent[user] if present - bucket <= 60)

    def leaves_us(self, bucket: int) -> int:
        return (bucket + 61) * self.width_us

    def charge(self, user: str, units: int, now: float) -> None:
        spent = self.spent[user]
        spent.append((max([self.bucket(now), *(bucket for bucket, _ in spent)]), units))

    def give_back(self, user: str, units: int, charged_at: float) -> None:
        self.spent[user].remove((self.bucket(charged_at), units))


class ReferenceWindow:
    """Limits of both forms, all or none."""

    def __init__(self, limits: tuple[UserLimit, ...]) -> None:
        self.limits = limits
        self.parts: list[ReferenceLog | ReferenceBuckets] = [
            ReferenceLog((limit,)) if limit.exact else ReferenceBuckets(limit) for limit in limits
        ]

    def hit(self, user: str, units: int, now: float) -> Expected:
        found = [part.look(user, units, now) for part in self.parts]
        allowed = all(each.allowed for each in found)
        remaining, reset_s = {}, {}
        for each in found:
            for name, left in each.remaining.items():
                remaining[name] = left if allowed or not each.allowed else left + units
            reset_s.update(each.reset_s)
        if allowed:
            for part in self.parts:
                part.charge(user, units, now)
        return Expected(allowed, max(each.retry_after_s for each in found), remaining, reset_s)

    def give_back(self, user: str, units: int, charged_at: float) -> None:
        for part in self.parts:
            part.give_back(user, units, charged_at)
