"""Verdicts on devices, from more than their utilization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class GpuCondition(StrEnum):
    """Condition of a device: a closed set, also the metric label."""

    IDLE = "idle"
    WORKING = "working"
    """Neither idle nor busy."""
    PRODUCTIVE = "productive"
    """Busy, as confirmed by more signals than its utilization."""
    UNDERFED = "underfed"
    """High utilization, but most of the device has nothing to do: more concurrent requests would help."""
    STARVED = "starved"
    """Requests wait and the device has free capacity: the host is the bottleneck."""
    DEGRADED = "degraded"
    """Busy, and throughput is far below that of the same load before."""
    THROTTLED = "throttled"
    """Busy, and slowed down by heat or power."""
    STALLED = "stalled"
    """High utilization without any output: a hung kernel or collective."""
    UNKNOWN = "unknown"
    """High utilization, and no other signal is known."""
    LOST = "lost"


_FAKE_BUSY: Final = frozenset({GpuCondition.STALLED, GpuCondition.DEGRADED, GpuCondition.UNDERFED})


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """A condition with its evidence."""

    condition: GpuCondition
    since_s: float
    """Monotonic time since which the condition holds."""
    confidence: float
    """0..1, the share of the relevant and known signals that agree."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """Signal -> value at the newest sample, such as ``utilization_pct`` 100, ``power_share`` 0.1,
    ``progress_per_s`` 0; only checked signals.
    """

    @property
    def fake_busy(self) -> bool:
        """Whether the device reports high utilization and does little."""
        return self.condition in _FAKE_BUSY
