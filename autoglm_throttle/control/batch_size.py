"""Adapts the size of batches to a latency objective, by a linear model of their duration and by AIMD.

The model is ``a * cost + b``, as BentoML fits it; the additive increase and multiplicative decrease on
measured latency is that of Clipper (NSDI 2017).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

MODEL_BATCHES: Final = 50  # newest batches that the model is fitted to: an engine that changes is followed
WARM_UP_BATCHES: Final = 2  # the first batches of a model compile kernels and allocate memory
WINDOW_BATCHES: Final = 20  # batches between two changes of the target, or `WINDOW_S`, whichever comes first
WINDOW_S: Final = 1.0
BUDGET_SHARE: Final = 0.8  # share of the objective that waiting and running may take, as predicted
DECREASE: Final = 0.7
OUT_OF_MEMORY_DECREASE: Final = 0.5
OUT_OF_MEMORY_HOLD_S: Final = 60.0
INCREASE_SHARE: Final = 0.05
MARGIN_DEVIATIONS: Final = 2.0  # standard deviations above the model that a batch is expected to end within


class DurationModel:
    """Predicts the duration of a batch as ``a * cost + b``, with both numbers at least 0."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, float]] = deque(maxlen=MODEL_BATCHES)
        self._ignored = 0
        self.per_cost_s: float = 0.0
        """``a``: seconds for one more unit of cost."""
        self.fixed_s: float = 0.0
        """``b``: seconds of a batch whatever its cost."""
        self.margin: float = 1.0
        """Factor above the model, at least 1, for the spread of the measured durations."""
        self.largest_cost: float = 0.0
        """The largest cost among the measured batches; 0.0 before any was measured."""

    def record(self, cost: float, duration_s: float) -> None:
        """Add a finished batch, and fit the model anew."""
        if self._ignored < WARM_UP_BATCHES:
            self._ignored += 1
            return
        batches = self._batches
        batches.append((cost, duration_s))
        count = len(batches)
        mean_cost = math.fsum(each for each, _ in batches) / count
        mean_s = math.fsum(each for _, each in batches) / count
        spread = math.fsum((each - mean_cost) ** 2 for each, _ in batches)
        self.largest_cost = max(each for each, _ in batches)
        if spread <= 1e-9 * mean_cost**2:  # equal costs say nothing about the slope
            slope = (mean_s - min(each for _, each in batches)) / mean_cost
        else:
            slope = math.fsum((each - mean_cost) * (took - mean_s) for each, took in batches) / spread
        slope = min(max(slope, 0.0), mean_s / mean_cost)  # the line meets the mean, and ends at 0 or above
        self.per_cost_s, self.fixed_s = slope, max(mean_s - slope * mean_cost, 0.0)
        if mean_s > 0.0:
            squares = math.fsum((took - self.predict(each)) ** 2 for each, took in batches)
            self.margin = 1.0 + MARGIN_DEVIATIONS * math.sqrt(squares / count) / mean_s

    def predict(self, cost: float) -> float:
        """Return the seconds that a batch of this cost takes; 0.0 before any was measured."""
        return self.per_cost_s * cost + self.fixed_s

    def predict_upper(self, cost: float) -> float:
        """Return the seconds within which nearly every batch of this cost ends."""
        return self.margin * self.predict(cost)

    def largest_within(self, duration_s: float) -> float:
        """Return the largest cost of a batch that ends within a duration; ``inf``: any."""
        if self.fixed_s > duration_s:
            return 0.0
        return (duration_s - self.fixed_s) / self.per_cost_s if self.per_cost_s > 0.0 else math.inf


class BatchSize:
    """Holds the target cost of a batch, and adapts it after 20 batches or one second.

    Args:
        slo_s: objective for the 95th percentile of the time from submission to result, s.
        max_cost: the largest target.
        wait_s: longest time that a batch waits for further items, s.
    """

    def __init__(self, slo_s: float, max_cost: float, wait_s: float) -> None:
        self._slo_s = slo_s
        self._max_cost = max_cost
        self._wait_s = wait_s
        self._latencies: list[float] = []
        self._batches = self._full = 0
        self._window_began_s = -math.inf
        self._has_missed = False
        self._cap = math.inf
        self._cap_until_s = -math.inf
        self.model: DurationModel = DurationModel()
        self.target: float = 1.0
        """Cost at which a batch is full, 1 .. ``max_cost``."""
        self.p95_s: float | None = None
        """95th percentile of the last complete window, s."""

    def record(
        self,
        cost: float,
        duration_s: float,
        latencies_s: Sequence[float],
        now: float,
        *,
        growth: float = 1.0,
        is_memory_full: bool = False,
    ) -> None:
        """Add a batch that has run.

        Args:
            cost: of the batch.
            duration_s: of the run, s.
            latencies_s: from submission to result, of each of its items, s.
            now: monotonic time at the end of the run.
            growth: multiple of the usual increase; 0.0: the target may not grow.
            is_memory_full: whether the target must shrink, whatever the latency.
        """
        if not self._batches:
            self._window_began_s = now - duration_s
        self.model.record(cost, duration_s)
        self._latencies.extend(latencies_s)
        self._batches += 1
        self._full += cost >= self.target
        if self._latencies and (
            self._batches >= WINDOW_BATCHES or now - self._window_began_s >= WINDOW_S or is_memory_full
        ):
            self._adapt(now, growth, is_memory_full=is_memory_full)
        elif not self._has_missed:  # before the first miss the model alone sets the target
            self._bound(now)

    def record_out_of_memory(self, now: float) -> None:
        """Halve the target, and keep it there for a minute."""
        self.target = self._cap = max(1.0, self.target * OUT_OF_MEMORY_DECREASE)
        self._cap_until_s = now + OUT_OF_MEMORY_HOLD_S
        self._has_missed = True

    def _adapt(self, now: float, growth: float, *, is_memory_full: bool) -> None:
        ranked = sorted(self._latencies)
        # The first window holds items that waited for the first batches: no size could have helped them.
        is_first, self.p95_s = self.p95_s is None, ranked[math.ceil(0.95 * len(ranked)) - 1]
        if (self.p95_s > self._slo_s and not is_first) or is_memory_full:
            self.target *= DECREASE
            self._has_missed = True
        elif 2 * self._full >= self._batches:
            self.target += growth * max(1.0, self.target * INCREASE_SHARE)
        self._bound(now)
        self._latencies.clear()
        self._batches = self._full = 0

    def _bound(self, now: float) -> None:
        model = self.model
        most = min(self._max_cost, self._cap if now < self._cap_until_s else math.inf)
        if model.largest_cost:
            within = model.largest_within(BUDGET_SHARE * self._slo_s - self._wait_s)
            if not self._has_missed:
                self.target = max(self.target, min(within, 2.0 * model.largest_cost))
            most = min(most, within)
        self.target = max(1.0, min(self.target, most))
