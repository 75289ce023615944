"""Whether a store can be asked, and when one that cannot is asked again.

| state | entered                                        | left by                                   |
|-------|------------------------------------------------|-------------------------------------------|
| up    | at the start; by an answer                     | failures in a row, or one that is final   |
| away  | from up; while it lasts, by each further probe | a probe's answer                          |

Unlike the store of user limits, which is asked once a second for ever, this one is asked ever less often:
nothing is waiting for it but news, and a breaker by itself is a whole breaker.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FAILURES: Final = 3
"""In a row: one late answer is no outage, and three deadlines of 50 ms are soon over."""

FIRST_S: Final = 1.0
LONGEST_S: Final = 10.0
"""Seconds to the first probe, doubled to at most those between two."""

JITTER: Final = 0.2
"""Share by which each pause varies: a fleet must not ask in step."""


def _about_one() -> float:
    return random.uniform(1.0 - JITTER, 1.0 + JITTER)


class Absence:
    """Follows one store. Not locked: its owner's lock guards it.

    Args:
        jitter: factor of each pause.
    """

    def __init__(self, jitter: Callable[[], float] = _about_one) -> None:
        self.up: bool = True
        self.due_s: float = 0.0
        """Monotonic seconds from which on a probe may be sent, while it is away."""
        self.since_s: float = 0.0
        """When it was lost."""
        self._jitter = jitter
        self._in_a_row = 0
        self._pause_s = FIRST_S

    def __repr__(self) -> str:
        return "Absence(up)" if self.up else f"Absence(since {self.since_s:.3f}, asked at {self.due_s:.3f})"

    def failed(self, now: float, *, final: bool = False) -> bool:
        """Take in a failure, or a deadline that was missed.

        Args:
            now: monotonic seconds.
            final: the next call would find the same: one is enough.

        Returns:
            Whether the store is lost by this one.
        """
        if not self.up:
            if now >= self.due_s:  # a probe; what fails before was sent before the loss
                self._pause_s = min(2.0 * self._pause_s, LONGEST_S)
                self.due_s = now + self._pause_s * self._jitter()
            return False
        self._in_a_row += 1
        if self._in_a_row < FAILURES and not final:
            return False
        self.up, self.since_s, self._pause_s = False, now, FIRST_S
        self.due_s = now + FIRST_S * self._jitter()
        return True

    def answered(self) -> bool:
        """Take in an answer.

        Returns:
            Whether the store is back by this one.
        """
        back = not self.up
        self.up, self._in_a_row = True, 0
        return back
