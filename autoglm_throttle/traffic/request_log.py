"""The request log of a run: one entry per planned request, written once, at its end.

Recording a result is a few stores into arrays. Tallies, histograms and curves are computed after the run,
from the plan and this log alone. A run in process and one over HTTP are therefore evaluated alike.
"""

from __future__ import annotations

from array import array
from math import nan

from autoglm_throttle.traffic.request_result import RequestResult

OPEN = 255
"""In ``results``: not ended yet."""

UNSENT = 254
"""In ``results``: skipped because the run was stopped."""

MOST_REASONS = 1000
"""Bound on distinct reasons. A service has some dozen; numbers or names in them must not fill the report."""

OTHER_REASONS = "other reasons"
"""Replaces reasons above `MOST_REASONS`."""


class RequestLog:
    """Result of each request of a plan, by its index.

    Durations are single-precision seconds: exact to 2 us at 30 s. NaN means unknown.

    Args:
        count: requests of the plan; a closed loop begins with 0 and adds them one by one.
    """

    __slots__ = (
        "_reason_numbers",
        "first_byte_s",
        "lag_s",
        "promised_s",
        "reason_texts",
        "reasons",
        "response_s",
        "results",
        "service_s",
        "statuses",
    )

    def __init__(self, count: int = 0) -> None:
        self.results: bytearray = bytearray([OPEN]) * count
        """`RequestResult` values, ``OPEN`` or ``UNSENT``."""
        self.statuses: array[int] = array("H", bytes(2 * count))
        """HTTP status of a complete response; 0 without one."""
        self.lag_s: array[float] = array("f", [nan]) * count
        """Delay of the launch: caused by the generator, never by the service."""
        self.response_s: array[float] = array("f", [nan]) * count
        """From the intended start to the end: the latency seen by a user. NaN if the request was not sent."""
        self.service_s: array[float] = array("f", [nan]) * count
        """From the write to the end of the response."""
        self.first_byte_s: array[float] = array("f", [nan]) * count
        """From the intended start to the first byte of the response body, or its end if there is no body."""
        self.promised_s: array[float] = array("f", [nan]) * count
        """The wait given by Retry-After."""
        self.reasons: array[int] = array("H", bytes(2 * count))
        """Index into ``reason_texts``; 0 is no reason."""
        self.reason_texts: list[str] = [""]
        """The distinct reasons of rejections."""
        self._reason_numbers: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self.results)

    def add(self) -> int:
        """Append one request and return its index."""
        self.results.append(OPEN)
        self.statuses.append(0)
        self.reasons.append(0)
        for column in (self.lag_s, self.response_s, self.service_s, self.first_byte_s, self.promised_s):
            column.append(nan)
        return len(self.results) - 1

    def close(self, index: int, result: RequestResult, response_s: float) -> None:
        """Record the result of a request.

        Raises:
            RuntimeError: it ended before, which is a bug in the generator.
        """
        if self.results[index] != OPEN:
            raise RuntimeError(f"request {index} ended twice")
        self.results[index] = result
        self.response_s[index] = response_s

    def skip(self, index: int) -> None:
        """Mark a planned request as never tried, because the run was stopped.

        Raises:
            RuntimeError: it ended before.
        """
        if self.results[index] != OPEN:
            raise RuntimeError(f"request {index} ended twice")
        self.results[index] = UNSENT

    def record_rejection(self, index: int, reason: str, promised_s: float | None) -> None:
        """Record the reason and the Retry-After of a rejection."""
        number = self._reason_numbers.get(reason)
        self.reasons[index] = self._reason_number(reason) if number is None else number
        if promised_s is not None:
            self.promised_s[index] = promised_s

    def _reason_number(self, reason: str) -> int:
        """Return the index of a new reason; above `MOST_REASONS` that of `OTHER_REASONS`."""
        if len(self.reason_texts) >= MOST_REASONS:
            reason = OTHER_REASONS
        number = self._reason_numbers.setdefault(reason, len(self.reason_texts))
        if number == len(self.reason_texts):
            self.reason_texts.append(reason)
        return number

    def is_closed(self, index: int) -> bool:
        """Whether this request has ended."""
        return self.results[index] != OPEN

    @property
    def balanced(self) -> bool:
        """Whether every request has a result or was skipped."""
        return OPEN not in self.results
