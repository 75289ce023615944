"""Aggregates all devices of all sources into one view, from the newest samples of each source.

A lost device leaves every mean and lowers the capacity. Counted as 0 % busy it would raise the admitted rate
at the worst moment. One with a silent source leaves the means, and not the capacity. Counters restart with a
driver or a server: an implausible difference is "not known", never 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any, Final

from autoglm_throttle.gpu.sanity import MEASURED, RANGES, changed, lost
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import AggregateMode, DeviceKey, GpuSample, GpuView

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
_FILLED: Final = tuple(name for name in MEASURED if name != "period_s")
# Fields of the first source, so that a device keeps its name while sources come and go.
_NAMED: Final = ("device", "index", "host", "source", "kind")


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


def load_pct(row: GpuSample) -> float | None:
    """Utilization of a device; for a MIG instance, which has none, the share of time with any work."""
    if row.utilization_pct is not None:
        return row.utilization_pct
    return None if row.graphics_active_ratio is None else 100.0 * row.graphics_active_ratio


def power_w(row: GpuSample) -> float | None:
    """Mean power where it is known, else that of the moment."""
    return row.power_w if row.power_mean_w is None else row.power_mean_w


def ratio(part: float | None, whole: float | None) -> float | None:
    """One number over the other, if both are known and the second is not 0."""
    return None if part is None or not whole else part / whole


def merge(reports: Sequence[FieldReport], now: float) -> FieldReport:
    """Merge the reports on one device, the preferred source first; times are those of the load's report."""
    if len(reports) == 1:
        return reports[0]
    live = [one for one in reports if one.vanished_s is None]
    # A device that vanished from a scrape is not lost while another source still lists it: an exporter drops
    # a working one now and then.
    lost_reports = [
        one
        for one in reports
        if one.is_lost and not (live and one.vanished_s is not None and one.row.source.startswith(SCRAPED))
    ]
    if lost_reports:
        lead = max(lost_reports, key=lambda one: one.measured_s)
        row = changed(lost(reports[0].row, ""), {"notes": lead.row.notes})
    else:
        fresh = [one for one in live if now <= one.believed_until_s] or live
        lead = next((one for one in fresh if load_pct(one.row) is not None), fresh[0])
        row = _fill_gaps(reports[0].row, lead.row, [one.row for one in fresh])
    total_bytes = next((one.total_bytes for one in reports if one.total_bytes), None)
    return replace(lead, row=row, total_bytes=total_bytes)


def _fill_gaps(first: GpuSample, lead: GpuSample, rows: Sequence[GpuSample]) -> GpuSample:
    changes: dict[str, Any] = {name: getattr(first, name) for name in _NAMED}
    changes |= {
        "taken_at_s": lead.taken_at_s,
        "age_s": lead.age_s,
        "period_s": lead.period_s,
        "name": next((row.name for row in (first, *rows) if row.name), ""),
        "notes": tuple(dict.fromkeys(note for row in rows for note in row.notes)),
        "health": "degraded" if any(row.health == "degraded" for row in rows) else "ok",
    }
    base, others = rows[0], rows[1:]
    for name in _FILLED:
        if getattr(base, name) is None:
            known = (value for row in others if (value := getattr(row, name)) is not None)
            changes[name] = next(known, None)
    return changed(base, changes)


class Aggregator:
    """Remembers every reported device, and merges each reading into a view; preferred sources by ``order``.

    ``weighted`` counts a device by its memory; ``max`` suits tensor parallelism: the slowest rank limits all.
    """

    def __init__(self, settings: GpuSettings, order: Sequence[str] = ()) -> None:
        self._settings = settings
        self._order = {name: number for number, name in reversed(list(enumerate(order)))}
        self._builders: dict[str, SampleBuilder] = {}
        self._engines_at_s = -math.inf

    def update(
        self, rows: Iterable[GpuSample], now: float, *, source: str = "", interval_s: float | None = None
    ) -> GpuView:
        """Add one reading of a source, all devices that it reports, and return the new view.

        A missing device of this host is ``lost``, one of a scraped source for ``gpu_forget_s``; one of
        another host, and an engine, is dropped. ``interval_s``: until its next reading; None: as before.
        """
        rows = list(rows)
        sources = [row.source for row in rows if not row.host] or [row.source for row in rows]
        name = source or min(sources, default="")
        if not name and len(self._builders) == 1:
            name = next(iter(self._builders))
        if name and name not in self._builders:
            self._builders[name] = SampleBuilder(self._settings.stale_after_s, self._settings.gpu_forget_s)
            rank = self._order
            names = sorted(self._builders, key=lambda key: (rank.get(key, len(rank)), key))
            self._builders = {key: self._builders[key] for key in names}
        if name:
            self._builders[name].update(rows, now, interval_s)
        return self._view(now)

    def _devices(self, now: float) -> list[FieldReport]:
        """Merge the reports of all sources, and sort the devices: engines come last."""
        reports: dict[Identity, list[FieldReport]] = {}
        for builder in self._builders.values():
            for one in builder.reports.values():
                reports.setdefault(one.identity, []).append(one)
        return sorted(
            (merge(alike, now) for alike in reports.values()),
            key=lambda one: (one.row.kind == "engine", one.row.host, one.row.index, one.row.device),
        )

    def _view(self, now: float) -> GpuView:
        known = self._devices(now)
        gpus = [one for one in known if one.row.kind != "engine"]
        engines = [one for one in known if one.row.kind == "engine" and not one.is_lost]
        weights: Mapping[Identity, float] = {gpu.identity: gpu.total_bytes for gpu in gpus if gpu.total_bytes}
        if len(weights) < len(gpus):  # one unknown total makes memory weights incomparable
            weights = {gpu.identity: 1.0 for gpu in gpus}
        usable = [gpu for gpu in gpus if not gpu.is_lost]
        current = [gpu for gpu in usable if now <= gpu.believed_until_s]
        # Stale and lost devices still date the view, or its age would look like that of a fresh one.
        shown = current or usable or gpus
        reporting = [one.row for one in engines if now <= one.believed_until_s]
        # Never goes back: an engine that vanishes must not make the newest measurement older.
        self._engines_at_s = max([self._engines_at_s, *(one.measured_s for one in engines)])
        engines_at_s = None if self._engines_at_s == -math.inf else self._engines_at_s
        memory_ratio = _highest(
            ratio(gpu.row.memory_used_bytes, gpu.row.memory_total_bytes) for gpu in current
        )
        mode, whole = self._settings.gpu_aggregate, fsum(weights.values())
        no_gpu_s = now if engines_at_s is None else engines_at_s
        fills = [(row.kv_used_ratio, 1.0) for row in reporting if row.kv_used_ratio is not None]
        return GpuView(
            taken_at_s=max((gpu.measured_s for gpu in shown), default=no_gpu_s),
            utilization_pct=_utilization(mode, current, weights),
            utilization_max_pct=_utilization(AggregateMode.MAX, current, weights),
            utilization_mean_pct=_utilization(AggregateMode.MEAN, current, weights),
            memory_ratio=None if memory_ratio is None else min(memory_ratio, 1.0),
            power_ratio=_highest(ratio(power_w(gpu.row), gpu.row.power_limit_w) for gpu in current),
            capacity=fsum(weights[gpu.identity] for gpu in usable) / whole if gpus else 1.0,
            devices=tuple(one.row for one in known),
            kv_used_ratio=_mean(mode, fills),
            queued=_sum(row.queued for row in reporting),
            running=_sum(row.running for row in reporting),
            engines=len(reporting),
            engines_at_s=engines_at_s,
            interval_s=_highest(gpu.interval_s for gpu in shown),
            period_s=_highest(gpu.row.period_s for gpu in shown),
            weights={(gpu.row.host, gpu.row.device): weights[gpu.identity] / whole for gpu in gpus},
        )


def _utilization(
    mode: AggregateMode, gpus: Iterable[FieldReport], weights: Mapping[Identity, float]
) -> float | None:
    values = [
        (pct, weights[gpu.identity] if mode is AggregateMode.WEIGHTED else 1.0)
        for gpu in gpus
        if (pct := load_pct(gpu.row)) is not None
    ]
    return _mean(mode, values)


def _mean(mode: AggregateMode, values: Sequence[tuple[float, float]]) -> float | None:
    if not values:
        return None
    highest = max(value for value, _ in values)
    if mode is AggregateMode.MAX:
        return highest
    # fsum is exact, so the order of the rows cannot change the result.
    mean = fsum(value * weight for value, weight in values) / fsum(weight for _, weight in values)
    return min(mean, highest)  # rounding must not lift 100 % above itself


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
