"""Answers of a nearly idle service: they show the latency without load, and a learned objective."""

from __future__ import annotations

import math

from autoglm_throttle.limiting.work_class import MeasurementPeriod, WorkClass

# Requests beside which an answer still shows the latency without load: at least, and as a share of the limit.
# [simulated: two at any limit cost random mixes 7 %]
QUIET_MIN, QUIET_SHARE = 2, 0.25

# Only so many of the first answers of a class in a period may show it: the others need not pay for that.
QUIET_PER_PERIOD = 5


class QuietAnswers:
    """Collects the times of answers that began beside few others, in their work classes.

    Args:
        learns_slo: whether an objective is learned from them.
        even: whether other workers may load the service unseen.
    """

    __slots__ = ("_even", "_learns_slo", "first_end_s")

    def __init__(self, *, learns_slo: bool, even: bool) -> None:
        self._learns_slo = learns_slo
        self._even = even
        # When the first request ended: what began before may have waited for a model to load.
        self.first_end_s: float = math.inf

    def record(
        self,
        work_class: WorkClass,
        started_s: float,
        lasted_s: float,
        period: MeasurementPeriod,
        *,
        half_used: bool,
    ) -> None:
        """Record the time of an answer; ``half_used``: more than half of the limit is in use."""
        if started_s <= self.first_end_s:
            return
        limited = period.limited or period.was_limited
        # Other workers may load the service: nobody may have been limited lately.
        unloaded = started_s > period.busy_s and not (self._even and limited)
        if unloaded:
            work_class.unloaded.append(lasted_s)
        # A limit that nobody has reached may yet be far above what the service can do.
        if self._learns_slo and (unloaded or not (limited or half_used)):
            work_class.add_easy(lasted_s)
