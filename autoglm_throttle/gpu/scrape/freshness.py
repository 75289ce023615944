"""Detects new measurements in repeated reads, and dates each row by them.

An exporter collects every 30 s and is read every second: 29 of 30 answers are the old measurement again. So a
row is dated by its energy counter, which never stands still while a device is in use; else by the time that
the source reports; else by any change in any row: an idle device may truly repeat all its numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import replace
from statistics import median_low
from typing import Final

from autoglm_throttle.types import DeviceKey, GpuSample

# Number of remembered gaps: their median tolerates four outliers, and a changed period shows after five.
GAPS: Final = 9
# Gaps after which the period is known, of two the shorter: a failed reading does not define it.
GAPS_TO_LEARN: Final = 2
# Seconds for which the state of a missing row is stored: if it returns unchanged, it is old.
FORGET_S: Final = 300.0
# Maximum rows; the longest unobserved are dropped. A source may rename its devices at every reading.
MOST_ROWS: Final = 4096


# A row, and the data that dates it: its energy counter, which moves with every measurement, and the Unix time
# of the measurement as the source reports it.
DatedRow = tuple[GpuSample, float | None, float | None]


class RefreshDetector:
    """Dates the rows of one source."""

    def __init__(self) -> None:
        self._clocks: dict[DeviceKey, _SeriesClock] = {}
        self._source = _SeriesClock()

    def date(self, rows: Collection[DatedRow], now: float, wall_s: float) -> list[GpuSample]:
        """Return the rows of one complete reading, ended at ``now``, with ``age_s`` and ``period_s``.

        ``wall_s`` is the Unix time then. An unchanged row keeps its time: ``taken_at_s - age_s`` stands
        still.
        """
        # frozenset: a source may list its rows in any order.
        self._source.observe(frozenset(replace(row, taken_at_s=0.0) for row, _, _ in rows), now, now)
        for key in [key for key, clock in self._clocks.items() if now - clock.observed_s > FORGET_S]:
            del self._clocks[key]
        dated = [self._dated(*row, now, wall_s) for row in rows]
        if len(self._clocks) > MOST_ROWS:
            oldest = sorted(self._clocks, key=lambda key: self._clocks[key].observed_s)
            for key in oldest[: len(oldest) - MOST_ROWS]:
                del self._clocks[key]
        return dated

    def _dated(
        self, row: GpuSample, counter: float | None, stamp_s: float | None, now: float, wall_s: float
    ) -> GpuSample:
        clock = self._source
        if stamp_s is not None or counter is not None:
            clock = self._clocks.setdefault((row.host, row.device), _SeriesClock())
            measured_s = now if stamp_s is None else now - max(0.0, wall_s - stamp_s)
            clock.observe(stamp_s if counter is None else counter, now, measured_s)
        period_s = clock.period_s if clock.period_s is not None else self._source.period_s
        return replace(row, taken_at_s=now, age_s=max(0.0, now - clock.measured_s), period_s=period_s)


class _SeriesClock:
    """Detects changes of one value, and learns their period."""

    def __init__(self) -> None:
        self.measured_s = 0.0
        self.observed_s = 0.0
        self._value: Hashable = None
        self._changes = 0
        self._gaps: deque[float] = deque(maxlen=GAPS)

    @property
    def period_s(self) -> float | None:
        return median_low(self._gaps) if len(self._gaps) >= GAPS_TO_LEARN else None

    def observe(self, value: Hashable, now: float, measured_s: float) -> None:
        self.observed_s = now
        if self._changes and value == self._value:
            return
        if self._changes > 1 and measured_s > self.measured_s:  # the first gap began before our first read
            self._gaps.append(measured_s - self.measured_s)
        self._value, self.measured_s = value, measured_s
        self._changes += 1
