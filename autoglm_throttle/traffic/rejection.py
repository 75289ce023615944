"""Parses a rejection: its Retry-After and its reason."""

from __future__ import annotations

import json

REJECTION_BYTES = 64 << 10
"""Bytes of a rejection's body that are stored to parse its reason."""

REASON_CHARS = 64
"""A longer reason is truncated: it is a label of a table."""


def parse_retry_after(retry_after: bytes | None) -> float | None:
    """Return the wait in Retry-After, if it is a plain number of seconds."""
    if retry_after is None or not retry_after.isdigit() or len(retry_after) > 9:
        return None
    return float(retry_after)


def parse_reason(body: bytes) -> str:
    """Return the ``reason`` of a problem document (RFC 9457), or an empty text."""
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    reason_text = problem.get("reason") if isinstance(problem, dict) else None
    return reason_text[:REASON_CHARS] if isinstance(reason_text, str) else ""
