"""No limit."""

from __future__ import annotations

from benchmarks.loop.limiters.limiter import BaseLimiter, LimiterContext
from benchmarks.loop.request import Request


class NoLimit(BaseLimiter):
    """Admits every request."""

    def __init__(self, context: LimiterContext) -> None:
        self._context = context

    def arrive(self, request: Request) -> None:
        """Admit the request."""
        self._context.admit(request)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Do nothing: no slot was held."""
