"""What the verdicts on the cards mean for how much may come in."""

from __future__ import annotations

from math import fsum
from typing import Final, NamedTuple

from autoglm_throttle.model import Finding, GpuView, Signal, Why

DEGRADED_FACTOR: Final = 0.7
"""Share left to a card from which far less comes out than before: the mildest tier of the founding table."""

_LEFT: Final = {Finding.STALLED: 0.0, Finding.DEGRADED: DEGRADED_FACTOR}
_NO_LOAD: Final = frozenset({Finding.IDLE, Finding.WORKING, Finding.LOST})


class Effect(NamedTuple):
    """What the controller makes of the verdicts of one view."""

    factor: float = 1.0
    """0..1, the most that policy ``tiers`` lets in: 0 for a stalled card and 0.7 for a degraded one, each
    card counted by its weight."""
    why: Why | None = None
    """The worse of the two findings behind a factor below 1."""
    stalled: bool = False
    """Whether no usable card is left that does anything."""
    underfed: bool = False
    """Whether every busy card is underfed, so that its utilization is no reason to send anybody away."""

    def excuses(self, signal: Signal) -> bool:
        """Whether a hot signal is none of load, so that policy ``adaptive`` does not strike."""
        return self.stalled or (self.underfed and signal is Signal.UTILIZATION)


NO_EFFECT: Final = Effect()


def effect(view: GpuView) -> Effect:
    """Weigh the verdicts of all usable cards; without verdicts there is no effect."""
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
