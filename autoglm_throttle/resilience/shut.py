"""A refusal that is known without asking: while a breaker is open, the same for all but for the time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from autoglm_throttle.model import GuardRefused, Refusal

CLOSE_S: Final = 0.001
"""Seconds before the end of an open period in which the breaker itself is asked, so that rounding never makes
the first trial late."""


class Shut:
    """An open period, as the breaker's own first refusal of it has shown it.

    Args:
        refusal: of an open breaker.
        generation: of the breaker; a later one ends this.
        at_s: monotonic seconds of the refusal.
    """

    __slots__ = ("at_s", "count", "generation", "left_s", "refusal")

    def __init__(self, refusal: Refusal, generation: int, at_s: float) -> None:
        self.refusal: Refusal = refusal
        self.generation: int = generation
        self.at_s: float = at_s
        self.left_s: float = refusal.retry_after_s
        self.count: int = 0
        """Refusals by this alone. Counted without a lock: of two threads at once one may be lost."""


class ShutOut(GuardRefused):
    """A refusal by an open breaker, put in words only when somebody looks: most callers only want the time.

    Args:
        known: the first refusal of this open period.
        retry_after_s: seconds left of it.
    """

    def __init__(self, known: Refusal, retry_after_s: float) -> None:
        # BaseException.__new__ has kept the arguments
        self._known = known
        self._retry_after_s = retry_after_s

    @property
    def retry_after_s(self) -> float:
        """Seconds after which the next call is worth making."""
        return self._retry_after_s

    def __getattr__(self, name: str) -> Refusal:
        if name != "refusal":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.refusal: Refusal = replace(self._known, retry_after_s=self._retry_after_s)
        return self.refusal
