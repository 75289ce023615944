"""Degraded answers used for the current request, for the response field that reports them to the client."""

from __future__ import annotations

from contextvars import ContextVar

from autoglm_throttle.types import FallbackKind

DegradedAnswer = tuple[FallbackKind, str]
"""Kind of fallback, and its cause."""

degraded_answers: ContextVar[list[DegradedAnswer] | None] = ContextVar(
    "autoglm_throttle_degraded_answers", default=None
)
"""Degraded answers of the current request; None if they are not collected. Worker threads share the list."""


def record_degraded(fallback_kind: FallbackKind, cause: str) -> None:
    """Record a degraded answer, if they are collected for this request."""
    # The list is shared, not copied: a context copied into a worker thread refers to the same list.
    answers = degraded_answers.get()
    if answers is not None and (fallback_kind, cause) not in answers:
        answers.append((fallback_kind, cause))
