"""The tier table: maps each band of GPU utilization to a share of the nominal rates."""

from __future__ import annotations

from autoglm_throttle.settings.groups.control import Tiers


class TierTable:
    """Maps a signal to a factor by edges in percent.

    Args:
        steps: ``(edge_pct, factor)`` with rising edges in 0..100 and falling factors in 0..1.
    """

    __slots__ = ("edge_pct", "steps")

    def __init__(self, steps: Tiers) -> None:
        self.steps: Tiers = steps
        self.edge_pct: float = steps[0][0]
        """The lowest edge: a signal above it is a strike."""

    def factor(self, signal_pct: float) -> float:
        """Factor of the highest edge below the signal, else 1. A signal equal to an edge is not above it."""
        factor = 1.0
        for edge_pct, step in self.steps:
            if signal_pct > edge_pct:
                factor = step
        return factor
