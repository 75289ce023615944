"""Aggregates all devices of all sources into one view.

A lost device leaves every mean and lowers the capacity. Counted as 0 % busy it would raise the admitted rate
at the worst moment. One with a silent source leaves the means, and not the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any, Final

from autoglm_throttle.gpu.sample_builder import FieldReport, Identity, SampleBuilder
from autoglm_throttle.gpu.sanity import MEASURED, changed, lost
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import AggregateMode, GpuSample, GpuView

_FILLED: Final = tuple(name for name in MEASURED if name != "period_s")
# Fields of the first source, so that a device keeps its name while sources come and go.
_NAMED: Final = ("device", "index", "host", "source", "kind")


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
    # A loss that only a scrape reports is ignored while another source still lists the device.
    lost_reports = [one for one in reports if one.is_lost and not (live and one.is_unconfirmed)]
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
    """Fill unknown fields of the first recent row from the other rows."""
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
