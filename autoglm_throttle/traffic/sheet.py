"""The sheet of a run: one line per planned request, filled in once, when the request ends.

Entering an ending is a few stores into arrays; everything else (rows, histograms, curves) is worked out
after the run, from the plan and this sheet alone. So a run in process and one over HTTP are judged alike.
"""

from __future__ import annotations

from array import array
from math import nan

from autoglm_throttle.traffic.ending import Ending

OPEN = 255
"""In ``endings``: not ended yet."""

UNSENT = 254
"""In ``endings``: left out because the run was stopped."""

MOST_REASONS = 1000
"""A service has some dozen; one that puts numbers or names into them must not fill the report."""

OTHERS = "other reasons"
"""Stands for those above `MOST_REASONS`."""


class Sheet:
    """What became of each request of a plan, by its index.

    Durations are single-precision seconds: exact to 2 us at 30 s. NaN stands where there is nothing to say.

    Args:
        count: requests of the plan; a closed loop begins with none and adds them one by one.
    """

    __slots__ = (
        "_reason_numbers",
        "endings",
        "first_byte_s",
        "lag_s",
        "promised_s",
        "reasons",
        "response_s",
        "service_s",
        "stated",
        "statuses",
    )

    def __init__(self, count: int = 0) -> None:
        self.endings: bytearray = bytearray([OPEN]) * count
        """``Ending`` values, ``OPEN`` or ``UNSENT``."""
        self.statuses: array[int] = array("H", bytes(2 * count))
        """HTTP status of a whole answer; 0 without one."""
        self.lag_s: array[float] = array("f", [nan]) * count
        """How late it was launched: the generator's own fault, never the service's."""
        self.response_s: array[float] = array("f", [nan]) * count
        """From the intended start to the ending: what a user saw. NaN for what was never sent."""
        self.service_s: array[float] = array("f", [nan]) * count
        """From the write to the end of the answer."""
        self.first_byte_s: array[float] = array("f", [nan]) * count
        """From the intended start to the first byte of the answer's body, or its end if there is no body."""
        self.promised_s: array[float] = array("f", [nan]) * count
        """The wait that Retry-After asked for."""
        self.reasons: array[int] = array("H", bytes(2 * count))
        """Index into ``stated``; 0 is no reason."""
        self.stated: list[str] = [""]
        """The reasons that refusals stated."""
        self._reason_numbers: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self.endings)

    def add(self) -> int:
        """One more request; its index."""
        self.endings.append(OPEN)
        self.statuses.append(0)
        self.reasons.append(0)
        for column in (self.lag_s, self.response_s, self.service_s, self.first_byte_s, self.promised_s):
            column.append(nan)
        return len(self.endings) - 1

    def close(self, index: int, ending: Ending, response_s: float) -> None:
        """Enter the ending of a request.

        Raises:
            RuntimeError: it ended before, which is a fault of the generator.
        """
        if self.endings[index] != OPEN:
            raise RuntimeError(f"request {index} ended twice")
        self.endings[index] = ending
        self.response_s[index] = response_s

    def leave_out(self, index: int) -> None:
        """Enter that a planned request was never tried because the run was stopped.

        Raises:
            RuntimeError: it ended before.
        """
        if self.endings[index] != OPEN:
            raise RuntimeError(f"request {index} ended twice")
        self.endings[index] = UNSENT

    def refused(self, index: int, reason: str, promised_s: float | None) -> None:
        """Enter what a refusal said."""
        number = self._reason_numbers.get(reason)
        self.reasons[index] = self._number_of(reason) if number is None else number
        if promised_s is not None:
            self.promised_s[index] = promised_s

    def _number_of(self, reason: str) -> int:
        """Of a reason that is new; once there are too many, of the one that stands for all others."""
        if len(self.stated) >= MOST_REASONS:
            reason = OTHERS
        number = self._reason_numbers.setdefault(reason, len(self.stated))
        if number == len(self.stated):
            self.stated.append(reason)
        return number

    def is_closed(self, index: int) -> bool:
        """Whether this request has ended."""
        return self.endings[index] != OPEN

    @property
    def balanced(self) -> bool:
        """Whether every request has ended in exactly one way, or was left out."""
        return OPEN not in self.endings
