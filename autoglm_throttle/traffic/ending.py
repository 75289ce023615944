"""How a planned request ended: in exactly one of these ways."""

from __future__ import annotations

from enum import IntEnum


class Ending(IntEnum):
    """What became of one planned request."""

    OK = 0
    """2xx or 3xx."""
    DEGRADED = 1
    """2xx that says ``X-Degraded``: answered by a fallback."""
    LIMITED = 2
    """429: the caller's own limit."""
    REJECTED = 3
    """503 with Retry-After: the service's load, said properly."""
    CLIENT_ERROR = 4
    """Any other 4xx."""
    SERVER_ERROR = 5
    """Any other 5xx, also 503 without Retry-After."""
    CONNECTION = 6
    """The connection ended before the answer did."""
    TIMEOUT = 7
    """No complete answer within the timeout, counted from the intended start."""
    MALFORMED = 8
    """Bytes that are no HTTP/1.1 answer, or more of them than can be wanted."""
    UNANSWERED = 9
    """Still open when the drain was over."""
    DROPPED = 10
    """Never sent: too many were in flight."""

    @property
    def label(self) -> str:
        """The lower-case name, as it stands in reports."""
        return self._name_.lower()

    @property
    def served(self) -> bool:
        """The work was done."""
        return self <= Ending.DEGRADED

    @property
    def refused(self) -> bool:
        """An orderly no: an answer, and no error."""
        return Ending.LIMITED <= self <= Ending.REJECTED

    @property
    def failed(self) -> bool:
        """An error, with or without an answer."""
        return self >= Ending.CLIENT_ERROR


def judge(status: int, *, retry_after: bool, degraded: bool) -> Ending:
    """The ending of a complete answer.

    Args:
        status: HTTP status, 200 or more.
        retry_after: whether the answer says when to come back.
        degraded: whether it says that a fallback made it.
    """
    if status < 400:
        return Ending.DEGRADED if degraded and status < 300 else Ending.OK
    if status == 429:
        return Ending.LIMITED
    if status < 500:
        return Ending.CLIENT_ERROR
    return Ending.REJECTED if status == 503 and retry_after else Ending.SERVER_ERROR
