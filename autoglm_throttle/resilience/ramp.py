"""Gradual closing: a growing share of the calls is admitted, evenly spaced and deterministic."""

from __future__ import annotations

from typing import Final

_ONE_CALL: Final = 1.0 - 1e-9
"""Credit of one call, with tolerance: ten times 0.1 falls short of 1 by the last bit."""


class RampUp:
    """Shares of one ramp-up, and its progress since the newest `start`.

    A step is over when it has lasted ``step_s`` and one of its calls has succeeded.

    Args:
        shares: rising, each in (0, 1).
        step_s: > 0.
    """

    __slots__ = ("_credit", "_has_success", "_shares", "_since_s", "_step", "_step_s")

    def __init__(self, shares: tuple[float, ...], step_s: float) -> None:
        self._shares = shares
        self._step_s = step_s
        self._step: int
        self._since_s: float
        self._has_success: bool
        self._credit: float

    @property
    def share(self) -> float:
        """Admitted share of the calls in the current step."""
        return self._shares[self._step]

    def start(self, now: float) -> None:
        """Start with the first step."""
        self._step = 0
        self._since_s = now
        self._has_success = False
        self._credit = 0.0

    def record_success(self) -> None:
        """Record that a call of this step has succeeded."""
        self._has_success = True

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
            self._has_success = False
        self._credit += self.share
        if self._credit < _ONE_CALL:
            return False
        # The fraction left over stays as credit, so a share of 0.3 admits exactly 3 calls of 10.
        self._credit -= 1.0
        return True

    def _step_is_over(self, now: float) -> bool:
        return self._has_success and now - self._since_s >= self._step_s
