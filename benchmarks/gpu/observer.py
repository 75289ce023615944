"""An observer in the process of the service: reads the device once a second and computes its verdict.

The provider, the aggregation and the verdicts are those of the package. All rows, also those without
middleware, get their verdicts from the same observer.
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
from autoglm_throttle.gpu.verdict.tracker import VerdictTracker
from autoglm_throttle.settings.groups.gpu import GpuSettings, VerdictSettings
from autoglm_throttle.types import GpuSample, GpuView, ProviderUnavailable, ServiceStats

SHOWN = (
    *("utilization_pct", "power_w", "power_share", "sm_active_ratio", "sm_occupancy_ratio"),
    *("tensor_active_ratio", "dram_active_ratio", "graphics_active_ratio", "memory_busy_pct"),
    *("sm_clock_mhz", "temperature_c", "throttled_ratio"),
)
"""Fields kept of each sample."""


class Observer:
    """Reads telemetry and computes verdicts.

    Args:
        sources: the value of the setting ``GPU``.
        interval_s: between two readings.
        works: name -> statistics of the work; each has a verdict of its own.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        sources: Sequence[str],
        interval_s: float,
        works: Mapping[str, Callable[[], ServiceStats]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings, verdict = GpuSettings(gpu=tuple(sources)), VerdictSettings()
        self._provider = providers(settings, clock=clock)[0]
        self._interval_s = interval_s
        self._works = works
        self._clock = clock
        self._aggregator = Aggregator(settings)
        # Each kernel runs alone, so there is no earlier work to detect a stall against.
        self._trackers = {
            name: VerdictTracker(verdict, settings, first_s=verdict.stalled_s) for name in works
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.series: list[dict[str, Any]] = []
        """One entry per reading, in the order of time."""
        self.failures: Counter[str] = Counter()

    def start(self) -> None:
        """Start the thread of the observer."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; a reading that hangs is abandoned."""
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
        devices = [row for row in view.devices if row.kind != "engine"]
        if devices:
            self.series.append(self._entry(view, devices[0], now))

    def as_document(self) -> dict[str, Any]:
        """Return all observations so far, for JSON."""
        return {"series": list(self.series), "failures": dict(self.failures)}

    def _entry(self, view: GpuView, row: GpuSample, now: float) -> dict[str, Any]:
        verdicts = {}
        work = ServiceStats()
        for name, tracker in self._trackers.items():
            work = self._works[name]()
            verdict = tracker.update(view, work, now).verdicts[row.host, row.device]
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
    """Summarize a part of a series: least, median and most of each field; shares of the verdicts."""
    part = [entry for entry in series if begin_s <= entry["at_s"] <= end_s]
    as_document: dict[str, Any] = {"samples": len(part)}
    for name in SHOWN:
        values = [entry[name] for entry in part if entry[name] is not None]
        as_document[name] = [min(values), statistics.median(values), max(values)] if values else None
    as_document["throttle"] = dict(Counter(bit for entry in part for bit in entry["throttle"] or ()))
    as_document["notes"] = sorted({note for entry in part for note in entry["notes"]})
    as_document["verdicts"] = {
        name: shares(entry["verdicts"][name]["finding"] for entry in part)
        for name in (part[-1]["verdicts"] if part else ())
    }
    as_document["last"] = part[-1]["verdicts"] if part else {}
    return as_document


def shares(findings: Any) -> dict[str, float]:
    """Map each finding to its share, the most frequent first."""
    counts = Counter(findings)
    return {finding: count / counts.total() for finding, count in counts.most_common()}
