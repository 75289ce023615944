"""The books of a run: the sums of its sheet, by segment and priority."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

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
    statuses: Counter[int] = field(default_factory=Counter)
    """Whole answers by their HTTP status."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Refused requests by the reason in their body."""
    timely: int = 0
    """Served within the limit of their priority; all the served where there is no limit."""
    answers: Counter[int] = field(default_factory=Counter)
    """Whole answers by when they came, in steps from the start of the run."""
    timely_answers: Counter[int] = field(default_factory=Counter)
    """Those that are timely."""
    cost_planned: float = 0.0
    """Units of work."""
    cost_served: float = 0.0
    response: Histogram = field(default_factory=Histogram)
    """From the intended start, of the served: what users saw."""
    service: Histogram = field(default_factory=Histogram)
    """From the write to the socket, of the served."""
    first_byte: Histogram = field(default_factory=Histogram)
    """From the intended start, of the served."""
    refusal: Histogram = field(default_factory=Histogram)
    """From the intended start, of the refused."""
    promised: Histogram = field(default_factory=Histogram)
    """Waits promised by Retry-After, of the refused."""

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
    def answered(self) -> int:
        """Ended in a whole answer, whatever it said."""
        return sum(self.endings[: Ending.CONNECTION])

    @property
    def balanced(self) -> bool:
        """Whether nothing was lost or counted twice."""
        return self.sent == sum(self.endings)

    def add(self, other: Row) -> None:
        """Add another row to this one."""
        self.planned += other.planned
        self.unsent += other.unsent
        self.endings = [mine + theirs for mine, theirs in zip(self.endings, other.endings, strict=True)]
        self.statuses.update(other.statuses)
        self.reasons.update(other.reasons)
        self.timely += other.timely
        self.answers.update(other.answers)
        self.timely_answers.update(other.timely_answers)
        self.cost_planned += other.cost_planned
        self.cost_served += other.cost_served
        self.response.merge(other.response)
        self.service.merge(other.service)
        self.first_byte.merge(other.first_byte)
        self.refusal.merge(other.refusal)
        self.promised.merge(other.promised)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Row:
        """The sum of several rows."""
        whole = cls()
        for row in rows:
            whole.add(row)
        return whole


class Kind(NamedTuple):
    """What the books need to know of a kind of request."""

    group: int = 0
    """Rows are kept apart by it."""
    cost: float = 1.0
    """Units of work."""


class Key(NamedTuple):
    """Which requests a row is about."""

    segment: int
    priority: int
    group: int


def rows(
    plan: Plan, sheet: Sheet, kinds: Sequence[Kind], limits_s: Mapping[Priority, float], step_s: float = 1.0
) -> dict[Key, Row]:
    """The sums of a sheet, in two passes over its columns; keys without a request are left out.

    A request that is still open is counted as planned alone.

    Args:
        plan: what was to be sent.
        sheet: what became of it.
        kinds: by ``Plan.kinds``.
        limits_s: by priority, how late an answer may come to be timely.
        step_s: how finely it is kept when answers came.
    """
    found: defaultdict[Key, Row] = defaultdict(Row)
    _count(found, plan, sheet, kinds)
    groups = [kind.group for kind in kinds]
    for start in range(0, len(plan), BLOCK):
        columns = _gather(plan, sheet, groups, slice(start, start + BLOCK), 1.0 / step_s)
        for place, lists in columns.items():
            _record(found[Key(*place)], lists, limits_s.get(Priority(place[1])))
    return dict(found)


class Books:
    """One row per segment and priority of a plan.

    Args:
        plan: what was to be sent.
        sheet: what became of it.
    """

    def __init__(self, plan: Plan, sheet: Sheet) -> None:
        self.segments: tuple[str, ...] = plan.names
        entered = rows(plan, sheet, [Kind()] * (max(plan.kinds, default=0) + 1), {})
        self.rows: dict[tuple[int, Priority], Row] = {
            (segment, priority): entered.get(Key(segment, priority, 0), Row())
            for segment in range(len(plan.names))
            for priority in Priority
        }

    def total(self) -> Row:
        """The sum of all rows."""
        return Row.of(self.rows.values())


def _count(found: dict[Key, Row], plan: Plan, sheet: Sheet, kinds: Sequence[Kind]) -> None:
    counts = Counter(
        zip(
            plan.segments,
            plan.priorities,
            plan.kinds,
            sheet.endings,
            sheet.statuses,
            sheet.reasons,
            strict=True,
        )
    )
    for (segment, priority, kind, number, status, reason), count in counts.items():
        row = found[Key(segment, priority, kinds[kind].group)]
        cost = kinds[kind].cost * count
        row.planned += count
        row.cost_planned += cost
        if number >= UNSENT:
            row.unsent += count * (number == UNSENT)
            continue
        ending = Ending(number)
        row.endings[ending] += count
        if ending.served:
            row.cost_served += cost
        if ending.refused:
            row.reasons[sheet.stated[reason]] += count
        if status:
            row.statuses[status] += count


BLOCK = 16_384
"""Requests whose durations are gathered at a time, so that a long run needs little memory."""

_Columns = tuple[list[float], list[float], list[float], list[float], list[float], list[int], list[int]]
"""Response, service and first byte of the served, response and promise of the refused; the steps in which
the served and all others were answered."""


def _gather(
    plan: Plan, sheet: Sheet, groups: Sequence[int], block: slice, steps_hz: float
) -> dict[tuple[int, int, int], _Columns]:
    """The durations of a block; a loop over its requests, so what it does for each is little."""
    columns: defaultdict[tuple[int, int, int], _Columns] = defaultdict(lambda: ([], [], [], [], [], [], []))
    keys = zip(
        plan.segments[block], plan.priorities[block], map(groups.__getitem__, plan.kinds[block]), strict=True
    )
    four = (sheet.response_s, sheet.service_s, sheet.first_byte_s, sheet.promised_s)
    last_served, last_refused = Ending.DEGRADED.value, Ending.REJECTED.value
    last_answered = Ending.SERVER_ERROR.value
    for ending, key, offset_s, response_s, service_s, first_byte_s, promised_s in zip(
        sheet.endings[block], keys, plan.offsets[block], *(column[block] for column in four), strict=True
    ):
        if ending > last_answered:
            continue
        lists = columns[key]
        step = int((offset_s + response_s) * steps_hz)
        if ending <= last_served:
            lists[0].append(response_s)
            lists[1].append(service_s)
            lists[2].append(first_byte_s)
            lists[5].append(step)
            continue
        lists[6].append(step)
        if ending <= last_refused:
            lists[3].append(response_s)
            lists[4].append(promised_s)
    return columns


def _record(row: Row, lists: _Columns, limit_s: float | None) -> None:
    histograms = (row.response, row.service, row.first_byte, row.refusal, row.promised)
    for histogram, durations in zip(histograms, lists[:5], strict=True):
        histogram.record_all(durations)
    served, others = lists[5:]
    timely = served if limit_s is None else list(compress(served, map(limit_s.__ge__, lists[0])))
    row.timely += len(timely)
    row.answers.update(served)
    row.answers.update(others)
    row.timely_answers.update(timely)
