"""Computes means over windows of ten seconds: they even out the noise of single samples."""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 10.0
"""Length of a window, s: some power sensors cover only a quarter of the time (arXiv 2312.02741)."""


class WindowMean:
    """Adds up samples and returns a mean each time ten seconds are full; windows do not overlap."""

    __slots__ = ("_count", "_started_s", "_sum")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Drop the sum: the measured state was interrupted."""
        self._count = 0
        self._sum = 0.0
        self._started_s = 0.0

    def add(self, value: float, at_s: float) -> float | None:
        """Add a sample.

        Args:
            value: in any unit.
            at_s: monotonic seconds at which it was measured; not before that of the sample before.

        Returns:
            The mean of the samples of a window that this one completes, else None.
        """
        if not self._count:
            self._started_s = at_s
        self._count += 1
        self._sum += value
        if at_s - self._started_s < WINDOW_S:
            return None
        mean = self._sum / self._count
        self.restart()
        return mean
