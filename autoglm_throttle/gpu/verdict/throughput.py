"""Tracks the throughput of the service, now and compared with its baseline; no device reports it.

It is the engines' token rate, else our own completions plus streamed parts per second, counted over a window.
The baseline is an average of 60 s for each level of requests in flight. It is frozen while throughput is
below half of it, so that a fault is not learned as normal, and restarts after 10 min. Tokens, answers and
parts each have a baseline, and the best counts: a change from streamed to whole answers changes the count,
not the speed.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from autoglm_throttle.types import GpuView, ServiceStats

WINDOW_S: Final = 10.0  # Shortest window: the time without progress that makes a stall
# Longest window. Between the two it is p95 of the answers, which show nothing until they end.
WINDOW_MAX_S: Final = 60.0
TIME_CONSTANT_S: Final = 60.0
BASELINE_MIN_S: Final = 30.0  # Seconds of learning at a level before its baseline counts
# Levels of requests in flight: two loads of one level differ by at most this factor.
LEVEL_FACTOR: Final = 1.25
# Events that a window must usually hold to show a collapse: 50 halve by chance once in 50 000 windows.
EVENTS: Final = 50.0
EVENTS_EXPLAINED: Final = 20.0  # Events that are enough to show that there is no collapse
# Share of the baseline below which throughput has collapsed, and the baseline is frozen.
COLLAPSED_SHARE: Final = 0.5
FORGET_S: Final = 600.0  # Seconds of such a shortfall after which it becomes the baseline
# Share of the time in which tokens must grow to be compared; SGLang counts them when an answer is done.
MIN_STEADY: Final = 0.9
_TOKENS: Final = "tokens"
_ANSWERS: Final = "answers"
_PARTS: Final = "parts"
_STEP_S: Final = 0.5  # spacing of the remembered instants: 120 of them span the longest window
_STALE_S: Final = 3.0
_STALE_PERIODS: Final = 2.5


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput at one moment."""

    per_s: float | None  # Tokens, or completions and parts, per second over the window; None: not known yet
    silent_s: float  # Seconds without any progress while at least one request was in flight; 0 when none is
    no_request_s: float
    # Throughput over the baseline at this number of requests in flight; None: not comparable.
    share: float | None
    window_s: float  # Seconds without progress that are significant for this service
    progressed_s: float | None  # Time of the last progress, by the engine or by us; None: there never was any


@dataclass(slots=True)
class _Baseline:
    per_s: float
    steady: float  # Share of the time in which it grows, 0..1; 1 for units that are counted one by one
    learned_s: float = 0.0
    short_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Measurement:
    """Sums at one instant."""

    at_s: float
    tokens: float = 0.0
    answers: float = 0.0
    parts: float = 0.0
    level_s: float = 0.0
    steady_s: float = 0.0

    def done(self, units: tuple[str, ...]) -> float:
        return math.fsum(getattr(self, unit) for unit in units)


class ThroughputTracker:
    """Tracks the throughput of the service."""

    def __init__(self) -> None:
        self._measurements: deque[_Measurement] = deque()
        self._latest = _Measurement(0.0)
        self._by_engines = False
        self._answers = self._parts = 0
        self._has_progressed = False
        self._progressed_s = 0.0
        self._last_in_flight_s = 0.0
        self._busy_since_s: float | None = None
        self._baselines: dict[tuple[str, int], _Baseline] = {}

    def update(self, view: GpuView, work: ServiceStats, now: float, *, learns: bool = True) -> Throughput:
        """Add the current counts, and learn them unless not ``learns``; a repeated reading does no harm."""
        passed_s = self._advance(work, _engines(view), now)
        window_s = min(max(WINDOW_S, work.p95_s or 0.0), WINDOW_MAX_S)
        since_s = self._busy_since_s
        return Throughput(
            per_s=self._rate((_TOKENS,) if self._by_engines else (_ANSWERS, _PARTS), window_s),
            silent_s=0.0 if since_s is None else now - max(self._progressed_s, since_s),
            no_request_s=now - self._last_in_flight_s,
            share=self._compare(window_s, passed_s, learns=learns),
            window_s=window_s,
            progressed_s=self._progressed_s if self._has_progressed else None,
        )

    def _advance(self, work: ServiceStats, engines: tuple[float, int | None] | None, now: float) -> float:
        """Add the progress since the last call; return its seconds, 0 after a new source."""
        measurements = self._measurements
        if not measurements:
            self._progressed_s = self._last_in_flight_s = now
            self._answers, self._parts = work.completed_total, work.chunks_total
            self._has_progressed = bool(self._answers or self._parts)
        if not measurements or self._by_engines != (engines is not None):  # tokens and parts are not one unit
            self._by_engines = engines is not None
            self._latest = _Measurement(now)
            measurements.clear()
            measurements.append(self._latest)
        last = self._latest
        passed_s = now - last.at_s
        answers = max(0, work.completed_total - self._answers)
        parts = max(0, work.chunks_total - self._parts)
        self._answers, self._parts = work.completed_total, work.chunks_total
        tokens, level = 0.0, float(work.in_flight)
        if engines is not None:
            per_s, running = engines
            tokens, level = per_s * passed_s, level if running is None else running
        if tokens > 0.0 or answers or parts:
            self._progressed_s, self._has_progressed = now, True
        if not work.in_flight:
            self._busy_since_s = None
        else:
            self._last_in_flight_s = now
            self._busy_since_s = now if self._busy_since_s is None else self._busy_since_s
        self._latest = _Measurement(
            now,
            last.tokens + tokens,
            last.answers + answers,
            last.parts + parts,
            last.level_s + level * passed_s,
            last.steady_s + (passed_s if tokens > 0.0 else 0.0),
        )
        self._remember()
        return passed_s

    def _remember(self) -> None:
        """Store the latest measurement; one older than the longest window stays as its start."""
        measurements, now = self._measurements, self._latest.at_s
        if now - measurements[-1].at_s >= _STEP_S:
            measurements.append(self._latest)
        while len(measurements) > 1 and measurements[1].at_s <= now - WINDOW_MAX_S:
            measurements.popleft()

    def _measurement_before(self, ago_s: float) -> _Measurement:
        """Return the youngest measurement of at least this age, else the oldest one."""
        latest_s, marks = self._latest.at_s - ago_s, self._measurements
        return next((mark for mark in reversed(marks) if mark.at_s <= latest_s), marks[0])

    def _rate(self, units: tuple[str, ...], window_s: float) -> float | None:
        now, start = self._latest, self._measurement_before(window_s)
        passed_s = now.at_s - start.at_s
        return (now.done(units) - start.done(units)) / passed_s if passed_s > 0.0 else None

    def _compare(self, window_s: float, passed_s: float, *, learns: bool) -> float | None:
        """Return throughput over the baseline at this level, and update the baseline."""
        level, now = self._level(window_s), self._latest
        if level is None:
            return None
        units = (_TOKENS, _ANSWERS, _PARTS) if self._by_engines else (_ANSWERS, _PARTS)
        steady = dict.fromkeys(units, 1.0)
        if self._by_engines:
            start = self._measurement_before(window_s)
            steady[_TOKENS] = (now.steady_s - start.steady_s) / (now.at_s - start.at_s)
        observed = {
            unit: _Baseline(self._rate((unit,), window_s) or 0.0, share) for unit, share in steady.items()
        }
        # A copy: the observation itself must not be changed by learning.
        baselines = {
            unit: self._baselines.setdefault((unit, level), replace(one)) for unit, one in observed.items()
        }
        share = self._best(baselines, window_s)
        for unit, one in observed.items() if learns else ():
            self._learn(unit, level, one, passed_s, short=share is not None and share < COLLAPSED_SHARE)
        return share

    def _learn(self, unit: str, level: int, observed: _Baseline, passed_s: float, *, short: bool) -> None:
        baseline = self._baselines[unit, level]
        if short:
            baseline.short_s += passed_s
            if baseline.short_s > FORGET_S:
                self._baselines[unit, level] = observed
            return
        baseline.short_s = 0.0
        baseline.learned_s += passed_s
        weight = -math.expm1(-passed_s / TIME_CONSTANT_S)
        baseline.per_s += (observed.per_s - baseline.per_s) * weight
        baseline.steady += (observed.steady - baseline.steady) * weight

    def _best(self, baselines: dict[str, _Baseline], window_s: float) -> float | None:
        """Return the greatest share of all units; a small one only if it rests on enough events.

        Whole answers can disprove a collapse and never prove one: four times the work in each is no collapse.
        """
        pieces = {unit: one for unit, one in baselines.items() if unit != _ANSWERS}
        shares = self._shares(pieces, EVENTS, window_s)
        best = max([*shares, *self._shares(baselines, EVENTS_EXPLAINED, window_s)], default=None)
        return best if shares or best is None or best >= COLLAPSED_SHARE else None

    def _shares(self, baselines: dict[str, _Baseline], events: float, window_s: float) -> list[float]:
        """Return throughput over the baseline of each unit with enough events in a window."""
        shares = []
        for unit, one in baselines.items():
            if one.learned_s < BASELINE_MIN_S or one.per_s * WINDOW_MAX_S < events or one.steady < MIN_STEADY:
                continue
            needed_s = max(window_s, events / one.per_s)
            rate = None if self._level(needed_s) is None else self._rate((unit,), needed_s)
            # Answers that arrive without parts are not streamed any more: that is no collapse.
            unstreamed = unit == _PARTS and not rate and self._rate((_ANSWERS,), needed_s)
            if rate is not None and not unstreamed:
                shares.append(rate / one.per_s)
        return shares

    def _level(self, window_s: float) -> int | None:
        """Number the level of requests in flight; None: there are none, or their number changed."""
        now = self._latest
        start, middle = self._measurement_before(window_s), self._measurement_before(window_s / 2.0)
        # Two halves of the window at different levels show a change of load within it.
        first_s, second_s = middle.at_s - start.at_s, now.at_s - middle.at_s
        if now.at_s - start.at_s < window_s or first_s <= 0.0 or second_s <= 0.0:
            return None
        first = (middle.level_s - start.level_s) / first_s
        second = (now.level_s - middle.level_s) / second_s
        low, high = min(first, second), max(first, second)
        if low <= 0.0 or high > low * LEVEL_FACTOR:
            return None
        mean = (now.level_s - start.level_s) / (now.at_s - start.at_s)
        return round(math.log(mean) / math.log(LEVEL_FACTOR))


def _engines(view: GpuView) -> tuple[float, int | None] | None:
    """Sum the engines' tokens per second and running requests; None: none reports tokens, or lately."""
    newest_s = view.engines_at_s
    if not view.engines or newest_s is None:
        return None
    reporting = [
        row
        for row in view.devices
        if row.kind == "engine"
        and row.health != "lost"
        and row.tokens_per_s is not None
        # As for devices: an engine much older than the newest is ignored.
        and newest_s - (row.taken_at_s - row.age_s) <= max(_STALE_S, _STALE_PERIODS * (row.period_s or 0.0))
    ]
    if not reporting:
        return None
    running = [row.running for row in reporting if row.running is not None]
    per_s = math.fsum(row.tokens_per_s or 0.0 for row in reporting)
    return per_s, sum(running) if len(running) == len(reporting) else None
