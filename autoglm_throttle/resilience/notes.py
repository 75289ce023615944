"""Degraded answers used for the current request, for the response field that reports them to the client."""

from __future__ import annotations

from contextvars import ContextVar

from autoglm_throttle.model import Rung

Note = tuple[Rung, str]
"""Kind of fallback, and its cause."""

NOTES: ContextVar[list[Note] | None] = ContextVar("autoglm_throttle_notes", default=None)
"""Degraded answers of the current request; None if they are not collected. Worker threads share the list."""


def note(rung: Rung, cause: str) -> None:
    """Record a degraded answer, if they are collected for this request."""
    # The list is shared, not copied: a context copied into a worker thread refers to the same list.
    notes = NOTES.get()
    if notes is not None and (rung, cause) not in notes:
        notes.append((rung, cause))
