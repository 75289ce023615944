"""The request log of a run: one result per planned request, written once, when the request ends.

A run in process and one over HTTP are evaluated alike, after the run, from the plan and the log alone.
"""

from __future__ import annotations

import json
from array import array
from enum import IntEnum
from math import nan

OPEN, UNSENT = 255, 254  # In `RequestLog.results`: not ended yet, and skipped because the run was stopped
REJECTION_BYTES = 64 << 10  # Bytes of a rejection's body that are stored to parse its reason
REASON_CHARS = 64  # A longer reason is truncated: it is a label of a table

# Bound on distinct reasons, and the name of all others: numbers in reasons must not fill the report.
MOST_REASONS, OTHER_REASONS = 1000, "other reasons"


class RequestResult(IntEnum):
    """Result of one planned request; each request ends in exactly one of them."""

    OK = 0  # 2xx or 3xx
    DEGRADED = 1  # 2xx with `X-Degraded`: answered by a fallback
    LIMITED = 2  # 429: the caller's own limit
    SHED = 3  # 503 with Retry-After: load shedding
    CLIENT_ERROR = 4  # any other 4xx
    SERVER_ERROR = 5  # any other 5xx, also 503 without Retry-After
    CONNECTION = 6  # the connection closed before the response was complete
    TIMEOUT = 7  # no complete response within the timeout, counted from the intended start
    MALFORMED = 8  # bytes that are no HTTP/1.1 response, or a response longer than the limit
    UNANSWERED = 9  # still open at the end of the drain
    DROPPED = 10  # never sent: too many were in flight

    @property
    def label(self) -> str:
        """The lower-case name, as used in reports."""
        return self._name_.lower()

    @property
    def served(self) -> bool:
        """Whether the work was done."""
        return self <= RequestResult.DEGRADED

    @property
    def rejected(self) -> bool:
        """Whether the request got 429, or 503 with Retry-After: a response, and no error."""
        return RequestResult.LIMITED <= self <= RequestResult.SHED

    @property
    def failed(self) -> bool:
        """Whether the request failed, with or without a response."""
        return self >= RequestResult.CLIENT_ERROR


def classify_response(status: int, retry_after: bytes | None, *, degraded: bool) -> RequestResult:
    """Classify a complete response by its status, 200 or more, its Retry-After and its X-Degraded."""
    if status < 400:
        return RequestResult.DEGRADED if degraded and status < 300 else RequestResult.OK
    if status == 429:
        return RequestResult.LIMITED
    if status < 500:
        return RequestResult.CLIENT_ERROR
    return RequestResult.SHED if status == 503 and retry_after is not None else RequestResult.SERVER_ERROR


def parse_retry_after(retry_after: bytes | None) -> float | None:
    """Return the wait in Retry-After, if it is a plain number of seconds."""
    if retry_after is None or not retry_after.isdigit() or len(retry_after) > 9:
        return None
    return float(retry_after)


def parse_reason(body: bytes) -> str:
    """Return the ``reason`` of a problem document (RFC 9457) or the code of an error, or an empty text."""
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    error = problem.get("error") if isinstance(problem, dict) else None
    if isinstance(error, dict):  # of OpenAI, Anthropic, or JSON-RPC with the reason in its data
        problem = error.get("data", {"reason": error.get("code")})
    reason_text = problem.get("reason") if isinstance(problem, dict) else None
    return reason_text[:REASON_CHARS] if isinstance(reason_text, str) else ""


class RequestLog:
    """Result of each request of a plan, by its index; a closed loop begins with 0 and adds them one by one.

    Durations are single-precision seconds: exact to 2 us at 30 s. NaN means unknown.
    """

    def __init__(self, count: int = 0) -> None:
        self.results: bytearray = bytearray([OPEN]) * count  # `RequestResult` values, `OPEN` or `UNSENT`
        # HTTP status of a complete response; 0 without one.
        self.statuses: array[int] = array("H", bytes(2 * count))
        # Delay of the launch: caused by the generator, never by the service.
        self.lag_s: array[float] = array("f", [nan]) * count
        # From the intended start to the end: the latency seen by a user. NaN if the request was not sent.
        self.response_s: array[float] = array("f", [nan]) * count
        self.service_s: array[float] = array("f", [nan]) * count  # from the write to the end of the response
        # From the intended start to the first byte of the response body, or its end if there is no body.
        self.first_byte_s: array[float] = array("f", [nan]) * count
        self.promised_s: array[float] = array("f", [nan]) * count  # the wait given by Retry-After
        self.reasons: array[int] = array("H", bytes(2 * count))  # index into `reason_texts`; 0 is no reason
        self.reason_texts: list[str] = [""]  # the distinct reasons of rejections
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

    def close(self, index: int, result: int, response_s: float) -> None:
        """Record the result of a request; raise RuntimeError for a bug of the generator: it ended before."""
        if self.results[index] != OPEN:
            raise RuntimeError(f"request {index} ended twice")
        self.results[index] = result
        self.response_s[index] = response_s

    def skip(self, index: int) -> None:
        """Mark a planned request as never tried, because the run was stopped."""
        self.close(index, UNSENT, nan)

    def record_rejection(self, index: int, reason: str, promised_s: float | None) -> None:
        """Record the reason and the Retry-After of a rejection; new reasons above the bound are "other"."""
        number = self._reason_numbers.get(reason)
        if number is None:
            reason = reason if len(self.reason_texts) < MOST_REASONS else OTHER_REASONS
            number = self._reason_numbers.setdefault(reason, len(self.reason_texts))
            if number == len(self.reason_texts):
                self.reason_texts.append(reason)
        self.reasons[index] = number
        if promised_s is not None:
            self.promised_s[index] = promised_s

    def is_closed(self, index: int) -> bool:
        """Whether this request has ended."""
        return self.results[index] != OPEN

    @property
    def balanced(self) -> bool:
        """Whether every request has a result or was skipped."""
        return OPEN not in self.results
