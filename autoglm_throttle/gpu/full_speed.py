"""Which clock of a card means full speed.

The maximum boost clock is not it: a healthy card under dense matrix work sits at its power limit and
clocks well below, by published figures 65..95 % of the maximum on data centre cards and half of it on 70 W
cards. NVML calls that ``sw_power_cap`` too, so the bit alone cannot tell it from a card whose limit was
lowered: the limit that the card was sold with can, where it is told.

Full speed is therefore the best mean of ten seconds that the card kept while busy at its power limit, once
it has spent 30 s there: its everyday speed under full load. Not learned from: seconds with any bit of heat
or hardware, and seconds under a limit lower than the one that the card was sold with, or than one seen
before - a limit that was lowered stays visible for as long as it lasts. Until then full speed is the maximum
clock, which errs towards reporting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoglm_throttle.gpu.span_mean import SpanMean

if TYPE_CHECKING:
    from autoglm_throttle.model import GpuSample, ThrottleBit

SPANS: Final = 3
"""Spans of ten seconds at the limit before the learned clock counts: power control settles within one."""

SAME_LIMIT: Final = 0.05
"""Two power limits that differ by less are one: some drivers report the limit with the sensor's noise."""

_CAPPED: Final[frozenset[ThrottleBit]] = frozenset({"sw_power_cap"})

SLOWEST: Final = 0.2
"""Smallest share told: a lower clock is that of an idle card or a wrong reading, and 0 would be an outage."""


class FullSpeed:
    """The clock that one card keeps under full load."""

    __slots__ = ("_best_mhz", "_first_w", "_limit_w", "_span", "_spans")

    def __init__(self) -> None:
        self._restart()
        self._limit_w: float | None = None
        self._first_w: float | None = None

    def __repr__(self) -> str:
        return f"FullSpeed(learned_mhz={self.learned_mhz})"

    @property
    def learned_mhz(self) -> float | None:
        """Full speed as learned, MHz; None: not yet."""
        return self._best_mhz if self._spans >= SPANS else None

    def _restart(self) -> None:
        self._span = SpanMean()
        self._spans = 0
        self._best_mhz = 0.0

    def learn(self, row: GpuSample, at_s: float, *, busy: bool) -> None:
        """Take in a new measurement.

        Args:
            row: the card's sample.
            at_s: monotonic seconds at which it was measured.
            busy: whether the card was busy by its utilization.
        """
        lowered = self._lowered(row)
        capped = row.throttle == _CAPPED
        if row.sm_clock_mhz is None or not busy or not capped or lowered:
            self._span.restart()
            return
        mean = self._span.add(row.sm_clock_mhz, at_s)
        if mean is not None:
            self._spans += 1
            self._best_mhz = max(self._best_mhz, mean)

    def only_as_given(self, row: GpuSample) -> bool:
        """Whether what slows the card is at most the power limit that it has had since it was first seen.

        Whoever set the rates did so for a card with this limit.
        """
        limit_w, first_w, bits = row.power_limit_w, self._first_w, row.throttle
        if limit_w is None or first_w is None or bits is None:
            return False
        return bits <= _CAPPED and limit_w >= first_w * (1.0 - SAME_LIMIT)

    def _lowered(self, row: GpuSample) -> bool:
        """Whether the limit lies below the highest one known; a higher one voids all that was learned."""
        limit_w = row.power_limit_w
        if limit_w is None:
            return False
        if self._first_w is None:
            self._first_w = limit_w
        highest_w = max(limit_w, row.power_limit_default_w or 0.0)
        if self._limit_w is None or highest_w > self._limit_w * (1.0 + SAME_LIMIT):
            self._limit_w = highest_w
            self._restart()
        return limit_w < self._limit_w * (1.0 - SAME_LIMIT)

    def share(self, row: GpuSample) -> float | None:
        """Tell how fast the card runs.

        Args:
            row: the card's sample.

        Returns:
            0.2..1 of full speed; None if the clock, or what full speed is, is not known.
        """
        full = self.learned_mhz or row.sm_clock_max_mhz
        if row.sm_clock_mhz is None or full is None:
            return None
        return min(1.0, max(SLOWEST, row.sm_clock_mhz / full))
