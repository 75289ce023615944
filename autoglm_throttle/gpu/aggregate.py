"""Several devices as one value.

A device that is lost, or that has vanished, leaves every mean and lowers the capacity.
It is never counted as 0 % busy: that classic bug raises the admitted rate at the worst moment.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.gpu.plausible import RANGES
from autoglm_throttle.model import Aggregate, GpuSample, GpuView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_Key = tuple[str, str]
_UNKNOWN: Final[dict[str, Any]] = dict.fromkeys(RANGES)


class Aggregator:
    """Remembers every device ever seen and merges each reading into a view.

    Args:
        how: which utilization the view carries. ``weighted`` counts a device by its memory,
            because a small card says little about a fleet of large ones;
            ``max`` suits tensor parallelism, where the slowest rank gates all.
    """

    __slots__ = ("_how", "_known", "_totals")

    def __init__(self, how: Aggregate) -> None:
        self._how = how
        self._known: dict[_Key, GpuSample] = {}
        self._totals: dict[_Key, int] = {}

    def __repr__(self) -> str:
        lost = sum(sample.health == "lost" for sample in self._known.values())
        return f"Aggregator({self._how.value}, {len(self._known)} devices, {lost} lost)"

    def update(self, rows: Iterable[GpuSample], now: float) -> GpuView:
        """Take in one reading of all devices.

        Args:
            rows: one row per device; of two with one id the newer counts. A known device of this host
                without a row has vanished and is ``lost`` until a row comes again. One of another host is
                forgotten: who tells of other hosts says which of their devices are lost, and leaves out
                what it cannot know.
            now: monotonic seconds; the time of the view where no row has one.

        Returns:
            The view. Capacity is the weight of usable devices over that of all known ones, 1 when
            none is known. Memory and power are those of the device nearest to its own limit.
        """
        seen = _newest(rows)
        for key, row in seen.items():
            self._known[key] = row
            if row.memory_total_bytes:
                self._totals[key] = row.memory_total_bytes
        for key in self._known.keys() - seen.keys():
            if key[0]:
                del self._known[key]
                self._totals.pop(key, None)
            else:
                self._known[key] = lost(self._known[key], "vanished: the source no longer lists it")
        weights = self._weights()
        usable = {key: row for key, row in self._known.items() if row.health != "lost"}
        told = list(usable.values() or seen.values())
        return GpuView(
            taken_at_s=max((row.taken_at_s for row in told), default=now),
            utilization_pct=_utilization(self._how, usable, weights),
            utilization_max_pct=_utilization(Aggregate.MAX, usable, weights),
            memory_ratio=_highest(usable.values(), _memory_ratio),
            power_ratio=_highest(usable.values(), _power_ratio),
            capacity=_share(usable, weights),
            devices=tuple(sorted(self._known.values(), key=_order)),
        )

    def _weights(self) -> Mapping[_Key, float]:
        """Memory totals, remembered over a loss; 1 for all if one of the known devices never told."""
        if len(self._totals) == len(self._known):
            return self._totals
        return dict.fromkeys(self._known, 1.0)


def _newest(rows: Iterable[GpuSample]) -> dict[_Key, GpuSample]:
    newest: dict[_Key, GpuSample] = {}
    for row in rows:
        key = (row.host, row.device)
        if key not in newest or row.taken_at_s > newest[key].taken_at_s:
            newest[key] = row
    return newest


def lost(last: GpuSample, note: str) -> GpuSample:
    """Make the last row of a device into that of a lost one: nothing of it is known any more, least of all 0.

    Args:
        last: as it was; a row that is lost already stays the same object.
        note: why.
    """
    if last.health == "lost":
        return last
    return replace(last, health="lost", notes=(note,), **_UNKNOWN)


def _utilization(
    how: Aggregate, usable: Mapping[_Key, GpuSample], weights: Mapping[_Key, float]
) -> float | None:
    told = [
        (row.utilization_pct, 1.0 if how is Aggregate.MEAN else weights[key])
        for key, row in usable.items()
        if row.utilization_pct is not None
    ]
    if not told:
        return None
    if how is Aggregate.MAX:
        return max(value for value, _ in told)
    # fsum is exact, so the order of the rows cannot change the result.
    mean = fsum(value * weight for value, weight in told) / fsum(weight for _, weight in told)
    return min(mean, max(value for value, _ in told))  # rounding must not lift 100 % above itself


def _highest(rows: Iterable[GpuSample], ratio: Callable[[GpuSample], float | None]) -> float | None:
    return max((value for row in rows if (value := ratio(row)) is not None), default=None)


def _memory_ratio(row: GpuSample) -> float | None:
    return _ratio(row.memory_used_bytes, row.memory_total_bytes)


def _power_ratio(row: GpuSample) -> float | None:
    return _ratio(row.power_w, row.power_limit_w)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _share(usable: Iterable[_Key], weights: Mapping[_Key, float]) -> float:
    known = fsum(weights.values())
    return fsum(weights[key] for key in usable) / known if known else 1.0


def _order(row: GpuSample) -> tuple[str, int, str]:
    return row.host, row.index, row.device
