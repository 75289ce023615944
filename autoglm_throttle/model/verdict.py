"""What a device was found to be doing, whatever its utilization says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Finding(StrEnum):
    """What a device does: a closed set, also the metric label."""

    IDLE = "idle"
    WORKING = "working"
    """Neither idle nor busy."""
    PRODUCTIVE = "productive"
    """Busy, and more than its utilization says so."""
    UNDERFED = "underfed"
    """Busy by its utilization, and most of it has nothing to do: more requests at once would help."""
    STARVED = "starved"
    """Work waits and the device is not filled: the host is in the way."""
    DEGRADED = "degraded"
    """Busy, and far less comes out than under the same load before."""
    THROTTLED = "throttled"
    """Busy, and slowed down by heat or power."""
    STALLED = "stalled"
    """Busy by its utilization, and nothing comes out: a hung kernel or collective."""
    UNKNOWN = "unknown"
    """Busy by its utilization, and nothing else is known."""
    LOST = "lost"


_FAKE: Final = frozenset({Finding.STALLED, Finding.DEGRADED, Finding.UNDERFED})


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding with what it rests on."""

    finding: Finding
    since_s: float
    """Monotonic time since which it holds."""
    confidence: float
    """0..1, the share of the signals that could speak for or against it that were known and agree."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """Signal -> value at the newest sample, such as ``utilization_pct`` 100, ``power_share`` 0.1,
    ``progress_per_s`` 0; only those that were looked at."""

    @property
    def fake_busy(self) -> bool:
        """Whether the device says that it is busy and does little."""
        return self.finding in _FAKE
