"""What a refusal says: when to come back, and why."""

from __future__ import annotations

import json

REFUSAL_BYTES = 64 << 10
"""How much of a refusal is kept to read its reason."""

REASON_CHARS = 64
"""A longer reason is cut: it is a word for a table, not a text."""


def promised_s(retry_after: bytes | None) -> float | None:
    """The wait that Retry-After asks for, if it is a plain number of seconds."""
    if retry_after is None or not retry_after.isdigit() or len(retry_after) > 9:
        return None
    return float(retry_after)


def reason(body: bytes) -> str:
    """The ``reason`` of a problem document (RFC 9457), or nothing."""
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    stated = problem.get("reason") if isinstance(problem, dict) else None
    return stated[:REASON_CHARS] if isinstance(stated, str) else ""
