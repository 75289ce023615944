"""Learns the memory cap: the requests in flight that the device memory allows."""

from __future__ import annotations

import math

# An idle fill this close to the target belongs to an engine that allocates its memory in advance.
BLIND_MARGIN = 0.05

MIN_RISE = 0.02  # Smallest difference between two fills that is attributed to requests
CLEAR_RISE = 4 * MIN_RISE  # Rise large enough that the end of half of the requests shows in the fill

# Least share of the peak in flight for a sample: below it, leftovers of ended requests dominate.
MIN_SAMPLE_SHARE = 0.25

# Requests in flight of which most fail, and the seconds between two of these failures at most: a crash.
CRASH_MIN, CRASH_S = 8, 0.05

CRASH_SHARE = 0.5  # Share of the requests of a crash that may be in flight until a fill shows what they need
MIN_SAMPLE_REQUESTS = 4  # Requests in flight below which the cap is at least twice the peak


class MemoryCap:
    """Learns the memory of one request from the fill of the fullest device, up to a target fill in (0, 1].

    If the fill falls when requests end, it is attributed to the requests in flight.
    A caching allocator, such as PyTorch's, keeps its memory: a few requests would look as expensive as
    the peak. In that case the highest fill is attributed to the peak in flight.
    The fill counts as retained until it falls for the first time.
    """

    __slots__ = (
        *("_attributed", "_attributed_least", "_crash_cap", "_crashing", "_failed", "_failed_s", "_idle"),
        *("_max_ever", "_max_in_flight", "_ratio", "_target", "is_retained", "peak", "requests"),
    )

    def __init__(self, target: float) -> None:
        self._target = target
        self._idle = math.inf
        self._ratio, self._attributed = 0.0, 0  # the last accepted fill, and the requests it is attributed to
        self._attributed_least = 0  # certainly in flight then, if it is attributed to more
        # Most in flight since the fill was found to be retained, and ever.
        self._max_in_flight = self._max_ever = 0
        self._failed = self._crashing = 0  # failures of the newest burst, and in flight when it began
        self._failed_s = -math.inf
        self._crash_cap = math.inf  # until a fill has been read under load
        # Requests in flight at which the target would be reached, >= 1; infinite: not learned yet.
        self.requests: float = math.inf
        self.peak: int = 0  # Most requests in flight since the newest fill, in the periods that are over
        self.is_retained: bool = True  # Whether the fill stays when requests end

    @property
    def blind(self) -> bool:
        """Whether the idle fill is so near to the target that the fill says nothing about requests."""
        return self._target - BLIND_MARGIN <= self._idle < math.inf

    def learn(self, ratio: float, in_flight: int, peak: int, *, untouched: bool) -> None:
        """Update the cap with a fill, 0..1, of the fullest device.

        ``peak`` is the most in flight in the present period; ``untouched``: no request has ever been.
        """
        # Until the first request the idle fill moves up or down: a model may be still being loaded.
        self._idle = ratio if untouched else min(self._idle, ratio)
        peak, self.peak = max(peak, self.peak), 0
        if in_flight >= self._crash_cap / 2:
            self._crash_cap = math.inf
        if self.blind:
            self.requests = math.inf
            return
        self._compare(ratio, in_flight, peak)
        if ratio - self._idle > MIN_RISE:
            if self.is_retained:
                self._learn_retained(ratio, in_flight)
            elif self._is_informative(ratio, in_flight):
                self._ratio, self._attributed = ratio, in_flight
        rise = self._ratio - self._idle  # may be of an earlier fill, if the idle one turned out lower
        if not self._attributed:
            self.requests = self._crash_cap
        elif rise > MIN_RISE:
            # The first requests may have loaded a model: a cap at the peak could never be proved wrong.
            most = self._max_ever
            least = min(2.0 * most, MIN_SAMPLE_REQUESTS) if most < MIN_SAMPLE_REQUESTS else 1.0
            self.requests = max(least, (self._target - self._idle) * self._attributed / rise)

    def record_failure(self, in_flight: int, now: float) -> bool:
        """Record a failed request beside those still in flight; return whether the cap has changed.

        If most requests fail at once, the service may have run out of memory.
        """
        if now > self._failed_s + CRASH_S:
            self._failed, self._crashing = 0, in_flight + 1
        self._failed_s = now
        self._failed += 1
        is_crash = self._crashing >= CRASH_MIN and self._failed == self._crashing // 2 + 1
        if not is_crash or self.blind or self.requests <= self._crashing:
            return False
        # What was learned came from a process that has ended, and its memory with it.
        self._crash_cap = CRASH_SHARE * self._crashing
        if self._idle < math.inf:  # otherwise it applies from the first fill on, if there is one
            self.requests = self._crash_cap
        self.is_retained = False
        self._ratio, self._attributed, self._attributed_least, self._max_in_flight = 0.0, 0, 0, 0
        return True

    def _compare(self, ratio: float, in_flight: int, peak: int) -> None:
        """Decide if the fill follows the requests, relative to the last accepted fill."""
        self._max_in_flight, self._max_ever = max(self._max_in_flight, peak), max(self._max_ever, peak)
        if ratio < self._ratio - MIN_RISE:
            if self.is_retained:
                self._attributed = self._attributed_least
            self.is_retained = False
        elif (
            not self.is_retained
            and in_flight <= self._attributed / 2
            and self._ratio - self._idle > CLEAR_RISE
        ):
            self.is_retained, self._attributed_least, self._max_in_flight = True, self._attributed, in_flight

    def _learn_retained(self, ratio: float, in_flight: int) -> None:
        """Attribute a retained fill to the peak in flight since the fill last fell."""
        if ratio > self._ratio:
            self._ratio, self._attributed_least = ratio, in_flight
        self._attributed_least = max(self._attributed_least, in_flight)
        self._attributed = max(self._attributed, self._max_in_flight)

    def _is_informative(self, ratio: float, in_flight: int) -> bool:
        """Whether a fill that follows the requests adds information."""
        if in_flight < (MIN_SAMPLE_SHARE * self._max_ever if self._attributed else 1):
            return False
        return in_flight >= self._attributed or abs(ratio - self._ratio) > MIN_RISE
