"""Peak number of requests in flight, second by second."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from autoglm_throttle.traffic.request_log import RequestResult


def peaks(
    offsets: Sequence[float],
    lag_s: Sequence[float],
    response_s: Sequence[float],
    outcomes: Sequence[int],
    count: int,
) -> list[int]:
    """Return the peak in flight within each second from the start of the run.

    A request is in flight from its launch to its end, both included. A dropped or skipped request never is in
    flight. A launch without a known lag was on time.

    Args:
        offsets: intended starts in seconds.
        lag_s: launch delay of each request, or NaN.
        response_s: from the intended start to the end.
        outcomes: result codes of the request log.
        count: number of seconds; later ones are ignored.
    """
    launched, ended = _spans(offsets, lag_s, response_s, outcomes)
    most: list[int] = []
    begun = over = 0
    for second in range(count):
        over = bisect_left(ended, second, over)
        stop = bisect_left(launched, second + 1, begun)
        peak = begun - over
        for place in range(begun, stop):
            start = launched[place]
            # `<`: a request that ends exactly at this launch still counts as in flight.
            while ended[over] < start:
                over += 1
            if place - over >= peak:
                peak = place - over + 1
        begun = stop
        most.append(peak)
    return most


def _spans(
    offsets: Sequence[float], lag_s: Sequence[float], response_s: Sequence[float], outcomes: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Return launches and ends, each in order of time; an end is never before its launch."""
    # Dropped and skipped requests have the greatest codes.
    never = RequestResult.DROPPED.value
    # A single NaN makes the sum NaN: one pass in C decides if the list must be rebuilt.
    lags = [0.0 if math.isnan(lag) else lag for lag in lag_s] if math.isnan(sum(lag_s)) else lag_s
    launched = [start + lag for start, lag, code in zip(offsets, lags, outcomes, strict=True) if code < never]
    ended = [
        offset + (response if response > lag else lag)
        for offset, lag, response, outcome in zip(offsets, lags, response_s, outcomes, strict=True)
        if outcome < never
    ]
    launched.sort()
    ended.sort()
    return launched, ended
