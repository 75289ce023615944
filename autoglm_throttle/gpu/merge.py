"""Merges the reports of several sources on one device.

Each field comes from the first source that knows it. A report that is too old is left out as long as
another one is recent. A device is lost if a source says so, or the driver no longer lists it. One that
only vanished from a scrape is lost if no other source lists it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.gpu.sample_copy import MEASURED, changed, lost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoglm_throttle.gpu.sample_builder import FieldReport, Identity
    from autoglm_throttle.types import GpuSample

_FILLED: Final = tuple(name for name in MEASURED if name != "period_s")
_NAMED: Final = ("device", "index", "host", "source", "kind")
"""Fields of the first source, so that a device keeps its name while sources come and go."""


@dataclass(frozen=True, slots=True)
class MergedDevice:
    """A device as reported by all sources together."""

    row: GpuSample
    """Its times and its period are those of the measurement that supplies the load."""
    identity: Identity
    measured_s: float
    believed: bool
    """Whether the measurement is recent enough to count in a mean."""
    interval_s: float | None
    """Interval of the source that supplies the load."""
    total_bytes: int | None
    """Memory, remembered over a loss, by the first source that ever reported it."""

    @property
    def usable(self) -> bool:
        """Whether it is not lost."""
        return self.row.health != "lost"


def load_pct(row: GpuSample) -> float | None:
    """Utilization of a device; for a MIG instance, which has none, the share of time with any work."""
    if row.utilization_pct is not None:
        return row.utilization_pct
    return None if row.graphics_active_ratio is None else 100.0 * row.graphics_active_ratio


def merge(reports: Sequence[FieldReport], now: float) -> MergedDevice:
    """Merge the reports on one device.

    Args:
        reports: at least one, the preferred source first.
        now: monotonic seconds.
    """
    if len(reports) == 1:
        return _merged_device(reports[0], reports[0].row, reports, now)
    live = [one for one in reports if one.vanished_s is None]
    # A loss that only a scrape reports is ignored while another source still lists the device.
    lost_reports = [one for one in reports if one.row.health == "lost" and not (live and one.is_unconfirmed)]
    if lost_reports:
        newest = max(lost_reports, key=lambda one: one.measured_s)
        lost_row = lost(reports[0].row, "; ".join(newest.row.notes))
        return _merged_device(newest, changed(lost_row, {"notes": newest.row.notes}), reports, now)
    fresh = [one for one in live if now <= one.believed_until_s] or live
    lead = next((one for one in fresh if load_pct(one.row) is not None), fresh[0])
    return _merged_device(
        lead, _fill_gaps(reports[0].row, lead.row, [one.row for one in fresh]), reports, now
    )


def _merged_device(
    lead: FieldReport, row: GpuSample, reports: Sequence[FieldReport], now: float
) -> MergedDevice:
    total_bytes = next((one.total_bytes for one in reports if one.total_bytes), None)
    believed = now <= lead.believed_until_s
    return MergedDevice(row, lead.identity, lead.measured_s, believed, lead.interval_s, total_bytes)


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
