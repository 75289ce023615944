"""Offered load over time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Offered requests as multiples of the capacity: piecewise linear over time.

    Args:
        pieces: start in seconds, multiple there, multiple at the end.
        duration_s: end of the last piece.
    """

    pieces: tuple[tuple[float, float, float], ...]
    duration_s: float

    @property
    def peak(self) -> float:
        """Return the largest multiple."""
        return max(max(first, last) for _, first, last in self.pieces)

    @property
    def edges(self) -> list[float]:
        """Return the starts of the pieces, and the end."""
        return [piece[0] for piece in self.pieces] + [self.duration_s]
