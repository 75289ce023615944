"""A witness beside the service: reads the card once a second and judges it, whoever stands at the door.

The provider, the aggregation and the judge are the library's own. The rows without a middleware have no one
else to judge them, and all rows are judged alike.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.gpu.verdict_tracker import VerdictRules, VerdictTracker
from autoglm_throttle.types import AggregateMode, GpuSample, GpuView, ProviderUnavailable, ServiceStats

SHOWN = (
    *("utilization_pct", "power_w", "power_share", "sm_active_ratio", "sm_occupancy_ratio"),
    *("tensor_active_ratio", "dram_active_ratio", "graphics_active_ratio", "memory_busy_pct"),
    *("sm_clock_mhz", "temperature_c", "throttled_ratio"),
)
"""Numbers kept of each sample."""


class Watch:
    """Reads and judges.

    Args:
        sources: the value of the setting ``GPU``.
        interval_s: between two readings.
        works: name -> what is told of the work; each gets a judge of its own.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        sources: Sequence[str],
        interval_s: float,
        works: Mapping[str, Callable[[], ServiceStats]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = providers(sources, clock=clock)[0]
        self._interval_s = interval_s
        self._works = works
        self._clock = clock
        self._aggregator = Aggregator(AggregateMode.WEIGHTED)
        # Each kernel runs alone, so there is no work before it that a stall could be told from.
        rules = VerdictRules(first_s=VerdictRules().stalled_s)
        self._judges = {name: VerdictTracker(rules) for name in works}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.series: list[dict[str, Any]] = []
        """One entry a reading, in the order of time."""
        self.failures: Counter[str] = Counter()

    def start(self) -> None:
        """Begin, on a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """End; a reading that hangs is left behind."""
        self._stop.set()
        self._thread.join(2.0)

    def step(self) -> None:
        """Take one reading."""
        try:
            rows = self._provider.read()
        except ProviderUnavailable as error:
            self.failures[str(error)] += 1
            return
        now = self._clock()
        view = self._aggregator.update(rows, now, interval_s=self._interval_s)
        cards = [row for row in view.devices if row.kind != "engine"]
        if cards:
            self.series.append(self._entry(view, cards[0], now))

    def told(self) -> dict[str, Any]:
        """Everything seen so far, for JSON."""
        return {"series": list(self.series), "failures": dict(self.failures)}

    def _entry(self, view: GpuView, row: GpuSample, now: float) -> dict[str, Any]:
        verdicts = {}
        work = ServiceStats()
        for name, judge in self._judges.items():
            work = self._works[name]()
            verdict = judge.update(view, work, now).verdicts[row.host, row.device]
            verdicts[name] = {
                "finding": verdict.condition.value,
                "confidence": verdict.confidence,
                "evidence": dict(verdict.evidence),
            }
        power_w = row.power_w if row.power_mean_w is None else row.power_mean_w
        known = power_w is not None and row.power_limit_w is not None
        numbers: dict[str, Any] = {name: getattr(row, name, None) for name in SHOWN}
        numbers["power_share"] = power_w / row.power_limit_w if known else None  # type: ignore[operator]
        return {
            "at_s": now,
            "name": row.name,
            **numbers,
            "throttle": None if row.throttle is None else sorted(row.throttle),
            "notes": list(row.notes),
            "in_flight": work.in_flight,
            "completed_total": work.completed_total,
            "verdicts": verdicts,
        }

    def _run(self) -> None:
        while not self._stop.is_set():
            begun_s = self._clock()
            self.step()
            self._stop.wait(max(0.0, begun_s + self._interval_s - self._clock()))
        self._provider.close()


def summary(series: Sequence[Mapping[str, Any]], begin_s: float, end_s: float) -> dict[str, Any]:
    """A part of a series: least, median and most of each number; verdict -> share of the readings."""
    part = [entry for entry in series if begin_s <= entry["at_s"] <= end_s]
    told: dict[str, Any] = {"samples": len(part)}
    for name in SHOWN:
        values = [entry[name] for entry in part if entry[name] is not None]
        told[name] = [min(values), statistics.median(values), max(values)] if values else None
    told["throttle"] = dict(Counter(bit for entry in part for bit in entry["throttle"] or ()))
    told["notes"] = sorted({note for entry in part for note in entry["notes"]})
    told["verdicts"] = {
        name: shares(entry["verdicts"][name]["finding"] for entry in part)
        for name in (part[-1]["verdicts"] if part else ())
    }
    told["last"] = part[-1]["verdicts"] if part else {}
    return told


def shares(findings: Any) -> dict[str, float]:
    """Finding -> share, the most frequent first."""
    counts = Counter(findings)
    return {finding: count / counts.total() for finding, count in counts.most_common()}
