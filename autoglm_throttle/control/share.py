"""The share of the cards that may be counted on: it falls at once, and rises once three samples agree."""

from __future__ import annotations

import math
from collections import deque

from autoglm_throttle.control.staleness import Staleness

SAMPLES_TO_TRUST = 3
"""New samples after a fault before anything may act on what they tell: as many as trigger the table."""

NEW_AFTER = 0.5
"""Share of the sampling interval that must lie between two samples: several sources that are read in turn,
each with new numbers of its own, are one sample in each interval, or three strikes would be over in one."""

BLEND_STEP_S = 0.25
"""How often the factor moves while telemetry is stale."""


class Share:
    """One share in force, 0..1, by what the views tell of it.

    The first view is taken as it is. Later ones lower the share at once. It rises only after three new
    samples in a row that tell more than what is in force, to the least of what they told: a card that comes
    and goes counts as gone. While no view comes it drifts, by its age, to what is assumed of the unknown.

    Args:
        ladder: the interval as configured, and how age counts.
        now: monotonic seconds.
    """

    def __init__(self, ladder: Staleness, now: float) -> None:
        self._spacing_s = NEW_AFTER * ladder.interval_s
        self._ladder = ladder
        self._share = 1.0
        """When last viewed."""
        self._viewed_s = now
        self._unheard = True
        self._more: deque[float] = deque(maxlen=SAMPLES_TO_TRUST)
        """What the last new samples told, while all of them in a row tell more than what is in force."""
        self._measured_s = -math.inf
        """When the newest sample that told more was."""

    def forget(self) -> None:
        """Take the next view as it is, like the first one."""
        self._unheard = True

    def hear(self, told: float, measured_s: float, ladder: Staleness, now: float) -> None:
        """Take in what a view tells.

        A view that tells more and is no new sample counts as no view at all: it neither confirms the loss nor
        brings a card back, and if nothing else comes the share drifts.

        Args:
            told: 0..1.
            measured_s: monotonic seconds at which it was so.
            ladder: by which the age of this view is to count.
            now: monotonic seconds.
        """
        held = self.at(now)
        if now - self._viewed_s > self._ladder.stale_s:
            self._more.clear()
        self._ladder = ladder
        if self._unheard or told <= held:
            self._unheard, self._share, self._viewed_s = False, told, now
            self._more.clear()
        elif min(measured_s, now) - self._measured_s > self._spacing_s:
            self._more.append(told)
            self._measured_s = min(measured_s, now)
            self._share = min(self._more) if len(self._more) == SAMPLES_TO_TRUST else held
            self._viewed_s = now

    def at(self, now: float) -> float:
        """The share in force."""
        return self._ladder.capacity(self._share, now - self._viewed_s)

    def until(self, now: float) -> float:
        """Until when it holds if no view comes; of nothing, until the next is due: then it rises later."""
        if not self.at(now):
            return self._due_s(now)
        if self._share == 1.0 or now - self._viewed_s > self._ladder.blind_s:
            return math.inf
        return max(now + BLEND_STEP_S, self._viewed_s + self._ladder.stale_s)

    def rises_at(self, now: float) -> float:
        """The first sample that could raise it, if from the next one on all tell more.

        If the next view should have come already, nothing better is known than one interval from now.
        """
        first_s = self._due_s(now)
        seen = len(self._more) if first_s - self._viewed_s <= self._ladder.stale_s else 0
        wanted = max(1, SAMPLES_TO_TRUST - seen)
        return first_s + (wanted - 1) * self._ladder.interval_s

    def _due_s(self, now: float) -> float:
        """The next view; once one has told more, the next that is measured anew."""
        step_s = self._ladder.interval_s if self._more else self._ladder.promised_s
        due_s = self._viewed_s + step_s
        return due_s if due_s > now else now + step_s
