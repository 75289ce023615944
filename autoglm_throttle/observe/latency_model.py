"""The change of latency with each resource, by a regression that is silent where the data cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from autoglm_throttle.observe.regression import Moments, Regression, error_inflation
from autoglm_throttle.observe.series import histogram_quantile

POINTS: Final = 0.1  # effects are those of ten points of a resource's share

FORGETTING: Final = 0.9995  # by step of 5 s: half of an observation is forgotten after two hours
MIN_STEPS: Final = 120  # ten minutes
MIN_DEVIATION: Final = 0.03
MAX_INFLATION: Final = 5.0  # from a correlation of 0.9 on, errors of 16 % in the median and 38 % at worst
NORMAL_95: Final = 1.96
CELLS: Final = 10

# A resource without a value for five minutes is no input any more, and the model begins anew. A shorter gap
# only leaves steps out.
_ABSENT_STEPS: Final = 60
_FIT_STEPS: Final = 12  # coefficients are computed once a minute: it takes five times as long as a step
_HALF_LIFE_STEPS: Final = 1386  # of FORGETTING


class Silence(StrEnum):
    """The reason why an effect is not known."""

    NOT_MEASURED = "not_measured"
    TOO_FEW_STEPS = "too_few_steps"
    DID_NOT_MOVE = "did_not_move"
    MOVED_TOGETHER = "moved_together"
    WIDE_INTERVAL = "wide_interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceEffect:
    """Change of the latency with ten points more of a resource."""

    resource: str
    silence: Silence | None
    """None: the effect is known."""
    seconds: float | None = None
    """None while the effect is not known, as the ends of its 95 % interval."""
    low_s: float | None = None
    high_s: float | None = None
    moves_with: str | None = None
    """With ``moved_together`` the resource with the highest correlation."""


@dataclass(frozen=True, slots=True)
class HeatCell:
    """Latency in a cell of a `HeatMap`. A cell holds shares from ``x / 10`` up to the next tenth."""

    x: int
    y: int
    requests: float
    """Requests, less those that were forgotten."""
    median_s: float


@dataclass(frozen=True, slots=True)
class LatencyView:
    """The model at one moment."""

    effects: tuple[ResourceEffect, ...]
    explained: float | None
    """Share of the latency's variance that all resources explain, 0..1; None: too few steps."""
    steps: int
    """Steps with a latency, less those that were forgotten."""


class LatencyModel:
    """Regresses the latency on the used shares of resources, one step at a time.

    An effect is known only if the resource moved, if it moved by itself, and if the interval is narrower than
    half of the value. Residuals that are correlated in time widen the interval.

    Args:
        resources: their names.
    """

    def __init__(self, resources: Sequence[str]) -> None:
        self._absent: dict[str, int] = dict.fromkeys(resources, _ABSENT_STEPS)
        self._begin(())

    def _begin(self, inputs: tuple[str, ...]) -> None:
        self._inputs = inputs
        self._moments = Moments(len(inputs), FORGETTING)
        self._until_fit = MIN_STEPS
        self._fit: Regression | None = None
        self._residual: float | None = None
        self._squares = self._products = 0.0

    def step(self, latency_s: float | None, used: Mapping[str, float | None]) -> None:
        """Take the latency of a step, and the share 0..1 of each resource; None: not known."""
        row = [share for name in self._inputs if (share := used.get(name)) is not None]
        for name in self._absent:
            self._absent[name] = 0 if used.get(name) is not None else self._absent[name] + 1
        inputs = tuple(name for name, steps in self._absent.items() if steps < _ABSENT_STEPS)
        if inputs != self._inputs:
            self._begin(inputs)
        elif latency_s is None or not inputs or len(row) < len(inputs):
            self._residual = None
        else:
            self._take([*row, latency_s])

    def _take(self, row: Sequence[float]) -> None:
        if self._fit is not None:
            *changes, residual = (value - mean for value, mean in zip(row, self._moments.means, strict=True))
            residual -= sum(b * x for b, x in zip(self._fit.coefficients, changes, strict=True))
            if self._residual is not None:
                self._products = FORGETTING * self._products + residual * self._residual
                self._squares = FORGETTING * self._squares + residual * residual
            self._residual = residual
        self._moments.add(row)
        self._until_fit -= 1
        if self._until_fit <= 0:
            self._fit, self._until_fit = self._moments.regress(), _FIT_STEPS

    def view(self) -> LatencyView:
        """Return the effects of all resources."""
        explained = None if self._fit is None else self._fit.explained
        return LatencyView(tuple(map(self._effect, self._absent)), explained, round(self._moments.weight))

    def _effect(self, resource: str) -> ResourceEffect:
        if resource not in self._inputs:
            return ResourceEffect(resource=resource, silence=Silence.NOT_MEASURED)
        if self._fit is None:
            return ResourceEffect(resource=resource, silence=Silence.TOO_FEW_STEPS)
        index = self._inputs.index(resource)
        if self._moments.deviation(index) < MIN_DEVIATION:
            return ResourceEffect(resource=resource, silence=Silence.DID_NOT_MOVE)
        if self._fit.inflations[index] >= MAX_INFLATION:
            other = self._nearest(index)
            return ResourceEffect(resource=resource, silence=Silence.MOVED_TOGETHER, moves_with=other)
        seconds = self._fit.coefficients[index] * POINTS
        autocorrelation = self._products / self._squares if self._squares else 0.0
        half = NORMAL_95 * self._fit.errors[index] * POINTS * error_inflation(autocorrelation)
        if 2 * half >= abs(seconds) / 2:
            return ResourceEffect(resource=resource, silence=Silence.WIDE_INTERVAL)
        return ResourceEffect(
            resource=resource, silence=None, seconds=seconds, low_s=seconds - half, high_s=seconds + half
        )

    def _nearest(self, index: int) -> str:
        others = (other for other in range(len(self._inputs)) if other != index)
        return self._inputs[max(others, key=lambda other: abs(self._moments.correlation(index, other)))]


class HeatMap:
    """Counts durations by two shares, 0..1, in ten cells each."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], list[float]] = {}
        self._steps = 0

    def step(self, x: float | None, y: float | None, counts: Sequence[float] | None) -> None:
        """Add the durations of a step, counted in `DURATION_BUCKETS_S`; None: not known."""
        self._steps += 1
        if self._steps % _HALF_LIFE_STEPS == 0:
            self._cells = {cell: [count / 2 for count in kept] for cell, kept in self._cells.items()}
        if x is not None and y is not None and counts is not None and any(counts):
            cell = _tenth(x), _tenth(y)
            kept = self._cells.get(cell, [0.0] * len(counts))
            self._cells[cell] = [old + count for old, count in zip(kept, counts, strict=True)]

    def cells(self) -> tuple[HeatCell, ...]:
        """Return the cells that have requests."""
        rows = [(x, y, kept) for (x, y), kept in sorted(self._cells.items())]
        return tuple(HeatCell(x, y, sum(kept), histogram_quantile(0.5, kept) or 0.0) for x, y, kept in rows)


def _tenth(share: float) -> int:
    return min(max(int(share * CELLS), 0), CELLS - 1)
