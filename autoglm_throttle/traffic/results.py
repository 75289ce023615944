"""A finished run: its plan, the results of its requests, their sums, and the cost of generating them."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from operator import add

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

    @classmethod
    def of(cls, rows: Iterable[Tally]) -> Tally:
        """Return the sum of several tallies."""
        whole = cls()
        for row in rows:
            whole.results = list(map(add, whole.results, row.results))
            for name in ("planned", "unsent", "cost_planned", "cost_served"):
                setattr(whole, name, getattr(whole, name) + getattr(row, name))
            for name in ("statuses", "reasons", "answers", "timely_answers", *HISTOGRAMS):
                getattr(whole, name).update(getattr(row, name))
        return whole


HISTOGRAMS = ("response", "service", "first_byte", "rejection", "promised")  # The histograms of a tally


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
        """Sum a request log by segment, priority and group of kinds; keys without a request are left out.

        The limits are the longest timely response times, the step is the resolution of completion times.
        """
        found = tallies(self.load, self.request_log, [0] * len(self.load.requests), {})
        keys = [(segment, one) for segment in range(len(self.load.plan.names)) for one in Priority]
        return {(segment, one): found.get((segment, one.value, 0), Tally()) for segment, one in keys}

    def total(self) -> Tally:
        """Return the sum of all tallies."""
        return Tally.of(self.tallies.values())


def tallies(
    load: RequestSource,
    request_log: RequestLog,
    groups: Sequence[int],
    limits_s: Mapping[Priority, float],
    step_s: float = 1.0,
) -> dict[tuple[int, int, int], Tally]:
    """Sum a request log by segment, priority and group of kinds; keys without a request are left out.

    A request that is still open is counted as planned only. The limits are the longest response times that
    count as timely, and the step is the resolution of the completion times, in seconds.
    """
    plan, steps_hz = load.plan, 1.0 / step_s
    sums: defaultdict[tuple[int, int, int], Tally] = defaultdict(Tally)
    for start in range(0, len(plan), BLOCK):
        for (segment, priority, group, number), indices in _alike(plan, request_log, groups, start):
            row = sums[segment, priority, group]
            kinds = Counter(map(plan.kinds.__getitem__, indices))
            cost = sum(load.requests[kind].cost * count for kind, count in kinds.items())
            row.planned += len(indices)
            row.cost_planned += cost
            if number >= UNSENT:
                row.unsent += len(indices) * (number == UNSENT)
                continue
            result = RequestResult(number)
            _record(row, request_log, result, indices)
            if result >= RequestResult.CONNECTION:
                continue
            responses_s = [request_log.response_s[index] for index in indices]
            offsets_s = map(plan.offsets.__getitem__, indices)
            steps = [int(end_s * steps_hz) for end_s in map(add, offsets_s, responses_s)]
            row.answers.update(steps)
            if result.served:
                row.cost_served += cost
                limit_s = limits_s.get(Priority(priority), math.inf)
                row.timely_answers.update(compress(steps, map(limit_s.__ge__, responses_s)))
    return dict(sums)


def _alike(
    plan: LoadPlan, log: RequestLog, groups: Sequence[int], start: int
) -> Iterable[tuple[tuple[int, int, int, int], list[int]]]:
    """Collect the requests of a block by segment, priority, group and result."""
    found: defaultdict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    block = slice(start, start + BLOCK)
    in_groups = map(groups.__getitem__, plan.kinds[block])
    keys = zip(plan.segments[block], plan.priorities[block], in_groups, log.results[block], strict=True)
    for index, key in enumerate(keys, start):
        found[key].append(index)
    return found.items()


def _record(row: Tally, log: RequestLog, result: RequestResult, indices: list[int]) -> None:
    """Add requests with one result to a tally."""
    row.results[result] += len(indices)
    row.statuses.update(filter(None, map(log.statuses.__getitem__, indices)))
    columns: tuple[tuple[Histogram, array[float]], ...] = ()
    if result.served:
        columns = (
            (row.response, log.response_s),
            (row.service, log.service_s),
            (row.first_byte, log.first_byte_s),
        )
    elif result.rejected:
        row.reasons.update(log.reason_texts[log.reasons[index]] for index in indices)
        columns = (row.rejection, log.response_s), (row.promised, log.promised_s)
    for histogram, durations_s in columns:
        histogram.record_all([durations_s[index] for index in indices])
