"""The recent values of metrics: one ring of steps for each series, read as PromQL reads samples."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from autoglm_throttle.admission.counters import DURATION_BUCKETS_S

Labels = tuple[str, ...]

# A row: name and label values of a series, and its value; of a histogram the counts of its buckets, which are
# not cumulative.
Row = tuple[str, Labels, float | Sequence[float]]

KEEP_S: Final = 2100.0  # a baseline of 30 min that ended 5 min ago
STEP_S: Final = 5.0  # a third of the usual scrape interval of Prometheus: no alert is later than there

_GAP: Final = math.nan


class _Ring:
    """The values of one series: ``width`` of them in each of a number of slots, NaN where there is none."""

    __slots__ = ("fell", "newest", "slots", "sum", "values", "width")

    def __init__(self, slots: int, width: int, step: int) -> None:
        self.slots = slots
        self.width = width
        self.values = array("d", [_GAP]) * (slots * width)
        self.newest = step  # step of the newest value; there is none in the steps after it
        self.fell = step  # newest step in which a counter began anew
        self.sum = _GAP

    def put(self, step: int, value: float | Sequence[float]) -> None:
        for passed in range(max(self.newest + 1, step - self.slots), step):
            self.values[passed % self.slots * self.width] = _GAP
        start = step % self.slots * self.width
        row = array("d", [value] if isinstance(value, (int, float)) else value)
        self.values[start : start + self.width] = row
        total = sum(row)
        if total < self.sum:
            self.fell = step
        self.newest, self.sum = step, total

    def at(self, step: int) -> Sequence[float] | None:
        start = step % self.slots * self.width
        row = self.values[start : start + self.width]
        return None if step > self.newest or math.isnan(row[0]) else row

    def value(self, step: int) -> float | None:
        """Return the first column of a step."""
        value = self.values[step % self.slots * self.width]
        return None if step > self.newest or value != value else value  # noqa: PLR0124 - NaN

    def known(self, steps: range) -> list[float]:
        """Return the first column without its gaps."""
        if steps.start > self.newest or not steps:
            return []
        width, values = self.width, self.values
        start, end = (at % self.slots * width for at in (steps.start, min(steps.stop, self.newest + 1)))
        rows = values[start:end:width] if start < end else values[start::width] + values[:end:width]
        return [value for value in rows if not math.isnan(value)] if math.isnan(sum(rows)) else rows.tolist()

    def increases(self, steps: range) -> list[float] | None:
        """Return the increase of each column; None with less than two values."""
        rows = ((step, row) for step in steps if (row := self.at(step)) is not None)
        first, before = next(rows, (0, None))
        backwards = (row for step in reversed(steps) if step > first and (row := self.at(step)) is not None)
        last = next(backwards, None)
        if before is None or last is None:
            return None
        if self.fell <= first:
            return [newer - older for older, newer in zip(before, last, strict=True)]
        columns = zip(before, *(row for _, row in rows), strict=True)
        return [sum(_increase(*pair) for pair in pairwise(column)) for column in columns]


class History:
    """Keeps the values of metrics in steps of equal length. A value that is missing is a gap, never 0.

    A series is a name and its label values; ``match`` selects the series of a name by some of its labels.
    A window has both its ends, as in Prometheus 2: 60 s in steps of 5 s are 13 values. ``offset_s`` moves it
    into the past. One thread may record while others read.

    Args:
        labels: the names of the labels of each metric, by the metric's name.
        keep_s: length of the history, seconds.
        step_s: seconds between two steps.
    """

    def __init__(self, labels: Mapping[str, Labels], keep_s: float = KEEP_S, step_s: float = STEP_S) -> None:
        self.step_s: Final = step_s
        self.now_s: float = -math.inf
        """Monotonic time of the newest step; minus infinite before the first one."""
        self.wall_s: float = 0.0
        """Unix time of the newest step."""
        self._labels = labels
        self._kept = round(keep_s / step_s) + 1
        self._slots = self._kept + 1  # the one that is being written is not among those that are read
        self._first: int | None = None
        self._newest = -1
        self._rings: dict[str, dict[Labels, _Ring]] = {name: {} for name in labels}

    def record(self, now: float, wall_s: float, rows: Iterable[Row]) -> None:
        """Add a step at the monotonic time ``now``; steps that were left out since the last one are gaps."""
        step = max(round(now / self.step_s), self._newest)
        if self._first is None:
            self._first = step
        for name, labels, value in rows:
            rings = self._rings[name]
            if labels not in rings:
                width = 1 if isinstance(value, (int, float)) else len(value)
                rings[labels] = _Ring(self._slots, width, step)
            rings[labels].put(step, value)
        if step // self._slots > self._newest // self._slots:
            self._forget(step)
        self.now_s, self.wall_s, self._newest = now, wall_s, step

    def _forget(self, step: int) -> None:
        """Remove the series that have only gaps: of engines and devices that are not there any more."""
        for rings in self._rings.values():
            for labels in [labels for labels, ring in rings.items() if step - ring.newest >= self._kept]:
                del rings[labels]

    @property
    def steps(self) -> int:
        """Steps from the first one that is kept to the newest one, gaps included."""
        return 0 if self._first is None else min(self._newest - self._first + 1, self._kept)

    def series(self, name: str, **match: str) -> list[Labels]:
        """Return the label values of each series of a name that has a value in the history."""
        oldest = self._newest - self._kept
        return [labels for labels, ring in self._matching(name, match) if ring.newest > oldest]

    def values(
        self, name: str, labels: Labels = (), window_s: float | None = None, offset_s: float = 0.0
    ) -> list[float | None]:
        """Return the values of a series, the newest one last; None: a gap. Without a window all steps."""
        ring = self._rings[name].get(labels)
        steps = self._window(window_s, offset_s)
        return [None] * len(steps) if ring is None else list(map(ring.value, steps))

    def last(self, name: str, *, offset_s: float = 0.0, **match: str) -> dict[Labels, float]:
        """Return the values of one step, by default the newest one; without the series that have none."""
        rings = self._matching(name, match)
        return {
            labels: value
            for step in self._window(0.0, offset_s)
            for labels, ring in rings
            if (value := ring.value(step)) is not None
        }

    def known(self, name: str, window_s: float, **match: str) -> dict[Labels, list[float]]:
        """Return the values of a window without its gaps; without the series that have none."""
        steps = self._window(window_s, 0.0)
        rows = ((labels, ring.known(steps)) for labels, ring in self._matching(name, match))
        return {labels: values for labels, values in rows if values}

    def increase(self, name: str, window_s: float, **match: str) -> dict[Labels, float]:
        """Return the increase of counters in a window; a counter that falls has begun anew at 0.

        A series with less than two values in the window has none. Nothing is extrapolated.
        """
        steps = self._window(window_s, 0.0)
        rows = ((labels, ring.increases(steps)) for labels, ring in self._matching(name, match))
        return {labels: added[0] for labels, added in rows if added is not None}

    def rates(self, name: str, labels: Labels, window_s: float | None = None) -> list[float | None]:
        """Return the increase of a counter per second in each step; None where a value is missing."""
        found: list[float | None] = []
        for before, after in pairwise(self.values(name, labels, window_s)):
            known = before is not None and after is not None
            found.append(_increase(before or 0.0, after or 0.0) / self.step_s if known else None)
        return found

    def counts(self, name: str, window_s: float, offset_s: float = 0.0, **match: str) -> list[float] | None:
        """Return the durations added to each bucket of all matching histograms; None: there are no values."""
        steps = self._window(window_s, offset_s)
        every = (ring.increases(steps) for _, ring in self._matching(name, match))
        known = [added for added in every if added is not None]
        return [sum(bucket) for bucket in zip(*known, strict=True)] if known else None

    def quantile(
        self, share: float, name: str, window_s: float, offset_s: float = 0.0, **match: str
    ) -> float | None:
        """Return a quantile of the durations of a window, in seconds; None where there is none.

        Args:
            share: 0..1, such as 0.95.
            name: the histogram.
            window_s: length of the window.
            offset_s: seconds since the end of the window.
            match: labels of the series to add up.
        """
        return histogram_quantile(share, self.counts(name, window_s, offset_s, **match) or ())

    def quantiles(self, share: float, name: str, window_s: float, **match: str) -> list[float | None]:
        """Return the quantile of the window before each step, the newest one last."""
        offsets = (step * self.step_s for step in reversed(range(self.steps)))
        return [self.quantile(share, name, window_s, offset_s, **match) for offset_s in offsets]

    def _matching(self, name: str, match: Mapping[str, str]) -> list[tuple[Labels, _Ring]]:
        rings = list(self._rings[name].items())
        for label, value in match.items():
            position = self._labels[name].index(label)
            rings = [row for row in rings if row[0][position] == value]
        return rings

    def _window(self, window_s: float | None, offset_s: float) -> range:
        """Return the steps of a window that are kept."""
        newest, steps = self._newest, self.steps  # read once: another thread may be recording
        last = newest - round(offset_s / self.step_s)
        oldest = newest - steps + 1
        first = oldest if window_s is None else last - round(window_s / self.step_s)
        return range(max(first, oldest), last + 1)


def histogram_quantile(share: float, counts: Sequence[float]) -> float | None:
    """Return a quantile of durations as PromQL does, linear inside a bucket of `DURATION_BUCKETS_S`.

    The first bucket begins at 0; above the last edge the result is this edge. None: there are no durations.
    """
    rank, below = share * sum(counts), 0.0
    if not sum(counts):
        return None
    for count, start, end in zip(counts, (0.0, *DURATION_BUCKETS_S), DURATION_BUCKETS_S, strict=False):
        if count and below + count >= rank:
            return start + (end - start) * (rank - below) / count
        below += count
    return DURATION_BUCKETS_S[-1]


def _increase(before: float, after: float) -> float:
    return after - before if after >= before else after
