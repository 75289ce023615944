"""Learns how many requests the key-value cache of an inference engine holds."""

from __future__ import annotations

import math

# Fill of the cache that is aimed at: the rest is for the growth of running sequences.
# [simulated: without a cap 0.58 of the best constant limit, at 0.95 1.00, at 0.85 1.03]
CACHE_TARGET = 0.85

CACHE_GAIN = 0.3  # Weight of the newest sample


class CacheCap:
    """Learns the share of the cache that one running sequence fills, from samples of the engine."""

    __slots__ = ("_running", "_used", "requests")

    def __init__(self) -> None:
        # Requests in flight at which the target would be reached, >= 1; infinite: not known.
        self.requests: float = math.inf
        # Smoothed fill and sequences: samples of many sequences weigh more.
        self._used = self._running = 0.0

    def learn(self, used_ratio: float | None, running: int | None) -> None:
        """Update the cap with a sample: the fill, 0..1, by ``running`` sequences; None: there is no sample.

        Without samples there is no cap: one that is never corrected could hold the limit down for ever.
        """
        if used_ratio is None or running is None:
            self.requests, self._used, self._running = math.inf, 0.0, 0.0
            return
        if running < 1 or used_ratio <= 0.0:
            return
        self._used += CACHE_GAIN * (used_ratio - self._used)
        self._running += CACHE_GAIN * (running - self._running)
        self.requests = max(1.0, CACHE_TARGET * self._running / self._used)
