"""Closing in steps: a growing share of the calls is let through, spread evenly and without chance."""

from __future__ import annotations

from typing import Final

_WHOLE: Final = 1.0 - 1e-9
"""A whole call's worth of credit: ten times 0.1 falls short of 1 by the last bit, and is to be one call."""


class Ramp:
    """The shares of one ramp, and how far it has come since its newest `start`.

    A step is over when it has lasted ``step_s`` and a call of it has succeeded.

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
        """Of the calls, in the present step."""
        return self._shares[self._step]

    def start(self, now: float) -> None:
        """Begin with the first step."""
        self._step = 0
        self._since_s = now
        self._has_success = False
        self._credit = 0.0

    def succeeded(self) -> None:
        """Note that a call of this step has succeeded."""
        self._has_success = True

    def ends(self, now: float) -> bool:
        """Whether the next call would find the last step over; free of effects."""
        return self._step + 1 == len(self._shares) and self._over(now)

    def admits(self, now: float) -> bool:
        """Whether the next call would be let through; free of effects."""
        step = self._step + self._over(now)
        return step == len(self._shares) or self._credit + self._shares[step] >= _WHOLE

    def ask(self, now: float) -> bool:
        """Count a call, which must not find the last step over; whether it is let through."""
        if self._over(now):
            self._step += 1
            self._since_s = now
            self._has_success = False
        self._credit += self.share
        if self._credit < _WHOLE:
            return False
        self._credit -= 1.0
        return True

    def _over(self, now: float) -> bool:
        return self._has_success and now - self._since_s >= self._step_s
