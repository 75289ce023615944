"""Selects the part of a recording to replay, and its speed: pure functions of its times."""

from __future__ import annotations

import hashlib
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import MAX_PLANNED
from autoglm_throttle.traffic.plan.shapes import check_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection from a recording, applied in this order: interval, sample, shorter gaps, speed, loops.

    A number out of range, both a speed and a rate, or a replay without an end raise TrafficError.
    """

    speed: float = 1.0  # 2 plays twice as fast
    rate_rps: float | None = None  # Mean rate of the replay, instead of a speed
    loops: int | None = 1  # Number of repetitions; None: repeat until ``duration_s``
    duration_s: float | None = None  # End of the replay, in its seconds; None: the end of its last loop
    max_gap_s: float | None = None  # Longer gaps of the recording are shortened to this, before ``speed``
    sample: float = 1.0  # Share of the clients that are selected, each with all of its requests
    from_s: float | None = None  # Earlier requests of the recording are skipped; counted from its start
    to_s: float | None = None  # Requests from here on are skipped

    def __post_init__(self) -> None:
        problems = "; ".join(self._problems())
        if problems:
            raise TrafficError(problems)

    def _problems(self) -> Iterable[str]:
        numbers = (self.speed, self.rate_rps, self.duration_s, self.max_gap_s)
        for name, number in zip(("speed", "rate", "duration", "max_gap"), numbers, strict=True):
            if number is not None and not 0.0 < number < math.inf:
                yield f"{name} must be a finite number above 0, not {number!r}"
        if not 0.0 < self.sample <= 1.0:
            yield f"sample must be above 0 and at most 1, not {self.sample!r}"
        if self.loops is not None and self.loops < 1:
            yield f"loops must be at least 1, not {self.loops!r}"
        if self.loops is None and self.duration_s is None:
            yield "a replay that goes on forever needs a duration"
        if self.rate_rps is not None and self.speed != 1.0:
            yield "speed and rate cannot both be given: a rate sets the speed"
        first_s = 0.0 if self.from_s is None else self.from_s
        if not (first_s >= 0.0 and (self.to_s is None or self.to_s > first_s)):
            yield f"an interval begins at 0 or later and ends after it, not {self.from_s!r} to {self.to_s!r}"

    def includes(self, t_s: float, client: str, serial: int) -> bool:
        """Return whether a recorded request is replayed; one without a client is a client of its own."""
        if self.from_s is not None and t_s < self.from_s:
            return False
        if self.to_s is not None and t_s >= self.to_s:
            return False
        return self.sample >= 1.0 or _sample_position(client, serial) < self.sample

    def offsets(self, times_s: Sequence[float]) -> array[float]:
        """Compute the send times of the selected requests, loop after loop, in seconds from the start.

        Request ``n`` of the result is number ``n % len(times_s)`` of the selected ones. No request or too
        many, times that fall, and a repeated loop that takes no time raise TrafficError.
        """
        once = _shorten_gaps(times_s, self.max_gap_s)
        speed, period_s = self._pace(once)
        check_length(once[-1] / speed if self.duration_s is None else min(once[-1] / speed, self.duration_s))
        for index, offset_s in enumerate(once):
            once[index] = offset_s / speed
        loops = self._loop_count(len(once), period_s)
        offsets = array("d")
        for loop in range(math.ceil(loops)):
            offsets.extend(once if loop == 0 else array("d", (loop * period_s + at_s for at_s in once)))
        if self.duration_s is not None:
            del offsets[bisect_left(offsets, self.duration_s) :]
        return offsets

    def _pace(self, once: array[float]) -> tuple[float, float]:
        """Return the speed, and the length of a loop at that speed: its span and one mean gap."""
        span_s, count = once[-1], len(once)
        if span_s == 0.0:
            return 1.0, 0.0 if self.rate_rps is None else count / self.rate_rps
        speed = self.speed if self.rate_rps is None else self.rate_rps * span_s / (count - 1)
        return speed, span_s * count / (count - 1) / speed

    def _loop_count(self, count: int, period_s: float) -> float:
        """Return the number of loops; the last one may be partial."""
        loops = math.inf if self.loops is None else float(self.loops)
        if loops > 1.0:
            if period_s == 0.0:
                raise TrafficError("all requests came at once, so a loop takes no time: give a rate")
            if self.duration_s is not None:
                loops = min(loops, max(1.0, self.duration_s / period_s))
        if loops * count > MAX_PLANNED:
            raise TrafficError(f"{loops * count:.0f} requests, but a plan can hold only {MAX_PLANNED}")
        return loops


def _shorten_gaps(times_s: Sequence[float], max_gap_s: float | None) -> array[float]:
    """Return seconds from the first request, with no gap longer than allowed."""
    if not times_s:
        raise TrafficError("nothing to replay: no request is left of the recording")
    if any(later < earlier for earlier, later in pairwise(times_s)):
        raise TrafficError("the times of a recording must not fall")
    left_out_s = 0.0
    offsets = array("d", [0.0])
    for earlier, later in pairwise(times_s):
        if max_gap_s is not None:
            left_out_s += max(0.0, later - earlier - max_gap_s)
        # max(): rounding must not let the times fall.
        offsets.append(max(offsets[-1], later - times_s[0] - left_out_s))
    return offsets


def _sample_position(client: str, serial: int) -> float:
    """Map a client to a number from 0 to 1, exclusive."""
    # Salted: the recorder samples by the client digits themselves, so these are not uniform any more.
    digest = hashlib.sha256(f"replay {client or f'#{serial}'}".encode()).digest()
    return int.from_bytes(digest[:4]) / 2**32
