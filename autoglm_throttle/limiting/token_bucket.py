"""Token buckets, one for each priority.

In any t seconds a bucket admits at most ``burst + rate * t`` units.
A rejected take changes nothing and returns the exact instant from which it would have succeeded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoglm_throttle.limiting.decisions import rate_rejection, seconds_until
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.types import BorrowMode, Decision, Demand, Priority, Reason

DONOR_RESERVE = 0.5  # Share of its burst that a lending bucket reserves for its own class


class TokenBucket:
    """Tokens that refill at a rate which may change at run time; full at first."""

    __slots__ = ("_stamp", "_tokens", "burst", "name", "nominal", "rate")

    def __init__(self, rate: float, burst: float, now: float, name: str = "") -> None:
        self.name: str = name  # In rejections
        self.nominal: float = rate  # Tokens per second, > 0
        self.rate: float = rate  # Tokens per second now
        self.burst: float = burst  # Most tokens it holds, > 0
        self._tokens = burst
        self._stamp = now

    def take(self, cost: float, now: float, keep: float = 0.0) -> float:
        """Take ``cost`` tokens if ``keep`` would be left; 0.0 means taken.

        Otherwise nothing changes and the result is the wait in seconds until it would succeed,
        infinite if it never will.
        """
        tokens, stamp = self._tokens, self._stamp
        if now > stamp:
            tokens += (now - stamp) * self.rate
            if tokens > self.burst:
                tokens = self.burst
            stamp = now
        if tokens < cost + keep:
            need, rate = cost + keep, self.rate
            if need > self.burst or not rate:
                return math.inf
            # From the stored stamp, so that each rejection before `ready` names the same instant.
            ready = self._stamp + (need - self._tokens) / rate
            if now < ready:
                return seconds_until(ready, now)
        self._tokens = tokens - cost if tokens > cost else 0.0
        self._stamp = stamp
        return 0.0

    def give_back(self, cost: float, now: float) -> None:
        """Return unused tokens; the bucket never holds more than its burst."""
        tokens = self._tokens
        if now > self._stamp:
            tokens += (now - self._stamp) * self.rate
            self._stamp = now
        tokens += cost
        self._tokens = tokens if tokens < self.burst else self.burst

    def rescale(self, factor: float, now: float) -> None:
        """Refill at ``nominal * factor`` from now on; stored tokens and burst stay.

        A factor outside 0..1 counts as the nearer end, so that no wrong factor drains or floods a bucket.
        """
        self.give_back(0.0, now)
        self.rate = self.nominal * min(1.0, max(0.0, factor))

    def resize(self, rate: float, burst: float, now: float) -> None:
        """Set another nominal rate and burst from now on; stored tokens stay, within the new burst."""
        self.give_back(0.0, now)
        self.nominal = self.rate = rate
        self.burst = burst
        if self._tokens > burst:
            self._tokens = burst

    def tokens(self, now: float) -> float:
        """Return the tokens it holds at ``now``; a clock that went back counts as standing still."""
        if now <= self._stamp:
            return self._tokens
        tokens = self._tokens + (now - self._stamp) * self.rate
        return min(self.burst, tokens)


class PriorityBuckets:
    """One bucket for each priority, with optional borrowing between them.

    Borrowing takes the whole cost from the first bucket, lowest priority first, that keeps half of its burst.
    So the sum of admitted units stays within the sum of bursts and rates.
    Of the rates in the settings this process gets its part; a bucket holds at least one token.
    """

    def __init__(self, settings: RateSettings, now: float) -> None:
        rates = [rate / settings.workers for rate in settings.rates_rps]
        self.all: tuple[TokenBucket, ...] = tuple(
            TokenBucket(rate, max(1.0, rate * settings.burst_s), now, priority.label)
            for priority, rate in zip(Priority, rates, strict=True)
        )
        self._donors = tuple(_donors(priority, settings.borrow, self.all) for priority in Priority)
        self.borrows: bool = settings.borrow is not BorrowMode.OFF

    @property
    def rates(self) -> tuple[float, ...]:
        """Current tokens per second, for high, mid, low."""
        return tuple(bucket.rate for bucket in self.all)

    def take(self, demand: Demand, now: float) -> TokenBucket | Decision:
        """Take the demand's cost; returns the bucket that paid, or the rejection."""
        bucket = self.all[demand.rank]
        wait = bucket.take(demand.cost, now)
        if not wait:
            return bucket
        for donor in self._donors[demand.rank]:
            donor_wait = donor.take(demand.cost, now, keep=donor.burst * DONOR_RESERVE)
            if not donor_wait:
                return donor
            wait = min(wait, donor_wait)
        return rate_rejection(bucket, demand.cost, wait, now)

    def rescale(self, ceilings: Sequence[float], now: float) -> None:
        """Refill each bucket at its nominal rate times its ceiling, 0..1, given for high, mid, low."""
        for bucket, ceiling in zip(self.all, ceilings, strict=True):
            bucket.rescale(ceiling, now)


def _donors(
    priority: Priority, borrow: BorrowMode, buckets: Sequence[TokenBucket]
) -> tuple[TokenBucket, ...]:
    if borrow is BorrowMode.OFF:
        return ()
    return tuple(
        buckets[other]
        for other in sorted(Priority, reverse=True)
        if other > priority or (borrow is BorrowMode.ANY and other != priority)
    )


CAPACITY_S = 0.5  # Seconds of the rate that a full budget holds

# Least capacity of a full budget in requests: below two requests a second it would fall under one request,
# and no request would ever pass.
MIN_CAPACITY = 8.0


class SharedBudget:
    """A token bucket that all classes spend from, one token for a request. It starts inactive."""

    __slots__ = ("_active", "_detail", "bucket", "reserves")

    def __init__(self, settings: RateSettings, now: float) -> None:
        # Share of the capacity that high, mid and low leave behind.
        self.reserves: tuple[float, float, float] = (0.0, settings.reserve_mid, settings.reserve_low)
        self.bucket: TokenBucket = TokenBucket(0.0, MIN_CAPACITY, now, "gpu")
        self._active = False
        self._detail = ""

    def take(self, priority: Priority, now: float) -> Decision | None:
        """Take one token; None means taken, or that no budget is active."""
        if not self._active:
            return None
        bucket = self.bucket
        wait = bucket.take(1.0, now, keep=self.reserves[priority] * bucket.burst)
        if not wait:
            return None
        return Decision(
            False, Reason.GPU, self._detail, bucket.name, bucket.burst, bucket.tokens(now), wait, wait
        )

    def give_back(self, now: float) -> None:
        """Return an unused token."""
        self.bucket.give_back(1.0, now)

    def rescale(self, budget_rps: float | None, term: str, now: float) -> None:
        """Refill at ``budget_rps`` requests per second from now on; None deactivates the budget.

        Stored tokens stay, within the new capacity. After an inactive phase it begins full.
        Rejections name the deciding ``term``: ``gpu:<term>``.
        """
        if budget_rps is None:
            self._active = False
            return
        capacity = max(CAPACITY_S * budget_rps, MIN_CAPACITY)
        if self._active:
            self.bucket.resize(budget_rps, capacity, now)
        else:
            self.bucket = TokenBucket(budget_rps, capacity, now, "gpu")
        self._active = True
        self._detail = f"gpu:{term}"
