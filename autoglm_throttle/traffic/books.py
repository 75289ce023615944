"""The books of a run: every planned request, by segment and priority, in exactly one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.arrivals import Plan
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.histogram import Histogram


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
    """One row per segment and priority of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.segments: tuple[str, ...] = plan.names
        self.rows: dict[tuple[int, Priority], Row] = {
            key: Row(planned=count) for key, count in plan.planned().items()
        }
        self._table = [[self.rows[segment, one] for one in Priority] for segment in range(len(plan.names))]
        self._plan = plan
        self._closed = bytearray(len(plan))

    def close(self, index: int, ending: Ending) -> Row:
        """Enter the ending of a planned request; the row it went into.

        Raises:
            RuntimeError: it ended before, which is a fault of the generator.
        """
        row = self._once(index)
        row.endings[ending] += 1
        return row

    def leave_out(self, index: int) -> None:
        """Enter that a planned request was never tried because the run was stopped.

        Raises:
            RuntimeError: it ended before.
        """
        self._once(index).unsent += 1

    def is_closed(self, index: int) -> bool:
        """Whether this request has ended."""
        return self._closed[index] == 1

    def total(self) -> Row:
        """The sum of all rows."""
        return Row.of(self.rows.values())

    def _once(self, index: int) -> Row:
        if self._closed[index]:
            raise RuntimeError(f"request {index} ended twice")
        self._closed[index] = 1
        return self._table[self._plan.segments[index]][self._plan.priorities[index]]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    books: Books
    lag: Histogram
    """How late requests were launched: the generator's own fault, never the service's."""
    elapsed_s: float
    """From the first intended start to the end of the drain."""
    resent: int
    """Sent twice because the server had closed the idle connection meanwhile."""
    aborted: bool
    """Stopped before the end of the plan."""

    @property
    def balanced(self) -> bool:
        """Whether every planned request is in exactly one place."""
        return all(row.balanced for row in self.books.rows.values())
