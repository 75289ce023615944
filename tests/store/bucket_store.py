"""A reference of ``fleet.lua`` in plain Python, on a manual clock."""

from __future__ import annotations

from collections.abc import Sequence

MICRO = 1_000_000


class BucketStore:
    """Members and buckets of one fleet."""

    def __init__(self) -> None:
        self.clock_us = 1_800_000_000_000_000
        self.members: dict[str, int] = {}
        self.buckets: dict[int, tuple[int, int]] = {}

    def call(self, member: str, lives_us: int, figures: Sequence[int]) -> list[int]:
        clock = self.clock_us
        self.members[member] = clock + lives_us
        far = clock + 4 * lives_us if lives_us else float("inf")
        self.members = {name: end for name, end in self.members.items() if clock < end <= far}
        reply = [clock, len(self.members)]
        for number in range(len(figures) // 5):
            rate, burst, want, need, back = figures[5 * number : 5 * number + 5]
            tokens = burst
            if number in self.buckets:
                had, stamp = self.buckets[number]
                tokens = min(burst, had + max(0, clock - stamp) * rate // MICRO)
            tokens = min(burst, max(0, tokens + back))
            grant = min(want, max(need, tokens // (2 * MICRO) * MICRO)) if tokens >= need else 0
            self.buckets[number] = (tokens - grant, clock)
            reply += [grant, tokens - grant]
        return reply
