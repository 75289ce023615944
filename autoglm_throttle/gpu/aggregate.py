"""Aggregates all devices of all sources into one view.

A device that is lost, or that has vanished, leaves every mean and lowers the capacity.
It is never counted as 0 % busy: that classic bug raises the admitted rate at the worst moment.
A device with a silent source leaves the means, too. It stays in the capacity: its loss is not reported.
"""

from __future__ import annotations

import math
from math import fsum
from typing import TYPE_CHECKING

from autoglm_throttle.gpu.merge import Merged, load_pct, merged
from autoglm_throttle.gpu.readings import Reading
from autoglm_throttle.model import Aggregate, GpuSample, GpuView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autoglm_throttle.gpu.readings import Identity, Told


class Aggregator:
    """Remembers every reported device, and merges each reading into a view.

    Args:
        mode: the aggregate of utilization in the view. ``weighted`` counts a device by its memory,
            because a small device says little about a fleet of large ones;
            ``max`` suits tensor parallelism, where the slowest rank limits all.
        stale_after_s: minimum time for which a measurement counts in the means: the telemetry's own limit.
        forget_s: time for which a device that a scraped source no longer lists counts as lost. After that it
            counts as scaled away.
        order: names of sources. If several report a field of a device, the first counts. Sources that are not
            named follow, sorted by name.
    """

    __slots__ = (
        "_devices",
        "_engines_at_s",
        "_forget_s",
        "_how",
        "_order",
        "_readings",
        "_stale_after_s",
    )

    def __init__(
        self,
        how: Aggregate,
        *,
        stale_after_s: float = 3.0,
        forget_s: float = 300.0,
        order: Sequence[str] = (),
    ) -> None:
        self._how = how
        self._stale_after_s = stale_after_s
        self._forget_s = forget_s
        self._order = {name: number for number, name in reversed(list(enumerate(order)))}
        self._readings: dict[str, Reading] = {}
        """By the source's name, in the order of preference."""
        self._engines_at_s = -math.inf
        self._devices: tuple[GpuSample, ...] = ()

    def __repr__(self) -> str:
        cards = [row for row in self._devices if row.kind != "engine"]
        lost = sum(row.health == "lost" for row in cards)
        return f"Aggregator({self._how.value}, {len(cards)} devices, {lost} lost)"

    def update(
        self, rows: Iterable[GpuSample], now: float, *, source: str = "", interval_s: float | None = None
    ) -> GpuView:
        """Add one reading of a source and return the new view.

        Args:
            rows: all devices that the source reports; those of other sources remain. One that is missing has
                vanished: a device of this host is ``lost`` until a row comes again, one of a scraped source
                for ``forget_s``. One of another host is dropped, since such a source reports losses itself.
                A missing engine is dropped, too.
            now: monotonic seconds; the time of the view before the first measurement.
            source: its name; empty: that in the rows of this host, or in all rows if this host has none.
            interval_s: until its next reading, as promised; None: as before.

        Returns:
            The view. Capacity is the weight of usable devices over that of all known ones, 1 when none is
            known. Memory and power are those of the device nearest to its own limit. Times and ages are those
            of the measurements that supply the load.
        """
        rows = list(rows)
        name = source or _named(rows) or self._only()
        if name and name not in self._readings:
            self._readings[name] = Reading(self._stale_after_s, self._forget_s)
            self._readings = {key: self._readings[key] for key in sorted(self._readings, key=self._rank)}
        if name:
            self._readings[name].take(rows, now, interval_s)
        return self._view(now)

    def _rank(self, name: str) -> tuple[int, str]:
        return self._order.get(name, len(self._order)), name

    def _only(self) -> str:
        """Return the only source, owner of a reading without rows and name. Empty if there are several."""
        return next(iter(self._readings)) if len(self._readings) == 1 else ""

    def _view(self, now: float) -> GpuView:
        known = self._known(now)
        cards = [one for one in known if one.row.kind != "engine"]
        engines = [one for one in known if one.row.kind == "engine" and one.usable]
        weights = _weights(cards)
        usable = [card for card in cards if card.usable]
        current = [card for card in usable if card.believed]
        # Stale and lost devices still date the view, or its age would look like that of a fresh one.
        shown = current or usable or cards
        heard = [one.row for one in engines if one.believed]
        # Never goes back: an engine that vanishes must not make the newest measurement older.
        self._engines_at_s = max([self._engines_at_s, *(one.measured_s for one in engines)])
        engines_at_s = None if self._engines_at_s == -math.inf else self._engines_at_s
        whole = fsum(weights.values())
        self._devices = tuple(sorted((one.row for one in known), key=_place))
        return GpuView(
            taken_at_s=max(
                (card.measured_s for card in shown), default=now if engines_at_s is None else engines_at_s
            ),
            utilization_pct=_utilization(self._how, current, weights),
            utilization_max_pct=_utilization(Aggregate.MAX, current, weights),
            utilization_mean_pct=_utilization(Aggregate.MEAN, current, weights),
            memory_ratio=_highest(current, _memory_ratio),
            power_ratio=_highest(current, _power_ratio),
            capacity=fsum(weights[card.identity] for card in usable) / whole if cards else 1.0,
            devices=self._devices,
            kv_used_ratio=_fill(self._how, heard),
            queued=_sum(row.queued for row in heard),
            running=_sum(row.running for row in heard),
            engines=len(heard),
            engines_at_s=engines_at_s,
            interval_s=_slowest(card.interval_s for card in shown),
            period_s=_slowest(card.row.period_s for card in shown),
            weights={(card.row.host, card.row.device): weights[card.identity] / whole for card in cards},
        )

    def _known(self, now: float) -> list[Merged]:
        told: dict[Identity, list[Told]] = {}
        for reading in self._readings.values():
            for one in reading.told:
                told.setdefault(one.identity, []).append(one)
        return [merged(alike, now) for alike in told.values()]


def _named(rows: Sequence[GpuSample]) -> str:
    return min([row.source for row in rows if not row.host] or [row.source for row in rows], default="")


def _weights(cards: Sequence[Merged]) -> Mapping[Identity, float]:
    """Memory totals as weights; 1 for all if a known device never reported its total."""
    totals = {card.identity: card.total_bytes for card in cards if card.total_bytes}
    # One unknown total makes memory weights incomparable.
    return totals if len(totals) == len(cards) else dict.fromkeys((card.identity for card in cards), 1.0)


def _utilization(how: Aggregate, cards: Iterable[Merged], weights: Mapping[Identity, float]) -> float | None:
    told = [
        (pct, weights[card.identity] if how is Aggregate.WEIGHTED else 1.0)
        for card in cards
        if (pct := load_pct(card.row)) is not None
    ]
    return _mean(how, told)


def _fill(how: Aggregate, engines: Iterable[GpuSample]) -> float | None:
    """Aggregate the fill of the engines' caches; engines have no weights."""
    return _mean(how, [(row.kv_used_ratio, 1.0) for row in engines if row.kv_used_ratio is not None])


def _mean(how: Aggregate, told: Sequence[tuple[float, float]]) -> float | None:
    if not told:
        return None
    highest = max(value for value, _ in told)
    if how is Aggregate.MAX:
        return highest
    # fsum is exact, so the order of the rows cannot change the result.
    mean = fsum(value * weight for value, weight in told) / fsum(weight for _, weight in told)
    return min(mean, highest)  # rounding must not lift 100 % above itself


def _highest(cards: Iterable[Merged], ratio: Callable[[GpuSample], float | None]) -> float | None:
    return max((value for card in cards if (value := ratio(card.row)) is not None), default=None)


def _memory_ratio(row: GpuSample) -> float | None:
    """Memory in use over the total, at most 1."""
    ratio = _ratio(row.memory_used_bytes, row.memory_total_bytes)
    return None if ratio is None else min(ratio, 1.0)


def _power_ratio(row: GpuSample) -> float | None:
    return _ratio(row.power_w if row.power_mean_w is None else row.power_mean_w, row.power_limit_w)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _sum(counts: Iterable[int | None]) -> int | None:
    told = [count for count in counts if count is not None]
    return sum(told) if told else None


def _slowest(seconds: Iterable[float | None]) -> float | None:
    return max((value for value in seconds if value is not None), default=None)


def _place(row: GpuSample) -> tuple[bool, str, int, str]:
    return row.kind == "engine", row.host, row.index, row.device
