"""Baseline of one device's signal while the service makes progress.

A 700 W device that serves a small model draws 170 W all day. One request of five minutes then looks
like a hang at 170 W: full utilization, little power, no output. The baseline separates the two: it is the
signal during progress. The seconds of a long answer count as work only once the answer is complete.
They are held until then, and dropped if no request is in flight any more.
"""

from __future__ import annotations

import math
from typing import Final

TIME_CONSTANT_S: Final = 60.0
"""Time constant of the average, s: the same as that of the throughput baseline."""

MAX_SECONDS_PER_GAP: Final = 30.0
"""Maximum seconds that one gap may contribute. A hang that ends in errors looks like an answer, and must not
become the baseline by itself.
"""


class WorkBaseline:
    """Average of one signal of one device over the seconds with progress."""

    __slots__ = ("_at_s", "_passed_s", "_progressed_s", "_sum", "mean")

    def __init__(self) -> None:
        self.mean: float | None = None
        """In the unit of the signal; None: no progress yet while the device was active."""
        self._at_s: float | None = None
        self._progressed_s: float | None = None
        self._sum = 0.0
        self._passed_s = 0.0

    def __repr__(self) -> str:
        return f"WorkBaseline(mean={self.mean})"

    def learn(
        self,
        value: float | None,
        at_s: float,
        *,
        active: bool,
        has_in_flight: bool,
        progressed_s: float | None,
    ) -> None:
        """Add a new measurement.

        Args:
            value: the signal; None: not known.
            at_s: monotonic seconds at which it was measured, not before that of the call before.
            active: whether the device did anything. A device at half of its utilization draws less than a
                full one, so the average errs towards calling nothing a hang.
            has_in_flight: whether a request of ours is in flight; otherwise no answer can confirm the work.
            progressed_s: time of the last progress; None: there never was any.
        """
        # The first sample has no gap: it only dates the next one.
        passed_s = 0.0 if self._at_s is None else min(at_s - self._at_s, MAX_SECONDS_PER_GAP)
        self._at_s = at_s
        if active and value is not None and passed_s > 0.0:
            self._sum += value * passed_s
            self._passed_s += passed_s
        if progressed_s != self._progressed_s:
            self._progressed_s = progressed_s
            self._fold()
        elif not has_in_flight:
            self._drop()

    def _fold(self) -> None:
        if self._passed_s > 0.0:
            observed = self._sum / self._passed_s
            # 1 - exp(-t/T): independent of the sampling interval; expm1 keeps small t exact.
            weight = -math.expm1(-min(self._passed_s, MAX_SECONDS_PER_GAP) / TIME_CONSTANT_S)
            self.mean = observed if self.mean is None else self.mean + (observed - self.mean) * weight
        self._drop()

    def _drop(self) -> None:
        self._sum = self._passed_s = 0.0
