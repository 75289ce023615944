"""Derives the effect of GPU verdicts on the admitted share."""

from __future__ import annotations

from math import fsum
from typing import Final, NamedTuple

from autoglm_throttle.model import Finding, GpuView, Signal, Why

DEGRADED_FACTOR: Final = 0.7
"""Share left to a degraded device, far below its baseline in throughput: the mildest default tier."""

_LEFT: Final = {Finding.STALLED: 0.0, Finding.DEGRADED: DEGRADED_FACTOR}
_NO_LOAD: Final = frozenset({Finding.IDLE, Finding.WORKING, Finding.LOST})


class Effect(NamedTuple):
    """Effect of the verdicts of one view on the controller."""

    factor: float = 1.0
    """0..1, the maximum that policy ``tiers`` admits: 0 for a stalled device and 0.7 for a degraded one,
    each device counted by its weight.
    """
    why: Why | None = None
    """The worse of the two conditions behind a factor below 1."""
    stalled: bool = False
    """Whether every usable device is stalled."""
    underfed: bool = False
    """Whether every busy device is underfed, so that its utilization is no reason to reject requests."""

    def excuses(self, signal: Signal) -> bool:
        """Whether a high signal is not caused by load, so that policy ``adaptive`` does not strike."""
        return self.stalled or (self.underfed and signal is Signal.UTILIZATION)


NO_EFFECT: Final = Effect()


def effect(view: GpuView) -> Effect:
    """Combine the verdicts of all usable devices; without verdicts there is no effect."""
    found = [
        (verdict.finding, view.weights.get(key, 1.0))
        for key, verdict in view.verdicts.items()
        if verdict.finding is not Finding.LOST
    ]
    whole = fsum(weight for _, weight in found)
    if not whole:
        return NO_EFFECT
    findings: set[Finding] = {finding for finding, _ in found}
    factor = fsum(_LEFT.get(finding, 1.0) * weight for finding, weight in found) / whole
    return Effect(
        factor=min(1.0, factor),
        why=_why(findings),
        stalled=findings == {Finding.STALLED},
        underfed=findings - _NO_LOAD == {Finding.UNDERFED},
    )


def _why(findings: set[Finding]) -> Why | None:
    if Finding.STALLED in findings:
        return Why.STALLED
    return Why.DEGRADED if Finding.DEGRADED in findings else None
