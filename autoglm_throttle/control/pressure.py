"""How hard the service is pressed: the largest of several ratios of a load to its target.

Raw utilization is no term: a healthy server that batches well reads 100 % at half of what it can do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.model import GpuView, Signal, Work

TERMS: Final[tuple[str, ...]] = ("memory", "latency")
"""The terms that can be known, in the order in which the first of equal ones decides."""

MEMORY_TARGET = 0.92
"""Fill of the fullest device that counts as full: what vLLM leaves free by default is the margin."""

PREALLOCATED = 0.05
"""A fill that was never further than this below the target belongs to an engine that takes its memory
in advance, and says nothing about load."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """One measurement."""

    value: float | None
    """The largest term, 0..1 and never more, for the bands of the table; None if no term is known."""
    term: str
    """Which term that is; ``unknown`` if none is known."""
    terms: Mapping[str, float]
    """Every known term as it is: 0 up, 1 at its target, more above it."""


NOTHING_KNOWN: Final = Pressure(None, "unknown", {})
"""The pressure before anything was measured."""


def in_force(stated: Signal) -> Signal:
    """Which signal the bands are laid on.

    ``auto`` is the pressure where an engine tells its queue. No view carries rows of an engine,
    so it is the utilization.
    """
    return Signal.UTILIZATION if stated is Signal.AUTO else stated


class PressureGauge:
    """Measures the pressure, and remembers how full the memory is without load.

    Args:
        memory_target: fill of the fullest device that counts as 1, in (0, 1].
        terms: those of `TERMS` that count.
    """

    __slots__ = ("_idle", "_memory_target", "_terms")

    def __init__(self, memory_target: float = MEMORY_TARGET, terms: Iterable[str] = TERMS) -> None:
        self._memory_target = memory_target
        self._terms = frozenset(terms)
        self._idle = math.inf

    def measure(self, view: GpuView, work: Work) -> Pressure:
        """The pressure by a view of the GPUs and by what our own requests tell."""
        told = {"memory": self._memory(view.memory_ratio), "latency": _latency(work)}
        known = {name: told[name] for name in TERMS if name in self._terms}
        terms = {name: value for name, value in known.items() if value is not None}
        if not terms:
            return NOTHING_KNOWN
        term = max(terms, key=terms.__getitem__)
        return Pressure(min(1.0, terms[term]), term, terms)

    def _memory(self, fill: float | None) -> float | None:
        """Left out as long as the lowest fill seen is near the target, or it would hold the door shut."""
        if fill is None or not fill >= 0.0:
            return None
        self._idle = min(self._idle, fill)
        return None if self._idle >= self._memory_target - PREALLOCATED else fill / self._memory_target


def _latency(work: Work) -> float | None:
    return None if work.p95_s is None or work.slo_s is None else work.p95_s / work.slo_s
