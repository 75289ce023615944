"""The leak test: reports memory that grows with time, and not with the requests in flight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

from autoglm_throttle.observe.regression import Moments, error_inflation

PERIOD_S: Final = 60.0
WINDOW_H: Final = 1.0
MIN_PERIODS: Final = 45
MIN_SCORE: Final = 5.0  # slope over its error
MIN_BYTES_PER_HOUR: Final = 1e6  # less is rounding, and no reason to act
MIN_SCORE_CACHED: Final = 4.0  # of rises only, which are few

# A leak goes on in the second half of the window; the filling of a cache does not.
_SECOND_HALF: Final = 0.5
_SECOND_HALF_CACHED: Final = 0.25  # the steps of a staircase are few and large

# A caching allocator, such as that of PyTorch, keeps memory that was freed: what it holds hardly ever falls.
_MAX_FALLEN: Final = 0.05
_MIN_RISES: Final = 10
_MAX_SINGLE_RISE: Final = 0.3  # of all growth: one large allocation is no leak

# So small that load which rises with time makes the error of the slope large, instead of sharing it.
_RIDGE: Final = 1e-9

Point = tuple[float, float, float]
"""Hours, requests in flight, bytes."""


@dataclass(frozen=True, slots=True)
class LeakView:
    """The result for one series of memory."""

    what: str
    """``gpu:`` and the label of a device, or ``process``."""
    bytes_per_hour: float | None
    """None: the window is too short. 0: there is no leak."""
    full_in_h: float | None
    """Hours until the memory is full at this slope; None without a leak, or if the total is not known."""


@dataclass(frozen=True, slots=True)
class _Period:
    """One minute: its mean, the samples that were higher than the one before, and all rises and falls."""

    mean: Point
    rises: tuple[Point, ...]
    risen: float
    fallen: float


class LeakTest:
    """Tests whether a series of memory grows with time, over the last hour.

    One-minute means are regressed on the requests in flight and on time. Memory of a caching allocator equals
    the memory in use only while it rises: of a series that never falls these samples are regressed instead.
    """

    def __init__(self) -> None:
        self.bytes_per_hour: float | None = None
        """Slope of the leak; None: the window is too short. 0: there is no leak."""
        self._periods: deque[_Period] = deque()
        self._number = 0
        self._samples: list[Point] = []
        self._before: Point | None = None  # the last sample of the period before

    def step(self, now: float, used_bytes: float | None, in_flight: float | None) -> None:
        """Take a sample at the monotonic time ``now``; None: not known. The test runs once a minute."""
        number = math.floor(now / PERIOD_S)
        if number != self._number:
            self._close(now / 3600)
            self._number = number
        if used_bytes is not None and in_flight is not None:
            self._samples.append((now / 3600, in_flight, used_bytes))

    def _close(self, now_h: float) -> None:
        samples, self._samples = self._samples, []
        if samples:
            self._periods.append(
                _period(samples if self._before is None else [self._before, *samples], samples)
            )
            self._before = samples[-1]
        while self._periods and self._periods[0].mean[0] < now_h - WINDOW_H:
            self._periods.popleft()
        known = len(self._periods) >= MIN_PERIODS
        self.bytes_per_hour = leak_of(list(self._periods)) if known else None


def _period(steps: Sequence[Point], samples: Sequence[Point]) -> _Period:
    hours, in_flight, used = (math.fsum(column) / len(samples) for column in zip(*samples, strict=True))
    growth = [after[2] - before[2] for before, after in pairwise(steps)]
    rises = (
        # The memory was taken at some time between the samples: with the higher load of the two.
        (after[0], max(before[1], after[1]), after[2])
        for before, after in pairwise(steps)
        if after[2] > before[2]
    )
    risen = sum(change for change in growth if change > 0)
    return _Period((hours, in_flight, used), tuple(rises), risen, risen - sum(growth))


def leak_of(periods: Sequence[_Period]) -> float:
    """Return the slope of a leak in bytes an hour; 0: there is none."""
    fallen, risen = sum(period.fallen for period in periods), sum(period.risen for period in periods)
    if fallen <= _MAX_FALLEN * risen:
        return _cached_leak(periods)
    means = [period.mean for period in periods]
    slope, per_request = _trend(means, MIN_SCORE)
    late = [(hours, used - per_request * in_flight) for hours, in_flight, used in means[len(means) // 2 :]]
    return slope if slope and _slope(late) >= _SECOND_HALF * slope else 0.0


def _cached_leak(periods: Sequence[_Period]) -> float:
    rises = list(chain.from_iterable(period.rises for period in periods))
    if len(rises) < _MIN_RISES:
        return 0.0
    growth = [after[2] - before[2] for before, after in pairwise(rises)]
    slope, _ = _trend(rises, MIN_SCORE_CACHED)
    middle, end = periods[len(periods) // 2].mean, periods[-1].mean
    late = (end[2] - middle[2]) / (end[0] - middle[0])
    lasting = late >= _SECOND_HALF_CACHED * slope and max(growth) <= _MAX_SINGLE_RISE * sum(growth)
    return slope if lasting else 0.0


def _trend(points: Sequence[Point], min_score: float) -> tuple[float, float]:
    """Return the bytes an hour, 0 if they are not far above their error, and the bytes of a request."""
    moments = Moments(2)
    for point in points:
        moments.add(point)
    fit = moments.regress(_RIDGE)
    slope, per_request = fit.coefficients
    residuals = [used - slope * hours - per_request * in_flight for hours, in_flight, used in points]
    mean = math.fsum(residuals) / len(residuals)
    changes = [residual - mean for residual in residuals]
    squares = math.fsum(change * change for change in changes)
    products = math.fsum(before * after for before, after in pairwise(changes))
    error = fit.errors[0] * error_inflation(products / squares if squares else 0.0)
    return (slope if slope > max(min_score * error, MIN_BYTES_PER_HOUR) else 0.0), per_request


def _slope(points: Sequence[tuple[float, float]]) -> float:
    moments = Moments(1)
    for point in points:
        moments.add(point)
    return moments.regress().coefficients[0]
