"""Cached rejection of an open breaker: only ``retry_after_s`` changes during an open period."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from autoglm_throttle.types import GuardRejected, GuardRejection

END_MARGIN_S: Final = 0.001
"""Seconds before the end of an open period without use of this cache: rounding must not delay the probe."""


class OpenPeriod:
    """An open period, known from the breaker's first rejection in it.

    Args:
        rejection: of an open breaker.
        generation: of the breaker; a later one ends this period.
        at_s: monotonic seconds of the rejection.
    """

    __slots__ = ("at_s", "generation", "rejection", "rejections", "remaining_s")

    def __init__(self, rejection: GuardRejection, generation: int, at_s: float) -> None:
        self.rejection: GuardRejection = rejection
        self.generation: int = generation
        self.at_s: float = at_s
        self.remaining_s: float = rejection.retry_after_s
        self.rejections: int = 0
        """Rejections served from this cache. Counted without a lock: concurrent ones may be lost."""


class OpenGuardRejected(GuardRejected):
    """A rejection by an open breaker. Its `GuardRejection` is built on first access.

    Args:
        first_rejection: the first one of this open period.
        retry_after_s: seconds left of it.
    """

    def __init__(self, first_rejection: GuardRejection, retry_after_s: float) -> None:
        # No super().__init__: BaseException.__new__ has stored the arguments already.
        self._first_rejection = first_rejection
        self._retry_after_s = retry_after_s

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next call is useful."""
        return self._retry_after_s

    # Called only while the attribute is missing: the first access stores it on the instance.
    def __getattr__(self, name: str) -> GuardRejection:
        if name != "rejection":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.rejection: GuardRejection = replace(self._first_rejection, retry_after_s=self._retry_after_s)
        return self.rejection
