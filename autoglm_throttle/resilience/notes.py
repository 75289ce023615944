"""What was degraded while one request was answered, for the field that says so to the client."""

from __future__ import annotations

from contextvars import ContextVar

from autoglm_throttle.model import Rung

Note = tuple[Rung, str]
"""What the answer was made of, and why."""

NOTES: ContextVar[list[Note] | None] = ContextVar("autoglm_throttle_notes", default=None)
"""The notes of the request at hand; None where nobody reads them. Workers' threads see the same list."""


def note(rung: Rung, cause: str) -> None:
    """Note a degraded answer, if the request is one whose notes are read."""
    notes = NOTES.get()
    if notes is not None and (rung, cause) not in notes:
        notes.append((rung, cause))
