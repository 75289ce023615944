"""A finished run: its plan, the results of its requests, their sums, and the cost of generating them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import NamedTuple

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.request_log import UNSENT, RequestLog, RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.types import Priority

BLOCK = 16_384  # Requests per block while durations are collected; it bounds the memory of a long run


@dataclass(slots=True)
class Tally:
    """Counts and latency histograms for a set of planned requests."""

    planned: int = 0
    unsent: int = 0  # left out because the run was stopped
    results: list[int] = field(default_factory=lambda: [0] * len(RequestResult))  # indexed by `RequestResult`
    statuses: Counter[int] = field(default_factory=Counter)  # complete responses by HTTP status
    reasons: Counter[str] = field(default_factory=Counter)  # rejected requests by the reason in their body
    # Complete responses by time of completion, in steps from the start of the run.
    answers: Counter[int] = field(default_factory=Counter)
    # The timely part of ``answers``: served within the limit of their priority, or without a limit.
    timely_answers: Counter[int] = field(default_factory=Counter)
    cost_planned: float = 0.0  # units of work
    cost_served: float = 0.0
    # From the intended start, of served requests: the latency seen by users.
    response: Histogram = field(default_factory=Histogram)
    service: Histogram = field(default_factory=Histogram)  # from the write to the socket, of served requests
    first_byte: Histogram = field(default_factory=Histogram)  # from the intended start, of served requests
    rejection: Histogram = field(default_factory=Histogram)  # from the intended start, of rejected requests
    promised: Histogram = field(default_factory=Histogram)  # waits given by Retry-After, of rejected requests

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
        return sum(self.results[: RequestResult.LIMITED])

    @property
    def limited(self) -> int:
        """Rejected with 429."""
        return self.results[RequestResult.LIMITED]

    @property
    def shed(self) -> int:
        """Rejected with 503 and a Retry-After."""
        return self.results[RequestResult.SHED]

    @property
    def failed(self) -> int:
        """Ended in an error."""
        return sum(self.results[RequestResult.CLIENT_ERROR :])

    @property
    def answered(self) -> int:
        """Ended in a complete response, of any status."""
        return sum(self.results[: RequestResult.CONNECTION])

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.results = [mine + theirs for mine, theirs in zip(self.results, other.results, strict=True)]
        for name in ("planned", "unsent", "cost_planned", "cost_served"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("statuses", "reasons", "answers", "timely_answers", *HISTOGRAMS):
            getattr(self, name).update(getattr(other, name))

    @classmethod
    def of(cls, rows: Iterable[Tally]) -> Tally:
        """Return the sum of several tallies."""
        whole = cls()
        for row in rows:
            whole.add(row)
        return whole


HISTOGRAMS = ("response", "service", "first_byte", "rejection", "promised")  # The histograms of a tally


class RequestKind(NamedTuple):
    """Properties of a kind of request that tallies need."""

    group: int = 0  # requests of different groups get separate tallies
    cost: float = 1.0  # units of work


class TallyKey(NamedTuple):
    """Identifies the requests of a tally."""

    segment: int
    priority: int
    group: int


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Cost of a run to the generator; it shows whether the measurements are valid."""

    elapsed_s: float  # from the first intended start to the end of the drain
    # Time of the stop, counted like ``elapsed_s``; None if the run was not stopped.
    stopped_s: float | None = None
    overrun_s: float = 0.0  # delay of the last launch after its intended start
    cpu_share: float | None = None  # share of one core used while requests were due; None for in-process runs
    resent: int = 0  # sent twice because the server had closed the idle connection in between
    connections: int = 0  # opened before the start
    loop: str = "asyncio"  # `asyncio`, `uvloop` or `virtual`


@dataclass(frozen=True)
class Result:
    """A finished run."""

    load: RequestSource  # in a closed loop: the requests that were sent, since they are not known before
    request_log: RequestLog
    run_cost: RunCost
    aborted: bool = False  # stopped before the end of the plan
    # Whether users that wait for their responses sent it: offered load falls when the service slows down.
    closed_loop: bool = False
    # Samples of the service, one per second: ``t_s`` and any of ``cpu_share``, ``rss_bytes``,
    # ``gpu_utilization_ratio``, ``gpu_memory_ratio``, ``gpu_power_w``, ``factor_ratio``, ``inflight``,
    # ``waiting``.
    watched: tuple[dict[str, float], ...] = ()

    @property
    def balanced(self) -> bool:
        """Whether each planned request has exactly one result, or was skipped."""
        return self.request_log.balanced

    @cached_property
    def tallies(self) -> dict[tuple[int, Priority], Tally]:
        """One tally for each segment and priority of the plan."""
        plan = self.load.plan
        found = tallies(plan, self.request_log, [RequestKind()] * (max(plan.kinds, default=0) + 1), {})
        keys = [(segment, priority) for segment in range(len(plan.names)) for priority in Priority]
        return {key: found.get(TallyKey(*key, 0), Tally()) for key in keys}

    def total(self) -> Tally:
        """Return the sum of all tallies."""
        return Tally.of(self.tallies.values())


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


def _count(
    sums: dict[TallyKey, Tally], plan: LoadPlan, log: RequestLog, kinds: Sequence[RequestKind]
) -> None:
    """Count equal combinations in C first: there are far fewer of them than requests."""
    columns = (plan.segments, plan.priorities, plan.kinds, log.results, log.statuses, log.reasons)
    combinations = Counter(zip(*columns, strict=True))
    for (segment, priority, kind, number, status, reason), count in combinations.items():
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
            row.reasons[log.reason_texts[reason]] += count
        if status:
            row.statuses[status] += count


# Durations of a block, by `HISTOGRAMS`, and steps of completion of served requests and of all others.
_Columns = tuple[list[float], list[float], list[float], list[float], list[float], list[int], list[int]]


def _collect(
    plan: LoadPlan, log: RequestLog, groups: Sequence[int], block: slice, steps_hz: float
) -> dict[tuple[int, int, int], _Columns]:
    """Collect the durations of a block by segment, priority and group."""
    found: defaultdict[tuple[int, int, int], _Columns] = defaultdict(lambda: ([], [], [], [], [], [], []))
    in_groups = map(groups.__getitem__, plan.kinds[block])
    keys = zip(plan.segments[block], plan.priorities[block], in_groups, strict=True)
    durations = (log.response_s, log.service_s, log.first_byte_s, log.promised_s)
    columns = (log.results[block], keys, plan.offsets[block], *(column[block] for column in durations))
    last_served, last_rejected = RequestResult.DEGRADED.value, RequestResult.SHED.value
    last_answered = RequestResult.SERVER_ERROR.value
    # This loop runs once per request of a run, so it does as little as possible.
    for result, key, offset_s, response_s, service_s, first_byte_s, promised_s in zip(*columns, strict=True):
        if result > last_answered:
            continue
        lists = found[key]
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
    return found


def _record(row: Tally, lists: _Columns, limit_s: float | None) -> None:
    """Add the durations and steps of a block to a tally."""
    for name, durations in zip(HISTOGRAMS, lists[:5], strict=True):
        getattr(row, name).record_all(durations)
    served, others = lists[5:]
    timely = served if limit_s is None else list(compress(served, map(limit_s.__ge__, lists[0])))
    row.answers.update(served)
    row.answers.update(others)
    row.timely_answers.update(timely)
