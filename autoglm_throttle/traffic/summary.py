"""Summary of a run: sums over its request log, by segment and priority."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.request_log import UNSENT, RequestLog
from autoglm_throttle.traffic.request_result import RequestResult
from autoglm_throttle.types import Priority


@dataclass(slots=True)
class Latencies:
    """Latency histograms for a set of requests."""

    response: Histogram = field(default_factory=Histogram)
    """From the intended start, of served requests: the latency seen by users."""
    service: Histogram = field(default_factory=Histogram)
    """From the write to the socket, of served requests."""
    first_byte: Histogram = field(default_factory=Histogram)
    """From the intended start, of served requests."""
    rejection: Histogram = field(default_factory=Histogram)
    """From the intended start, of rejected requests."""
    promised: Histogram = field(default_factory=Histogram)
    """Waits given by Retry-After, of rejected requests."""

    def merge(self, other: Latencies) -> None:
        """Add other histograms to these."""
        self.response.merge(other.response)
        self.service.merge(other.service)
        self.first_byte.merge(other.first_byte)
        self.rejection.merge(other.rejection)
        self.promised.merge(other.promised)


@dataclass(slots=True)
class Tally:
    """Counts and latency histograms for a set of planned requests."""

    planned: int = 0
    unsent: int = 0
    """Left out because the run was stopped."""
    results: list[int] = field(default_factory=lambda: [0] * len(RequestResult))
    """Indexed by `RequestResult`."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Complete responses by HTTP status."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Rejected requests by the reason in their body."""
    answers: Counter[int] = field(default_factory=Counter)
    """Complete responses by time of completion, in steps from the start of the run."""
    timely_answers: Counter[int] = field(default_factory=Counter)
    """The timely part of ``answers``: served within the limit of their priority, or without a limit."""
    cost_planned: float = 0.0
    """Units of work."""
    cost_served: float = 0.0
    latency: Latencies = field(default_factory=Latencies)

    @property
    def timely(self) -> int:
        """Served within the limit of their priority; every served request where there is no limit."""
        return self.timely_answers.total()

    @property
    def sent(self) -> int:
        """Planned and not skipped."""
        return self.planned - self.unsent

    @property
    def admitted(self) -> int:
        """Served, in full or by a fallback."""
        return sum(self.results[result] for result in RequestResult if result.served)

    @property
    def limited(self) -> int:
        """Rejected with 429."""
        return self.results[RequestResult.LIMITED]

    @property
    def shed(self) -> int:
        """Shed: rejected with 503 and a Retry-After."""
        return self.results[RequestResult.SHED]

    @property
    def failed(self) -> int:
        """Ended in an error."""
        return sum(self.results[result] for result in RequestResult if result.failed)

    @property
    def answered(self) -> int:
        """Ended in a complete response, of any status."""
        return sum(self.results[: RequestResult.CONNECTION])

    @property
    def balanced(self) -> bool:
        """Whether each sent request has exactly one result."""
        return self.sent == sum(self.results)

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.planned += other.planned
        self.unsent += other.unsent
        self.results = [mine + theirs for mine, theirs in zip(self.results, other.results, strict=True)]
        self.statuses.update(other.statuses)
        self.reasons.update(other.reasons)
        self.answers.update(other.answers)
        self.timely_answers.update(other.timely_answers)
        self.cost_planned += other.cost_planned
        self.cost_served += other.cost_served
        self.latency.merge(other.latency)

    @classmethod
    def of(cls, rows: Iterable[Tally]) -> Tally:
        """Return the sum of several tallies."""
        whole = cls()
        for row in rows:
            whole.add(row)
        return whole


class RequestKind(NamedTuple):
    """Properties of a kind of request that the summary needs."""

    group: int = 0
    """Requests of different groups get separate tallies."""
    cost: float = 1.0
    """Units of work."""


class TallyKey(NamedTuple):
    """Identifies the requests of a tally."""

    segment: int
    priority: int
    group: int


def tallies(
    plan: LoadPlan,
    request_log: RequestLog,
    kinds: Sequence[RequestKind],
    limits_s: Mapping[Priority, float],
    step_s: float = 1.0,
) -> dict[TallyKey, Tally]:
    """Sum a request log in two passes over its columns; keys without a request are left out.

    A request that is still open is counted as planned only.

    Args:
        plan: the planned requests.
        request_log: their results.
        kinds: by ``LoadPlan.kinds``.
        limits_s: by priority, the longest response time that counts as timely.
        step_s: resolution of the completion times, in seconds.
    """
    sums: defaultdict[TallyKey, Tally] = defaultdict(Tally)
    _count(sums, plan, request_log, kinds)
    groups = [kind.group for kind in kinds]
    for start in range(0, len(plan), BLOCK):
        columns = _collect(plan, request_log, groups, slice(start, start + BLOCK), 1.0 / step_s)
        for key, lists in columns.items():
            _record(sums[TallyKey(*key)], lists, limits_s.get(Priority(key[1])))
    return dict(sums)


class Summary:
    """One tally per segment and priority of a plan.

    Args:
        plan: the planned requests.
        request_log: their results.
    """

    def __init__(self, plan: LoadPlan, request_log: RequestLog) -> None:
        self.segments: tuple[str, ...] = plan.names
        entered = tallies(plan, request_log, [RequestKind()] * (max(plan.kinds, default=0) + 1), {})
        self.tallies: dict[tuple[int, Priority], Tally] = {
            (segment, priority): entered.get(TallyKey(segment, priority, 0), Tally())
            for segment in range(len(plan.names))
            for priority in Priority
        }

    def total(self) -> Tally:
        """Return the sum of all tallies."""
        return Tally.of(self.tallies.values())


def _count(
    sums: dict[TallyKey, Tally], plan: LoadPlan, request_log: RequestLog, kinds: Sequence[RequestKind]
) -> None:
    counts = Counter(
        zip(
            plan.segments,
            plan.priorities,
            plan.kinds,
            request_log.results,
            request_log.statuses,
            request_log.reasons,
            strict=True,
        )
    )
    # Equal combinations are counted in C first: there are far fewer of them than requests.
    for (segment, priority, kind, number, status, reason), count in counts.items():
        row = sums[TallyKey(segment, priority, kinds[kind].group)]
        cost = kinds[kind].cost * count
        row.planned += count
        row.cost_planned += cost
        if number >= UNSENT:
            row.unsent += count * (number == UNSENT)
            continue
        result = RequestResult(number)
        row.results[result] += count
        if result.served:
            row.cost_served += cost
        if result.rejected:
            row.reasons[request_log.reason_texts[reason]] += count
        if status:
            row.statuses[status] += count


BLOCK = 16_384
"""Requests per block while durations are collected; it bounds the memory of a long run."""

_Columns = tuple[list[float], list[float], list[float], list[float], list[float], list[int], list[int]]
"""Durations and completion steps of a block, as seven lists.

Response, service and first byte of served requests; response and Retry-After of rejected ones; steps of
served requests; steps of all others.
"""


def _collect(
    plan: LoadPlan, request_log: RequestLog, groups: Sequence[int], block: slice, steps_hz: float
) -> dict[tuple[int, int, int], _Columns]:
    """Collect the durations of a block by segment, priority and group."""
    columns: defaultdict[tuple[int, int, int], _Columns] = defaultdict(lambda: ([], [], [], [], [], [], []))
    keys = zip(
        plan.segments[block], plan.priorities[block], map(groups.__getitem__, plan.kinds[block]), strict=True
    )
    four = (request_log.response_s, request_log.service_s, request_log.first_byte_s, request_log.promised_s)
    last_served, last_rejected = RequestResult.DEGRADED.value, RequestResult.SHED.value
    last_answered = RequestResult.SERVER_ERROR.value
    for result, key, offset_s, response_s, service_s, first_byte_s, promised_s in zip(
        request_log.results[block],
        keys,
        plan.offsets[block],
        *(column[block] for column in four),
        strict=True,
    ):
        # This loop runs once per request of a run, so it does as little as possible.
        if result > last_answered:
            continue
        lists = columns[key]
        step = int((offset_s + response_s) * steps_hz)
        if result <= last_served:
            lists[0].append(response_s)
            lists[1].append(service_s)
            lists[2].append(first_byte_s)
            lists[5].append(step)
            continue
        lists[6].append(step)
        if result <= last_rejected:
            lists[3].append(response_s)
            lists[4].append(promised_s)
    return columns


def _record(row: Tally, lists: _Columns, limit_s: float | None) -> None:
    latency = row.latency
    histograms = (
        latency.response,
        latency.service,
        latency.first_byte,
        latency.rejection,
        latency.promised,
    )
    for histogram, durations in zip(histograms, lists[:5], strict=True):
        histogram.record_all(durations)
    served, others = lists[5:]
    timely = served if limit_s is None else list(compress(served, map(limit_s.__ge__, lists[0])))
    row.answers.update(served)
    row.answers.update(others)
    row.timely_answers.update(timely)
