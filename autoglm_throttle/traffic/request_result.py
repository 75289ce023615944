"""Results of a planned request: each request ends in exactly one of them."""

from __future__ import annotations

from enum import IntEnum


class RequestResult(IntEnum):
    """Result of one planned request."""

    OK = 0
    """2xx or 3xx."""
    DEGRADED = 1
    """2xx with ``X-Degraded``: answered by a fallback."""
    LIMITED = 2
    """429: the caller's own limit."""
    SHED = 3
    """503 with Retry-After: load shedding."""
    CLIENT_ERROR = 4
    """Any other 4xx."""
    SERVER_ERROR = 5
    """Any other 5xx, also 503 without Retry-After."""
    CONNECTION = 6
    """The connection closed before the response was complete."""
    TIMEOUT = 7
    """No complete response within the timeout, counted from the intended start."""
    MALFORMED = 8
    """Bytes that are no HTTP/1.1 response, or a response longer than the limit."""
    UNANSWERED = 9
    """Still open at the end of the drain."""
    DROPPED = 10
    """Never sent: too many were in flight."""

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


def classify_response(status: int, *, retry_after: bool, degraded: bool) -> RequestResult:
    """Classify a complete response.

    Args:
        status: HTTP status, 200 or more.
        retry_after: whether the response has a Retry-After field.
        degraded: whether the response has an X-Degraded field.
    """
    if status < 400:
        return RequestResult.DEGRADED if degraded and status < 300 else RequestResult.OK
    if status == 429:
        return RequestResult.LIMITED
    if status < 500:
        return RequestResult.CLIENT_ERROR
    return RequestResult.SHED if status == 503 and retry_after else RequestResult.SERVER_ERROR
