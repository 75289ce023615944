"""Slots of the calls in flight, and the ramp on which a breaker closes."""

from __future__ import annotations

import math
from typing import Final

from autoglm_throttle.settings.groups.breaker import BreakerSettings

# Seconds between two calls that request the fleet's lease: the default deadline of the store.
LEASE_REQUEST_INTERVAL_S: Final = 0.05

# Credit of one call, with tolerance: ten times 0.1 falls short of 1 by the last bit.
_ONE_CALL: Final = 1.0 - 1e-9


# Seconds after which a call without a settled result gives up its slot, without ``trial_lease_s`` and unless
# three times ``timeout_s`` are more: the longest time that clients of models wait for an answer (openai).
CALL_LEASE_S: Final = 600.0


class LeasedSlots:
    """Slots of calls in flight; a slot is released with the result of its call, or when its lease expires."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self.clear()

    def clear(self) -> None:
        """Release all slots."""
        self.acquired: dict[int, float] = {}  # serial number -> time of acquisition
        # Time of the oldest slot at most: until its lease expires, no search is needed.
        self._first_s = math.inf

    def acquire(self, serial: int, now: float) -> None:
        """Give the call ``serial`` a slot."""
        self._first_s = min(self._first_s, now)
        self.acquired[serial] = now

    def release(self, serial: int) -> bool:
        """Release the slot of a call; return whether it still held one."""
        return self.acquired.pop(serial, None) is not None

    def expire(self, now: float) -> None:
        """Release the slots with an expired lease."""
        if now - self._first_s >= self._lease_s:
            self.acquired = {serial: at for serial, at in self.acquired.items() if now - at < self._lease_s}
            self._first_s = min(self.acquired.values(), default=math.inf)

    def count_held(self, now: float) -> int:
        """Return the number of leases that have not expired. Has no effects."""
        if now - self._first_s < self._lease_s:
            return len(self.acquired)
        return sum(now - at < self._lease_s for at in self.acquired.values())


class CallSlots(LeasedSlots):
    """Slots of the probes of one generation, while half-open.

    Without ``success_threshold`` a round admits ``half_open_max`` probes in total, so a success keeps its
    slot. With it, ``half_open_max`` limits the concurrent probes.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self._max_probes = settings.half_open_max
        self._successes_needed = settings.successes_needed
        self._limits_round = settings.success_threshold is None
        self.requested_s: float = -math.inf  # when a call last requested a lease of the fleet
        # Whether a probe needs the fleet's lease; set by the owner of the breaker.
        self.lease_required: bool = False
        super().__init__(settings.lease_s)

    def clear(self) -> None:
        """Release all slots, for a new generation."""
        super().clear()
        self.successes: int = 0  # successes of this round

    def is_full(self, now: float, lease_required: bool) -> bool:
        """Whether no further probe may start here; with a lease the fleet's store counts the successes."""
        held_by_successes = self.successes if self._limits_round and not lease_required else 0
        return self.count_held(now) + held_by_successes >= self._max_probes

    def record_success(self) -> bool:
        """Record a success and return whether the round has enough."""
        self.successes += 1
        return self.successes >= self._successes_needed

    def is_lease_request_due(self, now: float) -> bool:
        """Whether the next call should request a lease of the fleet. Has no effects."""
        # The lower bound treats a clock that stepped back as expired, so the lease is requested again.
        return not 0.0 <= now - self.requested_s < LEASE_REQUEST_INTERVAL_S


class RampUp:
    """Gradual closing: a growing share of the calls is admitted, evenly spaced.

    A step is over when it has lasted ``step_s`` and one of its calls has succeeded.
    """

    def __init__(self, shares: tuple[float, ...], step_s: float) -> None:
        self._shares = shares
        self._step_s = step_s
        self.start(-math.inf)

    @property
    def share(self) -> float:
        """Admitted share of the calls in the current step."""
        return self._shares[self._step]

    def start(self, now: float) -> None:
        """Start with the first step."""
        self._step = 0
        self._since_s = now
        self.has_success: bool = False  # whether a call of this step has succeeded
        self._credit = 0.0

    def is_done(self, now: float) -> bool:
        """Whether the next call would find the last step over. Has no effects."""
        return self._step + 1 == len(self._shares) and self._step_is_over(now)

    def would_admit(self, now: float) -> bool:
        """Whether the next call would be admitted. Has no effects."""
        step = self._step + self._step_is_over(now)
        return step == len(self._shares) or self._credit + self._shares[step] >= _ONE_CALL

    def admit(self, now: float) -> bool:
        """Count a call and return whether it is admitted; the last step must not be over."""
        if self._step_is_over(now):
            self._step += 1
            self._since_s = now
            self.has_success = False
        self._credit += self.share
        if self._credit < _ONE_CALL:
            return False
        # The fraction left over stays as credit, so a share of 0.3 admits exactly 3 calls of 10.
        self._credit -= 1.0
        return True

    def _step_is_over(self, now: float) -> bool:
        return self.has_success and now - self._since_s >= self._step_s
