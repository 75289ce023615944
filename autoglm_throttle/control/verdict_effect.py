"""Derives the effect of GPU verdicts on the admitted share."""

from __future__ import annotations

from math import fsum
from typing import Final, NamedTuple

from autoglm_throttle.types import ControlCause, GpuCondition, GpuView, Signal

DEGRADED_FACTOR: Final = 0.7
"""Share left to a degraded device, far below its baseline in throughput: the mildest default tier."""

_REMAINING_SHARE: Final = {GpuCondition.STALLED: 0.0, GpuCondition.DEGRADED: DEGRADED_FACTOR}
_NO_LOAD: Final = frozenset({GpuCondition.IDLE, GpuCondition.WORKING, GpuCondition.LOST})


class VerdictEffect(NamedTuple):
    """Effect of the verdicts of one view on the controller."""

    factor: float = 1.0
    """0..1, the maximum that policy ``tiers`` admits: 0 for a stalled device and 0.7 for a degraded one,
    each device counted by its weight.
    """
    cause: ControlCause | None = None
    """The worse of the two conditions behind a factor below 1."""
    stalled: bool = False
    """Whether every usable device is stalled."""
    underfed: bool = False
    """Whether every busy device is underfed, so that its utilization is no reason to reject requests."""

    def explains(self, signal: Signal) -> bool:
        """Whether a high signal is not caused by load, so that policy ``adaptive`` does not strike."""
        return self.stalled or (self.underfed and signal is Signal.UTILIZATION)


NO_EFFECT: Final = VerdictEffect()


def effect(view: GpuView) -> VerdictEffect:
    """Combine the verdicts of all usable devices; without verdicts there is no effect."""
    weighted_conditions = [
        (verdict.condition, view.weights.get(key, 1.0))
        for key, verdict in view.verdicts.items()
        if verdict.condition is not GpuCondition.LOST
    ]
    total_weight = fsum(weight for _, weight in weighted_conditions)
    if not total_weight:
        return NO_EFFECT
    conditions: set[GpuCondition] = {condition for condition, _ in weighted_conditions}
    factor = (
        fsum(_REMAINING_SHARE.get(condition, 1.0) * weight for condition, weight in weighted_conditions)
        / total_weight
    )
    return VerdictEffect(
        factor=min(1.0, factor),
        cause=_cause(conditions),
        stalled=conditions == {GpuCondition.STALLED},
        underfed=conditions - _NO_LOAD == {GpuCondition.UNDERFED},
    )


def _cause(conditions: set[GpuCondition]) -> ControlCause | None:
    if GpuCondition.STALLED in conditions:
        return ControlCause.STALLED
    return ControlCause.DEGRADED if GpuCondition.DEGRADED in conditions else None
