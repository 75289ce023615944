"""One priority's part of a fleet's tokens, leased in advance by local demand.

Tokens are leased before they are spent. So in any t seconds a fleet admits at most
``burst + rate * t`` and the leased tokens that were unspent at the start.

As in a bucket, no method reads the pool, calls, and then writes it: at any call the garbage collector may run
and settle a dropped request, which returns tokens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

from autoglm_throttle.limiting.instant import seconds_until
from autoglm_throttle.limiting.token_bucket import TokenBucket

TICK_S: Final = 0.1
WEIGHT: Final = 0.3
"""Weight of each new tick of 0.1 s in the mean demand: by simulation."""

PREFETCH: Final = 0.5
"""Share of the lease time for which tokens are prefetched: a killed process loses no more."""

PREFETCH_BURST: Final = 0.1
"""Limit of the prefetch as a share of the bucket's fill time: pools come on top of a full bucket."""

COLD_START_COST: Final = 8.0
"""Cost in one tick above which arrivals outweigh the mean: fewer are chance."""

REFILL_AT: Final = 0.25
"""Share of the last prefetch below which more is leased in the background."""

PAUSE_S: Final = 0.012
"""Pause after a grant that fell short: less than 100 calls a second above the limit."""

MICRO: Final = 1_000_000
"""Micro-tokens in a token, the unit of the store: its arithmetic is on whole numbers."""


class LeaseRequest(NamedTuple):
    """Request of one priority to the store, in micro-tokens; the order is that of the script."""

    rate: int
    """Per second, for the time since the last call of any process."""
    burst: int
    want: int
    need: int
    """Shortfall of the first waiter."""
    returned: int
    """Leased and unused; below 0: spent without a lease."""


class TokenLease:
    """The tokens of one priority that this process may spend.

    Args:
        rate: nominal tokens per second of the whole fleet, > 0.
        burst: most tokens that the fleet's bucket holds, > 0.
        now: monotonic seconds.
        name: its name in rejections.
        lease_s: seconds after which unspent tokens are returned.
    """

    __slots__ = (
        "_answered_s",
        "_arrived",
        "_demand",
        "_grants",
        "_lease_s",
        "_local",
        "_owes",
        "_owes_reported",
        "_pool",
        "_prefetch_s",
        "_refill_at",
        "_rejected_cost",
        "_remaining",
        "_requested",
        "_short",
        "_tick_ends_s",
        "_waiters",
        "burst",
        "name",
        "nominal",
        "rate",
    )

    def __init__(self, rate: float, burst: float, now: float, name: str, lease_s: float) -> None:
        self.name: str = name
        self.nominal: float = rate
        self.rate: float = rate
        """Tokens per second now, of the whole fleet."""
        self.burst: float = burst
        self._lease_s = lease_s
        self._prefetch_s = min(PREFETCH * lease_s, PREFETCH_BURST * burst / rate)
        self.reset(now)

    def __repr__(self) -> str:
        where = "local" if self._local is not None else "leased"
        return f"TokenLease({self.name}, {self._pool:g} {where}, {self.rate:g}/s)"

    def reset(self, now: float) -> None:
        """Reset to an empty lease: after a fork, the leased tokens belong to the parent."""
        self._pool = 0.0
        self._grants: deque[tuple[float, float]] = deque()
        """Expiry and size of each grant."""
        self._waiters: dict[object, float] = {}
        self._demand = self._arrived = 0.0
        self._tick_ends_s = now + TICK_S
        self._refill_at = 0.0
        self._requested = 0.0
        self._answered_s = -math.inf
        """Time of the store's last answer; then its remaining tokens, and whether it fell short."""
        self._remaining = math.inf
        self._short = False
        self._rejected_cost = 0.0
        """Cost of the first rejection since then."""
        self._local: TokenBucket | None = None
        """Local bucket while the store is unavailable; then the tokens spent from it."""
        self._owes = 0.0
        self._owes_reported = 0.0

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
        if self._local is None:
            self._rejected_cost = self._rejected_cost or cost
            return seconds_until(self._ready_s(cost), now) or PAUSE_S
        wait = self._local.take(cost, now)
        if not wait:
            self._owes += cost
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

    def add_waiter(self, waiter: object, cost: float) -> None:
        """Register a waiter for the store's next answer."""
        self._waiters[waiter] = cost

    def remove_waiter(self, waiter: object) -> None:
        """Remove a waiter. Idempotent."""
        self._waiters.pop(waiter, None)

    @property
    def waiters(self) -> Collection[object]:
        """The waiters in order of arrival."""
        return self._waiters.keys()

    def is_short(self, now: float) -> bool:
        """Whether more tokens should be leased in the background."""
        return self._runs_out() and now >= max(self._ready_s(1.0), self._answered_s + PAUSE_S)

    def is_call_due(self, now: float) -> bool:
        """Whether there is a reason to call the store now."""
        return bool(self._waiters) or self.is_short(now) or now >= self.due_s()

    def due_s(self) -> float:
        """Return the time at which unspent tokens must be returned; infinite without any."""
        return self._grants[0][0] if self._grants and self._pool > 0.0 else math.inf

    def request(self, now: float) -> LeaseRequest:
        """Build the request to the store; returned tokens have left the pool then."""
        if now >= self._tick_ends_s:
            self._tick(now)
        rate, burst = math.floor(self.rate * MICRO), math.floor(self.burst * MICRO)
        self._requested = 0.0
        self._owes_reported = self._debt(now)
        owes = _up(self._owes_reported)
        if self._local is not None:
            return LeaseRequest(rate, burst, 0, 0, -owes)
        # Out of the pool before the call: a request during the call must not spend returned tokens.
        returned = self._unspent(now)
        self._pool -= returned / MICRO
        want, need = self._shortfall()
        self._requested = want / MICRO
        return LeaseRequest(rate, burst, want, need, returned - owes)

    def final_request(self) -> LeaseRequest:
        """Build the last request: return all tokens, want none."""
        pool = self._pool
        self._pool -= pool
        self._grants.clear()
        return LeaseRequest(math.floor(self.rate * MICRO), math.floor(self.burst * MICRO), 0, 0, _micro(pool))

    def apply_grant(self, grant: int, remaining: int, now: float) -> None:
        """Apply the store's answer to the last `request`, in micro-tokens, and release all waiters."""
        tokens = grant / MICRO
        self._pool += tokens
        if grant:
            self._grants.append((now + self._lease_s, tokens))
        self._waiters.clear()
        self._rejected_cost = 0.0
        self._answered_s, self._remaining, self._short = now, remaining / MICRO, tokens < self._requested
        self._owes = max(0.0, self._debt(now) - self._owes_reported)
        self._owes_reported = 0.0
        self._local = None

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
            holds = burst * min(1.0, (self._remaining + self.rate * (now - self._answered_s)) / self.burst)
        self._local = TokenBucket(self.nominal / processes, burst, now, self.name)
        self._local.take(burst - holds, now)
        self._local.rescale(self.rate / self.nominal, now)

    def _debt(self, now: float) -> float:
        """Return the tokens to deduct in the store: spent without it and not refilled by now."""
        local = self._local
        return self._owes if local is None else min(self._owes, local.burst - local.tokens(now))

    def _tick(self, now: float) -> None:
        """Close the ticks that have ended."""
        ended = int((now - self._tick_ends_s) / TICK_S) + 1
        self._demand += WEIGHT * (self._arrived / TICK_S - self._demand)
        self._demand *= (1.0 - WEIGHT) ** (ended - 1)
        self._arrived = 0.0
        self._tick_ends_s = now + TICK_S if ended > 1 else self._tick_ends_s + TICK_S

    def _prefetch_tokens(self) -> float:
        """Return the expected demand during the prefetch time."""
        return self._prefetch_s * self._demand

    def _ready_s(self, cost: float) -> float:
        """Return the time from which the store may cover ``cost``, by its last answer."""
        shortfall = cost - self._pool - self._remaining
        if shortfall <= 0.0:
            fits = self._answered_s
        elif self.rate:
            fits = self._answered_s + shortfall / self.rate
        else:
            fits = math.inf
        return max(fits, self._answered_s + PAUSE_S) if self._short else fits

    def _runs_out(self) -> bool:
        return self._pool <= self._refill_at and self._prefetch_tokens() >= 1.0

    def _shortfall(self) -> tuple[int, int]:
        """Return the wanted and the needed tokens, in micro-tokens."""
        waiting = math.fsum(self._waiters.values())
        first = next(iter(self._waiters.values()), self._rejected_cost)
        if not first and not self._runs_out():
            return 0, 0
        # At a cold start there is no mean yet: arrivals of this tick count, and double from call to call.
        prefetch = max(self._prefetch_tokens(), first, waiting + max(0.0, self._arrived - COLD_START_COST))
        self._refill_at = REFILL_AT * prefetch
        need = max(0.0, first - self._pool)
        want = max(need, math.ceil(prefetch) - self._pool)
        return _up(want), _up(need)

    def _unspent(self, now: float) -> int:
        """Return the unspent tokens of expired grants and refunds; the oldest grants are spent first."""
        grants = self._grants
        while grants and grants[0][0] <= now:
            grants.popleft()
        fresh = math.fsum(size for _, size in grants)
        return _micro(max(0.0, self._pool - fresh))


def _micro(tokens: float) -> int:
    return math.floor(tokens * MICRO)


def _up(tokens: float) -> int:
    return math.ceil(max(0.0, tokens) * MICRO)
