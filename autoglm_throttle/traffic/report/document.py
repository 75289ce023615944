"""Builds the report document of a run from its plan and its request log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.report.run_info import RunInfo
from autoglm_throttle.traffic.report.schema import (
    KIND,
    SCHEMA,
    Document,
    GeneratorPart,
    LoadPart,
    RequestPart,
    SegmentPart,
)
from autoglm_throttle.traffic.report.seconds import seconds
from autoglm_throttle.traffic.report.tally import tally
from autoglm_throttle.traffic.report.times import times
from autoglm_throttle.traffic.report.verdict import caveats, describe_total_failure, verdict
from autoglm_throttle.traffic.request_log import UNSENT
from autoglm_throttle.traffic.results import RequestKind, Result, Tally, TallyKey, tallies
from autoglm_throttle.types import Priority

MAX_LABELS = 50
"""Most request labels listed separately, by frequency; a replay may have thousands of targets."""

TIME_RESOLUTION_S = 1e-6
"""Resolution of all recorded times, seconds."""

RATE_STEPS = 200
"""Time steps per shortest segment: the rate of a slow service is at most 1/200 too high."""

OTHER_LABEL = "others"
"""Label of all further requests."""


def make(result: Result, run_info: RunInfo) -> Document:
    """Build the report of a finished run, at about 2 us per request.

    Equal inputs give equal documents. Only ``about`` names the machine and the date.

    Raises:
        RuntimeError: a request has neither ended nor been skipped: a bug of the generator.
    """
    plan, log = result.load.plan, result.request_log
    if not log.balanced:
        raise RuntimeError("the request log has open requests: the run is not over")
    labels, kinds = _kinds(result)
    sent_s = _sent_s(result)
    step_s = _step_s(plan, sent_s)
    cells = tallies(plan, log, kinds, run_info.limits_s, step_s)
    segments = [_segment(number, plan, cells, sent_s, step_s) for number in range(len(plan.names))]
    priorities = {
        priority.label: tally(_sum(cells, priority=priority), sent_s, step_s) for priority in Priority
    }
    totals = tally(Tally.of(cells.values()), sent_s, step_s)
    generator = _generator(result)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "title": run_info.title,
        "about": run_info.about,
        "load": _load(result, run_info, labels, sent_s),
        "verdict": verdict(
            [*run_info.objectives.evaluate(totals, priorities, segments), *run_info.replay.objectives],
            [*run_info.caveats, *caveats(generator, plan.duration_s)],
            aborted=result.aborted,
            failure=describe_total_failure(totals, log.results),
        ),
        "totals": totals,
        "priorities": priorities,
        "segments": segments,
        "requests": _requests(labels, cells, sent_s, step_s),
        "seconds": seconds(plan, log),
        "watched": [_finite(sample) for sample in result.watched],
        "generator": generator,
        "replay": run_info.replay.comparison,
    }


def _kinds(result: Result) -> tuple[list[str], list[RequestKind]]:
    """Return the labels in order of their first kind, and each kind's label index and cost."""
    requests = result.load.requests
    if len(requests) > MAX_LABELS:
        counts: Counter[str] = Counter()
        for kind, count in Counter(result.load.plan.kinds).items():
            counts[requests[kind].label] += count
        shown = {label for label, _ in counts.most_common(MAX_LABELS)}
    else:
        shown = {request.label for request in requests}
    numbers: dict[str, int] = {}
    kinds = []
    for request in requests:
        label = request.label if request.label in shown else OTHER_LABEL
        kinds.append(RequestKind(numbers.setdefault(label, len(numbers)), request.cost))
    return list(numbers), kinds


def _sent_s(result: Result) -> float:
    """Seconds of the plan that were sent: its length, or until the run was stopped."""
    plan, stopped_s = result.load.plan, result.run_cost.stopped_s
    if stopped_s is not None:
        return min(plan.duration_s, max(0.0, stopped_s))
    # Without a stop time, the first skipped request shows where the sending ended.
    first = result.request_log.results.find(UNSENT)
    whole = first < 0 or not result.aborted
    return plan.duration_s if whole else min(plan.duration_s, plan.offsets[first])


def _step_s(plan: LoadPlan, sent_s: float) -> float:
    """Time step for answer rates: a part of the shortest segment in which requests were sent."""
    lengths_s = (min(end_s, sent_s) - start_s for start_s, end_s in pairwise((0.0, *plan.ends_s)))
    return min((length_s for length_s in lengths_s if length_s > TIME_RESOLUTION_S), default=1.0) / RATE_STEPS


def _sum(cells: Mapping[TallyKey, Tally], *, priority: int | None = None, group: int | None = None) -> Tally:
    return Tally.of(
        row for key, row in cells.items() if priority in {None, key.priority} and group in {None, key.group}
    )


def _segment(
    number: int, plan: LoadPlan, cells: Mapping[TallyKey, Tally], sent_s: float, step_s: float
) -> SegmentPart:
    start_s = plan.ends_s[number - 1] if number else 0.0
    end_s = plan.ends_s[number]
    length_s = min(end_s, sent_s) - start_s
    mine = {key: row for key, row in cells.items() if key.segment == number}
    return {
        "name": plan.names[number],
        "start_s": start_s,
        "end_s": end_s,
        "tally": tally(Tally.of(mine.values()), length_s, step_s),
        "priorities": {
            priority.label: tally(_sum(mine, priority=priority), length_s, step_s) for priority in Priority
        },
    }


def _requests(
    labels: Sequence[str], cells: Mapping[TallyKey, Tally], sent_s: float, step_s: float
) -> list[RequestPart]:
    return [
        {"label": label, "tally": tally(_sum(cells, group=group), sent_s, step_s)}
        for group, label in enumerate(labels)
    ]


def _load(result: Result, run_info: RunInfo, labels: list[str], sent_s: float) -> LoadPart:
    plan = result.load.plan
    return {
        "shape": run_info.shape,
        "arrivals": run_info.arrivals,
        "seed": run_info.seed,
        "mix": {priority.label: run_info.mix.get(priority, 0.0) for priority in Priority},
        "clients": len(set(plan.clients)),
        "requests": labels,
        "loop": "closed" if result.closed_loop else "open",
        "planned": len(plan),
        "duration_s": plan.duration_s,
        "sent_s": sent_s,
        "limits_s": {priority.label: limit_s for priority, limit_s in sorted(run_info.limits_s.items())},
    }


def _generator(result: Result) -> GeneratorPart:
    effort = result.run_cost
    lag = Histogram()
    lag.record_all(result.request_log.lag_s)
    return {
        "lag": times(lag),
        "cpu_share": effort.cpu_share,
        "overrun_s": effort.overrun_s,
        "resent": effort.resent,
        "connections": effort.connections,
    }


def _finite(sample: Mapping[str, float]) -> dict[str, float]:
    """Drop values that JSON cannot represent."""
    return {name: value for name, value in sample.items() if math.isfinite(value)}
