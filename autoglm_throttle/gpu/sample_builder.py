"""Builds the newest samples of each source: its rows, their times and rates, and vanished devices.

Counters restart with a driver or a server. An implausible difference is "not known", never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from autoglm_throttle.gpu.sanity import RANGES, changed, lost
from autoglm_throttle.types import DeviceKey, GpuSample

# Two measurements are one if their times differ by less: a source computes its age from two clocks.
SAME_S: Final = 0.05
BELIEVED_INTERVALS: Final = 3.0
# A row counts for three of its source's intervals, and for two and a half of its measurement periods.
BELIEVED_PERIODS: Final = 2.5
# Sources that list running devices: a device that they no longer list may have been removed.
SCRAPED: Final = ("dcgm", "prometheus")
# Maximum devices of one source, 128 hosts of 8; the first that vanished are evicted.
MOST_DEVICES: Final = 1024
VANISHED: Final = "vanished: the source no longer lists it"
# Below this gap the step of a counter dominates: the energy counter moves some ten times a second.
LEAST_GAP_S: Final = 0.1
# Power and heat, in software and in hardware, are timed apart and may all count at once.
PARALLEL_REASONS: Final = 4

_COUNTERS: Final = {
    "nvlink_rx_bps": "nvlink_rx_bytes",
    "nvlink_tx_bps": "nvlink_tx_bytes",
    "pcie_rx_bps": "pcie_rx_bytes",
    "pcie_tx_bps": "pcie_tx_bytes",
    "tokens_per_s": "tokens_total",
    "preemptions_per_s": "preemptions_total",
    "power_mean_w": "energy_j",
    "throttled_ratio": "throttled_ns",
}
RATES: Final = tuple(_COUNTERS)  # Fields computed here if the source does not report them
Identity = str | tuple[str, str]
_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PART: Final = re.compile(rf"{_UUID.pattern}/[0-9]+", re.IGNORECASE)


def identity(row: GpuSample) -> Identity:
    """Return the identity of a device, equal for all sources: a full UUID, else host and device.

    That of a MIG instance is its part of the device, because an exporter knows no UUID of it.
    """
    if _PART.fullmatch(row.gpu_instance):
        return row.gpu_instance.lower()
    return row.device.lower() if _UUID.fullmatch(row.device) else (row.host, row.device)


def rates(before: GpuSample | None, row: GpuSample, gap_s: float) -> dict[str, float]:
    """Compute the fields of `RATES` that ``row`` lacks, over the seconds since the measurement before.

    A counter that went back, or that neither row knows, gives none. The mean power is that of the energy
    counter: some sensors cover only a quarter of the time (arXiv 2312.02741).
    """
    derived: dict[str, float] = {}
    if before is not None and gap_s >= LEAST_GAP_S:
        for name, counter in _COUNTERS.items():
            value, former = getattr(row, counter), getattr(before, counter)
            if value is None or former is None or getattr(row, name) is not None:
                continue
            growth = value - former
            if name == "throttled_ratio":  # several reasons, or clocks read a little apart: at most the gap
                slowed_s = growth / 1e9
                growth = -1.0 if slowed_s > 1.1 * PARALLEL_REASONS * gap_s else min(slowed_s, gap_s)
            low, high = RANGES[name]
            if low <= growth / gap_s <= high:
                derived[name] = growth / gap_s
    if row.power_mean_w is None and row.power_w is not None:
        derived.setdefault("power_mean_w", row.power_w)
    return derived


@dataclass(slots=True)
class FieldReport:
    """A device as one source has reported it, or as all have together."""

    row: GpuSample
    identity: Identity
    measured_s: float  # When it was measured; for a vanished one, when it was last found missing
    believed_until_s: float  # Until then the measurement counts in a mean
    interval_s: float | None
    total_bytes: int | None  # Memory of the device, remembered over a loss
    vanished_s: float | None = None  # Time since which the source does not list it

    @property
    def is_lost(self) -> bool:
        """Whether the device is lost."""
        return self.row.health == "lost"

    @property
    def is_unconfirmed(self) -> bool:
        """Whether only a scrape no longer lists it: an exporter drops a working device now and then."""
        return self.vanished_s is not None and self.row.source.startswith(SCRAPED)


class SampleBuilder:
    """Builds the newest rows of one source; a vanished scraped device counts as lost for ``forget_s``."""

    def __init__(self, stale_after_s: float, forget_s: float) -> None:
        self._stale_after_s = stale_after_s
        self._forget_s = forget_s
        self._interval_s: float | None = None
        # Every device that the source reports, or has reported and that is not dropped.
        self.reports: dict[DeviceKey, FieldReport] = {}

    def update(self, rows: Iterable[GpuSample], now: float, interval_s: float | None) -> None:
        """Add a complete reading of the source; of two rows with one name the newer counts."""
        if interval_s is not None:
            self._interval_s = interval_s
        current = _newest(rows)
        for key in self.reports.keys() - current.keys():
            self._mark_missing(key, now)
        for key, row in current.items():
            self.reports[key] = self._report(self.reports.get(key), row)
        if len(self.reports) > MOST_DEVICES:
            vanished = [
                (one.vanished_s, key) for key, one in self.reports.items() if one.vanished_s is not None
            ]
            for _, key in sorted(vanished)[: len(self.reports) - MOST_DEVICES]:
                del self.reports[key]

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
            kept = [name for name in RATES if getattr(row, name) is None] if row.health != "lost" else []
            row = changed(row, {name: getattr(before.row, name) for name in ("taken_at_s", "age_s", *kept)})
        elif row.health != "lost" and (derived := rates(None if before is None else before.row, row, gap_s)):
            row = changed(row, derived)
        intervals_s = BELIEVED_INTERVALS * (self._interval_s or 0.0)
        believed_s = max(self._stale_after_s, intervals_s, BELIEVED_PERIODS * (row.period_s or 0.0))
        name = identity(row) if before is None else before.identity
        return FieldReport(row, name, measured_s, measured_s + believed_s, self._interval_s, total_bytes)

    def _mark_missing(self, key: DeviceKey, now: float) -> None:
        """Mark a missing device as lost; drop an engine, and one of a source that reports losses itself."""
        report = self.reports[key]
        since_s = now if report.vanished_s is None else report.vanished_s
        scraped = report.row.source.startswith(SCRAPED)
        evicted = now - since_s > self._forget_s if scraped else bool(report.row.host)
        if evicted or report.row.kind == "engine":
            del self.reports[key]
            return
        self.reports[key] = replace(
            report,
            row=lost(report.row, VANISHED),
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
