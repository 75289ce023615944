"""Builds the newest samples of each source: its rows, their measurement times, and vanished devices."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.gpu.rates import RATES, rates
from autoglm_throttle.gpu.sample_copy import changed, lost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoglm_throttle.types import DeviceKey, GpuSample

SAME_S: Final = 0.05
"""Two measurements are one if their times differ by less. A source computes its age from two clocks, read one
after the other. A quarter of the shortest sampling interval.
"""

BELIEVED_INTERVALS: Final = 3.0
BELIEVED_PERIODS: Final = 2.5
"""A row counts for three of its source's intervals, and for two and a half of its measurement periods.
The telemetry as a whole is stale after the same limits.
"""

SCRAPED: Final = ("dcgm", "prometheus")
"""Sources that list running devices: a device that they no longer list may have been removed."""

MOST_DEVICES: Final = 1024
"""Maximum devices of one source; the first that vanished are evicted. An exporter that renames its devices
at every reading would fill the memory. 128 hosts of 8 devices fit.
"""

VANISHED: Final = "vanished: the source no longer lists it"

Identity = str | tuple[str, str]
"""Identifies a device across all sources."""

_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PART: Final = re.compile(rf"{_UUID.pattern}/[0-9]+", re.IGNORECASE)


def identity(row: GpuSample) -> Identity:
    """Return the identity of a device, equal for all sources that report it.

    It is a full UUID; for a MIG instance its part of the device, because an exporter knows no UUID of it;
    else host and device.
    """
    if _PART.fullmatch(row.gpu_instance):
        return row.gpu_instance.lower()
    return row.device.lower() if _UUID.fullmatch(row.device) else (row.host, row.device)


@dataclass(slots=True)
class FieldReport:
    """A device as one source has reported it."""

    row: GpuSample
    """With rates."""
    identity: Identity
    measured_s: float
    """When it was measured; for a vanished one, when it was last found missing."""
    believed_until_s: float
    interval_s: float | None
    """From one reading of the source to the next, as promised."""
    total_bytes: int | None
    """Memory of the device, remembered over a loss."""
    vanished_s: float | None = None
    """Time since which the source does not list it."""

    @property
    def is_unconfirmed(self) -> bool:
        """Whether only a scrape no longer lists it: an exporter drops a working device now and then."""
        return self.vanished_s is not None and self.row.source.startswith(SCRAPED)


class SampleBuilder:
    """Builds the newest rows of one source.

    Args:
        stale_after_s: minimum time for which a measurement counts.
        forget_s: time for which a device that vanished from a scraped source counts as lost.
    """

    __slots__ = ("_forget_s", "_interval_s", "_reports", "_stale_after_s")

    def __init__(self, stale_after_s: float, forget_s: float) -> None:
        self._stale_after_s = stale_after_s
        self._forget_s = forget_s
        self._interval_s: float | None = None
        self._reports: dict[DeviceKey, FieldReport] = {}

    @property
    def reports(self) -> Iterable[FieldReport]:
        """Every device that the source reports, or has reported and that is not dropped."""
        return self._reports.values()

    def update(self, rows: Iterable[GpuSample], now: float, interval_s: float | None) -> None:
        """Add a complete reading of the source.

        Args:
            rows: one per device; of two with one name the newer counts.
            now: monotonic seconds.
            interval_s: until the next reading, as promised; None: as before.
        """
        if interval_s is not None:
            self._interval_s = interval_s
        current = _newest(rows)
        for key in self._reports.keys() - current.keys():
            self._mark_missing(key, now)
        for key, row in current.items():
            self._reports[key] = self._report(self._reports.get(key), row)
        if len(self._reports) > MOST_DEVICES:
            self._evict_vanished(len(self._reports) - MOST_DEVICES)

    def _evict_vanished(self, number: int) -> None:
        vanished = [
            (report.vanished_s, key) for key, report in self._reports.items() if report.vanished_s is not None
        ]
        for _, key in sorted(vanished)[:number]:
            del self._reports[key]

    def _report(self, before: FieldReport | None, row: GpuSample) -> FieldReport:
        measured_s = row.taken_at_s - row.age_s
        total_bytes = row.memory_total_bytes or (None if before is None else before.total_bytes)
        # After a loss counters may have restarted: no rate across it.
        if before is not None and before.vanished_s is not None:
            before = None
        gap_s = 0.0 if before is None else measured_s - before.measured_s
        # The same measurement again keeps its time and rates; a rate over a gap of 0 would be noise.
        if before is not None and abs(gap_s) < SAME_S:
            measured_s = before.measured_s
            row = changed(row, _unchanged_fields(before.row, row))
        elif row.health != "lost" and (derived := rates(None if before is None else before.row, row, gap_s)):
            row = changed(row, derived)
        return FieldReport(
            row,
            identity(row) if before is None else before.identity,
            measured_s,
            measured_s + self._believed_s(row.period_s),
            self._interval_s,
            total_bytes,
        )

    def _believed_s(self, period_s: float | None) -> float:
        intervals_s = BELIEVED_INTERVALS * (self._interval_s or 0.0)
        return max(self._stale_after_s, intervals_s, BELIEVED_PERIODS * (period_s or 0.0))

    def _mark_missing(self, key: DeviceKey, now: float) -> None:
        """Mark a missing device as lost, or drop it.

        Engines come and go. A source of other hosts' devices reports losses itself. A scraped device may have
        been removed; one of this host has failed.
        """
        report = self._reports[key]
        since_s = now if report.vanished_s is None else report.vanished_s
        scraped = report.row.source.startswith(SCRAPED)
        evicted = now - since_s > self._forget_s if scraped else bool(report.row.host)
        if evicted or report.row.kind == "engine":
            del self._reports[key]
        else:
            row = lost(report.row, VANISHED)
            self._reports[key] = replace(
                report,
                row=row,
                measured_s=now,
                believed_until_s=now,
                interval_s=self._interval_s,
                vanished_s=since_s,
            )


def _newest(rows: Iterable[GpuSample]) -> dict[DeviceKey, GpuSample]:
    newest: dict[DeviceKey, GpuSample] = {}
    for row in rows:
        key = (row.host, row.device)
        known = newest.get(key)
        if known is None or row.taken_at_s - row.age_s > known.taken_at_s - known.age_s:
            newest[key] = row
    return newest


def _unchanged_fields(before: GpuSample, row: GpuSample) -> dict[str, Any]:
    """Return the fields that stay for a repeated measurement: its time, and the rates computed from it."""
    times = {"taken_at_s": before.taken_at_s, "age_s": before.age_s}
    if row.health == "lost":
        return times
    return times | {name: getattr(before, name) for name in RATES if getattr(row, name) is None}
