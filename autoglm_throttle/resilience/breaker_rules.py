"""Settings of one breaker, as its mechanism reads them."""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.types import BreakerMode, SlowCallMode, StreamSettleMode, TooManyRequestsMode, TripRule

MIN_LEASE_S = 30.0
"""Default lease of a probe in seconds: longer than the common time-outs of clients."""

LEASE_TIMEOUTS = 3.0
"""Lease of a probe in multiples of the guard's time limit: covers a retry inside the call, and a margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """Settings of one breaker, complete and validated: ``BREAKER_*`` merged with the guard's own.

    Times are seconds, ratios 0..1.
    """

    failures: int = 5
    open_s: float = 10.0
    open_max_s: float | None = None
    backoff: float = 1.0
    half_open_max: int = 1
    success_threshold: int | None = None
    timeout_s: float | None = None
    trial_lease_s: float | None = None
    trip: frozenset[TripRule] = frozenset({TripRule.CONSECUTIVE})
    failure_window_s: float | None = None
    window: int = 10
    window_s: float | None = None
    min_calls: int = 10
    failure_rate: float = 0.5
    slow_rate: float = 0.5
    slow_call_s: float | None = None
    slow_is: SlowCallMode = SlowCallMode.FAILURE
    ramp: tuple[float, ...] = ()
    ramp_step_s: float = 5.0
    first_item_s: float | None = None
    stream_idle_s: float | None = None
    stream_settle: StreamSettleMode = StreamSettleMode.END
    max_in_flight: int = 0
    on_429: TooManyRequestsMode = TooManyRequestsMode.NEUTRAL
    mode: BreakerMode = BreakerMode.ENFORCE

    @property
    def lease_s(self) -> float:
        """Longest time in seconds for which a probe holds its slot."""
        if self.trial_lease_s is not None:
            return self.trial_lease_s
        return max(LEASE_TIMEOUTS * (self.timeout_s or 0.0), MIN_LEASE_S)

    @property
    def successes_needed(self) -> int:
        """Probes that must succeed before the breaker closes."""
        return self.success_threshold or self.half_open_max

    def wait_s(self, rounds: int) -> float:
        """Return the length of an open period in seconds.

        Args:
            rounds: consecutive openings without a closing between them, less one.
        """
        max_s = float("inf") if self.open_max_s is None else self.open_max_s
        if self.backoff == 1.0 or not rounds:
            return min(self.open_s, max_s)
        try:
            return min(self.open_s * self.backoff**rounds, max_s)
        # backoff**rounds can exceed the float range; 2**40 s stands for no limit.
        except OverflowError:
            return min(float.fromhex("0x1p+40"), max_s)
