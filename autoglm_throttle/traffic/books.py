"""The books of a run: the sums of its sheet, by segment and priority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.arrivals import Plan
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.sheet import UNSENT, Sheet


@dataclass(slots=True)
class Row:
    """What became of some planned requests."""

    planned: int = 0
    unsent: int = 0
    """Left out because the run was stopped."""
    endings: list[int] = field(default_factory=lambda: [0] * len(Ending))
    """By ``Ending``."""
    response: Histogram = field(default_factory=Histogram)
    """From the intended start, of the served: what users saw."""
    service: Histogram = field(default_factory=Histogram)
    """From the write to the socket, of the served."""
    refusal: Histogram = field(default_factory=Histogram)
    """From the intended start, of the refused."""
    promised: Histogram = field(default_factory=Histogram)
    """Waits promised by Retry-After, of the refused."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Refused requests by the reason in their body."""

    @property
    def sent(self) -> int:
        """Planned and not left out."""
        return self.planned - self.unsent

    @property
    def admitted(self) -> int:
        """Served, in full or by a fallback."""
        return sum(self.endings[ending] for ending in Ending if ending.served)

    @property
    def limited(self) -> int:
        """Refused with 429."""
        return self.endings[Ending.LIMITED]

    @property
    def rejected(self) -> int:
        """Refused with 503 and a time to come back."""
        return self.endings[Ending.REJECTED]

    @property
    def failed(self) -> int:
        """Ended in an error."""
        return sum(self.endings[ending] for ending in Ending if ending.failed)

    @property
    def balanced(self) -> bool:
        """Whether nothing was lost or counted twice."""
        return self.sent == sum(self.endings)

    def enter(self, sheet: Sheet, index: int) -> None:
        """Count one request of a sheet; one that is still open is counted as planned alone."""
        self.planned += 1
        number = sheet.endings[index]
        if number >= UNSENT:
            self.unsent += number == UNSENT
            return
        ending = Ending(number)
        self.endings[ending] += 1
        if ending.served:
            self.response.record(sheet.response_s[index])
            self.service.record(sheet.service_s[index])
        elif ending.refused:
            self.refusal.record(sheet.response_s[index])
            self.reasons[sheet.stated[sheet.reasons[index]]] += 1
            if not isnan(sheet.promised_s[index]):
                self.promised.record(sheet.promised_s[index])

    def add(self, other: Row) -> None:
        """Add another row to this one."""
        self.planned += other.planned
        self.unsent += other.unsent
        self.endings = [mine + theirs for mine, theirs in zip(self.endings, other.endings, strict=True)]
        self.response.merge(other.response)
        self.service.merge(other.service)
        self.refusal.merge(other.refusal)
        self.promised.merge(other.promised)
        self.reasons.update(other.reasons)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Row:
        """The sum of several rows."""
        whole = cls()
        for row in rows:
            whole.add(row)
        return whole


class Books:
    """One row per segment and priority of a plan.

    Args:
        plan: what was to be sent.
        sheet: what became of it.
    """

    def __init__(self, plan: Plan, sheet: Sheet) -> None:
        self.segments: tuple[str, ...] = plan.names
        self.rows: dict[tuple[int, Priority], Row] = {
            (segment, priority): Row() for segment in range(len(plan.names)) for priority in Priority
        }
        for index, (segment, priority) in enumerate(zip(plan.segments, plan.priorities, strict=True)):
            self.rows[segment, Priority(priority)].enter(sheet, index)

    def total(self) -> Row:
        """The sum of all rows."""
        return Row.of(self.rows.values())
