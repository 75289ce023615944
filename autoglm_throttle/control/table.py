"""The tier table: which share of the nominal rates each band of GPU utilization leaves."""

from __future__ import annotations

FOUNDING = ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0))
"""Over 85 % leaves 70 %, over 90 % leaves 40 %, over 95 % nothing: the founding figures."""


class TierTable:
    """Edges in percent and the factor above each.

    Args:
        steps: ``(edge_pct, factor)`` with rising edges in 0..100 and falling factors in 0..1.
    """

    __slots__ = ("edge_pct", "steps")

    def __init__(self, steps: tuple[tuple[float, float], ...] = FOUNDING) -> None:
        self.steps: tuple[tuple[float, float], ...] = steps
        self.edge_pct: float = steps[0][0]
        """The lowest edge: a signal above it is a strike."""

    def factor(self, signal_pct: float) -> float:
        """The factor of the highest edge below the signal, else 1. An edge itself is not above itself."""
        factor = 1.0
        for edge_pct, step in self.steps:
            if signal_pct > edge_pct:
                factor = step
        return factor
