"""What a card shows of itself while the service gets something done.

A card of 700 W that serves a small model draws 170 W all day, and one request of five minutes looks then
like a hang at 170 W: full utilization, little power, nothing comes out. What tells them apart is what the
card drew when something did come out. The seconds of a long answer are known to have been work only once it
is there, so they are remembered until then, and dropped if nobody waits for it any more.
"""

from __future__ import annotations

import math
from typing import Final

USUAL_S: Final = 60.0
"""Time constant of the average, s: that of the usual progress."""

MOST_S: Final = 30.0
"""Seconds that one silence may teach, however long it was: a hang that ends in errors looks like an answer,
and must not become the usual by itself."""


class AtWork:
    """The average of one signal of one card over the seconds in which something came out."""

    __slots__ = ("_at_s", "_moved_s", "_passed_s", "_sum", "mean")

    def __init__(self) -> None:
        self.mean: float | None = None
        """In the unit of the signal; None: nothing has come out yet while the card did anything."""
        self._at_s: float | None = None
        self._moved_s: float | None = None
        self._sum = 0.0
        self._passed_s = 0.0

    def __repr__(self) -> str:
        return f"AtWork(mean={self.mean})"

    def learn(
        self, value: float | None, at_s: float, *, active: bool, waited_for: bool, moved_s: float | None
    ) -> None:
        """Take in a new measurement.

        Args:
            value: the signal; None: not known.
            at_s: monotonic seconds at which it was measured, not before that of the call before.
            active: whether the card did anything. A card at half of its utilization draws less than one that
                is full, so the average errs towards calling nothing a hang.
            waited_for: whether a request of ours is in flight; else nobody will say what it was for.
            moved_s: when something last came out; None: nothing ever did.
        """
        passed_s = 0.0 if self._at_s is None else min(at_s - self._at_s, MOST_S)
        self._at_s = at_s
        if active and value is not None and passed_s > 0.0:
            self._sum += value * passed_s
            self._passed_s += passed_s
        if moved_s != self._moved_s:
            self._moved_s = moved_s
            self._fold()
        elif not waited_for:
            self._drop()

    def _fold(self) -> None:
        if self._passed_s > 0.0:
            seen = self._sum / self._passed_s
            weight = -math.expm1(-min(self._passed_s, MOST_S) / USUAL_S)
            self.mean = seen if self.mean is None else self.mean + (seen - self.mean) * weight
        self._drop()

    def _drop(self) -> None:
        self._sum = self._passed_s = 0.0
