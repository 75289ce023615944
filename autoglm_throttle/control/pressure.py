"""Measures the pressure: the largest of several ratios of a load to its target.

Raw utilization is no term: a healthy server that batches well reads 100 % at half of its capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import GpuView, ServiceStats

# All terms, in the order in which the first of equal ones decides.
TERMS: Final[tuple[str, ...]] = ("queue", "kv", "memory", "latency", "compute")
# Highest share of time with memory traffic that is reached in practice, by the DCGM user guide.
DRAM_PEAK = 0.8
# A fill that was never further than this below the target belongs to an engine that allocates its memory in
# advance, and says nothing about load.
PREALLOCATED = 0.05


@dataclass(frozen=True, slots=True)
class Pressure:
    """One measurement of the pressure."""

    # The largest term, capped to 0..1 for the bands of the table; None if no term is known.
    value: float | None
    term: str  # Name of the largest term; ``unknown`` if none is known
    terms: Mapping[str, float]  # Every known term without a cap: from 0, 1 at its target, more above it


UNKNOWN_PRESSURE: Final = Pressure(None, "unknown", {})  # The pressure before anything was measured


class PressureGauge:
    """Measures the pressure, and stores the memory fill without load."""

    def __init__(self, settings: GpuSettings) -> None:
        self._settings = settings
        self._terms = tuple(term for term in TERMS if term in settings.gpu_pressure_terms)
        self._idle = math.inf

    def measure(self, view: GpuView, stats: ServiceStats) -> Pressure:
        """Measure the pressure from a view of the GPUs and the service's own statistics."""
        usable = [row for row in view.devices if row.health != "lost"]
        # Activity of the multiprocessors, or of the memory, of the busiest device.
        active = [row.sm_active_ratio for row in usable if row.sm_active_ratio is not None]
        active += [row.dram_active_ratio / DRAM_PEAK for row in usable if row.dram_active_ratio is not None]
        ratios = {
            "queue": _ratio(view.queued, self._settings.gpu_queue_target * view.engines),
            "kv": _ratio(view.kv_used_ratio, self._settings.gpu_kv_target),
            "memory": self._memory(view),
            "latency": _ratio(stats.p95_s, stats.slo_s),
            "compute": max(active, default=None),
        }
        terms = {name: value for name in self._terms if (value := ratios[name]) is not None}
        if not terms:
            return UNKNOWN_PRESSURE
        term = max(terms, key=terms.__getitem__)
        return Pressure(min(1.0, terms[term]), term, terms)

    def _memory(self, view: GpuView) -> float | None:
        """Memory term; None while the lowest fill is near the target, or an engine reports its caches."""
        fill, target = view.memory_ratio, self._settings.gpu_memory_target
        if fill is None or not fill >= 0.0 or view.engines_at_s is not None:
            return None
        self._idle = min(self._idle, fill)
        return None if self._idle >= target - PREALLOCATED else fill / target


def _ratio(load: float | None, target: float | None) -> float | None:
    return None if load is None or not target else load / target
