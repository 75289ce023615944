"""Replays a labelled case to a verdict tracker, one sample a second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoglm_throttle.gpu.verdict.tracker import VerdictTracker
from autoglm_throttle.settings.groups.gpu import GpuSettings, VerdictSettings
from autoglm_throttle.types import GpuCondition, GpuSample, GpuView, ServiceStats

START_S = 1000.0


@dataclass(frozen=True)
class Phase:
    """Some seconds without changes, and the expected condition of each device at their end."""

    seconds: int
    devices: tuple[Mapping[str, Any], ...]
    labels: tuple[GpuCondition, ...]
    completed_per_s: float = 0.0
    chunks_per_s: float = 0.0
    engine: Mapping[str, Any] | None = None
    work: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    name: str
    origin: str
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> int:
        return sum(phase.seconds for phase in self.phases)


def row(index: int, taken_at_s: float, **fields: Any) -> GpuSample:
    fields = {"source": "nvml", **fields}
    return GpuSample(device=f"GPU-{index}", index=index, taken_at_s=taken_at_s, **fields)


def view(rows: tuple[GpuSample, ...], **fields: Any) -> GpuView:
    """Build a view as the aggregator does, of devices of one size."""
    devices = [each for each in rows if each.kind != "engine"]
    engines = [each for each in rows if each.kind == "engine"]
    lost = sum(each.health == "lost" for each in devices)
    report: dict[str, Any] = {
        "taken_at_s": max(each.taken_at_s for each in rows),
        "utilization_pct": None,
        "utilization_max_pct": None,
        "memory_ratio": None,
        "power_ratio": None,
        "capacity": (len(devices) - lost) / len(devices) if devices else 1.0,
        "weights": {(each.host, each.device): 1.0 / len(devices) for each in devices},
        "engines": len(engines),
        "engines_at_s": max((each.taken_at_s - each.age_s for each in engines), default=None),
        "queued": sum(each.queued or 0 for each in engines) if engines else None,
    }
    return GpuView(devices=rows, **{**report, **fields})


class Player:
    """A service with counters that continue from phase to phase."""

    def __init__(self, **verdict: float) -> None:
        self.tracker = VerdictTracker(VerdictSettings(**verdict), GpuSettings())
        self.now = START_S
        self._completed = 0.0
        self._chunks = 0.0

    def seconds(self, phase: Phase, step_s: float = 1.0) -> Iterator[GpuView]:
        for _ in range(round(phase.seconds / step_s)):
            self.now += step_s
            self._completed += phase.completed_per_s * step_s
            self._chunks += phase.chunks_per_s * step_s
            rows = tuple(row(index, self.now, **device) for index, device in enumerate(phase.devices))
            if phase.engine is not None:
                rows = (*rows, row(len(rows), self.now, kind="engine", source="vllm", **phase.engine))
            work = ServiceStats(
                completed_total=int(self._completed + 1e-6),
                chunks_total=int(self._chunks + 1e-6),
                **phase.work,
            )
            yield self.tracker.update(view(rows), work, self.now)

    def play(self, phase: Phase, step_s: float = 1.0) -> GpuView:
        return list(self.seconds(phase, step_s))[-1]


def labels(seen: GpuView) -> tuple[GpuCondition, ...]:
    return tuple(verdict.condition for verdict in seen.verdicts.values())
