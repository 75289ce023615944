"""One priority's part of a fleet's tokens, leased in advance by local demand.

Tokens are leased before they are spent. So in any t seconds a fleet admits at most
``burst + rate * t`` and the leased tokens that were unspent at the start.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from autoglm_throttle.limiting.decisions import seconds_until
from autoglm_throttle.limiting.token_bucket import TokenBucket

TICK_S: Final = 0.1
WEIGHT: Final = 0.3  # Weight of each new tick of 0.1 s in the mean demand: by simulation

# Share of the lease time for which tokens are prefetched: a killed process loses no more.
PREFETCH: Final = 0.5

# Limit of the prefetch as a share of the bucket's fill time: pools come on top of a full bucket.
PREFETCH_BURST: Final = 0.1

COLD_START_COST: Final = 8.0  # Cost in one tick above which arrivals outweigh the mean: fewer are chance
REFILL_AT: Final = 0.25  # Share of the last prefetch below which more is leased in the background
PAUSE_S: Final = 0.012  # Pause after a grant that fell short: less than 100 calls a second above the limit
MICRO: Final = 1_000_000  # Micro-tokens in a token, the unit of the store: its arithmetic is on whole numbers


# One priority's part of a call, in micro-tokens and in the order of the script: the rate, per second, for the
# time since the last call of any process; the burst; the tokens wanted; those of them needed for the first
# waiter; and those returned unused, below 0 if tokens were spent without a lease.
Figures = tuple[int, int, int, int, int]


class TokenLease:
    """The tokens of one priority that this process may spend; unspent ones are returned after ``lease_s``."""

    def __init__(self, rate: float, burst: float, now: float, name: str, lease_s: float) -> None:
        self.name: str = name
        self.nominal: float = rate  # Tokens per second at factor 1, of the whole fleet
        self.rate: float = rate  # Tokens per second now, of the whole fleet
        self.burst: float = burst  # Most tokens that the fleet's bucket holds
        # Waiters for the store's next answer in order of arrival, with their costs.
        self.waiters: dict[object, float] = {}
        self._pool = 0.0
        # The mean demand of this process, and the tokens to hold after the next answer that follow from it.
        self._mean_rps = 0.0
        self._arrived = 0.0  # Cost that has arrived in this tick
        self._tick_ends_s = now + TICK_S
        self._prefetch_s = min(PREFETCH * lease_s, PREFETCH_BURST * burst / rate)
        self._refill_at = 0.0  # Tokens in the pool at which more is leased
        self._lease_s = lease_s
        # Expiry and size of each grant; the oldest are spent first.
        self._grants: deque[tuple[float, float]] = deque()
        # The store's last answer tells when the store may have enough tokens again.
        self._answered_s = -math.inf
        self._remaining = math.inf  # Tokens left in the store
        self._fell_short = False  # Whether less was granted than requested
        self._requested = 0.0  # Tokens wanted by the request under way
        self._rejected_cost = 0.0  # Cost of the first rejection since the answer
        # This process's part of the rate while the store is unavailable; None: it is available.
        self._local: TokenBucket | None = None
        self._local_spent = 0.0  # Tokens taken from it that the store does not know yet
        self._reported = 0.0  # Part of them that the request under way reports

    def take(self, cost: float, now: float) -> float:
        """Take ``cost`` tokens; 0.0 means taken, else the wait in seconds until it may succeed."""
        if now >= self._tick_ends_s:
            self._tick(now)
        self._arrived += cost
        if self._pool >= cost:
            self._pool -= cost
            return 0.0
        if cost > self.burst:
            return math.inf
        bucket = self._local
        if bucket is None:
            self._rejected_cost = self._rejected_cost or cost
            return seconds_until(self._ready_s(cost), now) or PAUSE_S
        wait = bucket.take(cost, now)
        if not wait:
            self._local_spent += cost
        elif math.isinf(wait) and self.rate:
            return 1.0  # exceeds this process's burst: the store may be back by then
        return wait

    def give_back(self, cost: float, now: float) -> None:  # noqa: ARG002 - a bucket's interface
        """Return unused tokens; if they stay unused they go back to the fleet."""
        self._pool += cost

    def rescale(self, factor: float, now: float) -> None:
        """Refill at ``nominal * factor`` from now on; a factor outside 0..1 counts as the nearer end."""
        self.rate = self.nominal * min(1.0, max(0.0, factor))
        if self._local is not None:
            self._local.rescale(factor, now)

    def tokens(self, now: float) -> float:
        """Return the tokens that this process can spend without a call."""
        return self._pool + (0.0 if self._local is None else self._local.tokens(now))

    def is_decidable(self, cost: float, now: float) -> bool:
        """Whether `take` gives the store's answer now: from the pool, or because a shortage is known."""
        return self._pool >= cost or cost > self.burst or self._local is not None or now < self._ready_s(cost)

    def is_short(self, now: float) -> bool:
        """Whether more tokens should be leased in the background."""
        return self._needs_more() and now >= max(self._ready_s(1.0), self._answered_s + PAUSE_S)

    def is_call_due(self, now: float) -> bool:
        """Whether there is a reason to call the store now."""
        return bool(self.waiters) or self.is_short(now) or now >= self.due_s()

    def due_s(self) -> float:
        """Return the time at which unspent tokens must be returned; infinite without any."""
        return self._grants[0][0] if self._pool > 0.0 and self._grants else math.inf

    def request(self, now: float) -> Figures:
        """Build this priority's part of a call; returned tokens have left the pool then."""
        if now >= self._tick_ends_s:
            self._tick(now)
        self._requested = 0.0
        self._reported = self._debt(now)
        owes = _up(self._reported)
        if self._local is not None:
            return _micro(self.rate), _micro(self.burst), 0, 0, -owes
        grants = self._grants
        while grants and grants[0][0] <= now:
            grants.popleft()
        # Out of the pool before the call: a request during the call must not spend returned tokens.
        returned = _micro(max(0.0, self._pool - math.fsum(size for _, size in grants)))
        self._pool -= returned / MICRO
        want, need = self._shortfall()
        self._requested = want / MICRO
        return _micro(self.rate), _micro(self.burst), want, need, returned - owes

    def final_request(self) -> Figures:
        """Build the part of the last call: return all tokens, want none."""
        returned, self._pool = _micro(self._pool), 0.0
        self._grants.clear()
        return _micro(self.rate), _micro(self.burst), 0, 0, returned

    def may_be_granted(self, grant: int) -> bool:
        """Whether the bucket can hold so many micro-tokens."""
        return grant / MICRO <= self.burst

    def apply_grant(self, grant: int, remaining: int, now: float) -> None:
        """Apply the store's answer to the last `request`, in micro-tokens, and release all waiters."""
        tokens = grant / MICRO
        self._pool += tokens
        if grant:
            self._grants.append((now + self._lease_s, tokens))
        self.waiters.clear()
        self._answered_s, self._remaining, self._rejected_cost = now, remaining / MICRO, 0.0
        self._fell_short = tokens < self._requested
        # The debt that was not reported is kept for the next request.
        self._local_spent = max(0.0, self._debt(now) - self._reported)
        self._reported, self._local = 0.0, None

    @property
    def in_force(self) -> float:
        """Tokens per second: of the whole fleet, or of this process while the store is unavailable."""
        return self.rate if self._local is None else self._local.rate

    def use_local_share(self, processes: int, now: float) -> None:
        """Switch to a local part of the rate, and of the tokens in the store.

        These are the tokens of its last answer, plus the refill since then. Without any answer the
        first request is admitted and no other: the number of processes is unknown.
        """
        burst = max(1.0, self.burst / processes)
        holds = 1.0
        if not math.isinf(self._answered_s):
            in_store = self._remaining + self.rate * (now - self._answered_s)
            holds = burst * min(1.0, in_store / self.burst)
        bucket = TokenBucket(self.nominal / processes, burst, now, self.name)
        bucket.take(burst - holds, now)
        bucket.rescale(self.rate / self.nominal, now)
        self._local = bucket

    def _debt(self, now: float) -> float:
        """Return the tokens to deduct in the store: spent without it and not refilled by now."""
        spent, bucket = self._local_spent, self._local
        return spent if bucket is None else min(spent, bucket.burst - bucket.tokens(now))

    def _ready_s(self, cost: float) -> float:
        """Return the time from which the store may cover the tokens that the pool lacks for a cost."""
        shortfall = cost - self._pool - self._remaining
        if shortfall <= 0.0:
            # Not `_answered_s`: the caller's `now` may be of just before an answer that came meanwhile.
            fits_s = -math.inf
        else:
            fits_s = self._answered_s + shortfall / self.rate if self.rate else math.inf
        return max(fits_s, self._answered_s + PAUSE_S) if self._fell_short else fits_s

    def _tick(self, now: float) -> None:
        """Close the ticks that have ended."""
        ended = int((now - self._tick_ends_s) / TICK_S) + 1
        self._mean_rps += WEIGHT * (self._arrived / TICK_S - self._mean_rps)
        self._mean_rps *= (1.0 - WEIGHT) ** (ended - 1)
        self._arrived = 0.0
        self._tick_ends_s = now + TICK_S if ended > 1 else self._tick_ends_s + TICK_S

    def _needs_more(self) -> bool:
        """Whether more than the pool will be needed soon."""
        return self._pool <= self._refill_at and self._prefetch_s * self._mean_rps >= 1.0

    def _shortfall(self) -> tuple[int, int]:
        """Return the wanted and the needed tokens, in micro-tokens."""
        waiting = math.fsum(self.waiters.values())
        first = next(iter(self.waiters.values()), self._rejected_cost)
        if not first and not self._needs_more():
            return 0, 0
        # At a cold start there is no mean yet: arrivals of this tick count, and double from call to call.
        arriving = waiting + max(0.0, self._arrived - COLD_START_COST)
        prefetch = max(self._prefetch_s * self._mean_rps, first, arriving)
        self._refill_at = REFILL_AT * prefetch
        need = max(0.0, first - self._pool)
        return _up(max(need, math.ceil(prefetch) - self._pool)), _up(need)


def _micro(tokens: float) -> int:
    return math.floor(tokens * MICRO)


def _up(tokens: float) -> int:
    return math.ceil(max(0.0, tokens) * MICRO)
