"""Builds the report document of a run from its plan and its request log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.report.objectives import Objectives
from autoglm_throttle.traffic.report.schema import KIND, SCHEMA, Document, Part
from autoglm_throttle.traffic.report.tally import seconds, tally, times
from autoglm_throttle.traffic.report.verdict import (
    caveats,
    describe_total_failure,
    rejects_nearly_all,
    verdict,
)
from autoglm_throttle.traffic.results import Result, Tally, tallies
from autoglm_throttle.types import Priority

# Latency limits for goodput, seconds by priority. 500 ms is the bound of the headline experiment; 2 s is the
# bound of the simulated service, at which a person begins to wait; the middle lies between. Decisions of this
# project: state your own.
LIMITS_S: Mapping[Priority, float] = {Priority.HIGH: 0.5, Priority.MID: 1.0, Priority.LOW: 2.0}

# Most request labels listed separately, by frequency, and the label of all others.
MAX_LABELS, OTHER_LABEL = 50, "others"

TIME_RESOLUTION_S = 1e-6  # Resolution of all recorded times, seconds
RATE_STEPS = 200  # Time steps per shortest segment: the rate of a slow service is at most 1/200 too high


@dataclass(frozen=True, slots=True)
class ReplayInfo:
    """Results that only a replay has."""

    comparison: dict[str, object] | None = None  # Of the recording with its replay
    # Results of further objectives, such as the similarity to the recording.
    objectives: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Title, load parameters and objectives of a run."""

    title: str
    shape: str  # As the user wrote it
    arrivals: str = "uniform"
    seed: int = 0
    mix: Mapping[Priority, float] = field(default_factory=dict)  # Percent; a missing priority has none
    # Latency limits for goodput; without a limit all served requests of a priority are goodput.
    limits_s: Mapping[Priority, float] = field(default_factory=lambda: LIMITS_S)
    objectives: Objectives = field(default_factory=Objectives)
    about: Part = field(default_factory=Part)
    caveats: tuple[str, ...] = ()  # Further reasons why the run is not valid; one sentence each
    replay: ReplayInfo = field(default_factory=ReplayInfo)


def make(result: Result, run_info: RunInfo) -> Document:
    """Build the report of a finished run. Equal inputs give equal reports; only ``about`` names the machine.

    A request that has neither ended nor been skipped is a bug of the generator, and raises RuntimeError.
    """
    plan, log = result.load.plan, result.request_log
    if not log.balanced:
        raise RuntimeError("the request log has open requests: the run is not over")
    sent_s, stopped_s = plan.duration_s, result.run_cost.stopped_s
    if stopped_s is not None:
        sent_s = min(sent_s, max(0.0, stopped_s))
    sums = _sums(result, run_info.limits_s, sent_s)
    generator = _generator(result)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "title": run_info.title,
        "about": run_info.about,
        "load": _load(result, run_info, [part["label"] for part in sums["requests"]], sent_s),
        "verdict": verdict(
            [*run_info.objectives.evaluate(sums), *run_info.replay.objectives],
            [*run_info.caveats, *caveats(generator, plan.duration_s)],
            aborted=result.aborted,
            failure=describe_total_failure(sums["totals"], log.results),
            rejected=rejects_nearly_all(sums["totals"]),
        ),
        **sums,
        "seconds": seconds(plan, log),
        # Without values that JSON cannot represent.
        "watched": [
            {name: value for name, value in sample.items() if math.isfinite(value)}
            for sample in result.watched
        ],
        "generator": generator,
        "replay": run_info.replay.comparison,
    }


def _sums(result: Result, limits_s: Mapping[Priority, float], sent_s: float) -> Part:
    """Sum the results in total, by priority, by segment and by label of the requests."""
    plan = result.load.plan
    spans = [(start_s, min(end_s, sent_s) - start_s) for start_s, end_s in pairwise((0.0, *plan.ends_s))]
    # Time step for answer rates: a part of the shortest segment in which requests were sent.
    lengths_s = [length_s for _, length_s in spans if length_s > TIME_RESOLUTION_S]
    step_s = min(lengths_s, default=1.0) / RATE_STEPS
    labels, groups = _labels(result)
    rows = tallies(result.load, result.request_log, groups, limits_s, step_s)

    def cell(length_s: float, *wanted: int | None) -> Part:
        """Sum the rows with the wanted segment, priority and group; None and left out: all."""
        chosen = [
            row
            for key, row in rows.items()
            if all(one in (None, part) for one, part in zip(wanted, key, strict=False))
        ]
        return tally(Tally.of(chosen), length_s, step_s)

    def by_priority(length_s: float, segment: int | None = None) -> Part:
        return {one.label: cell(length_s, segment, one.value) for one in Priority}

    return {
        "totals": cell(sent_s),
        "priorities": by_priority(sent_s),
        "segments": [
            {
                "name": name,
                "start_s": start_s,
                "end_s": end_s,
                "tally": cell(length_s, number),
                "priorities": by_priority(length_s, number),
            }
            for number, (name, end_s, (start_s, length_s)) in enumerate(
                zip(plan.names, plan.ends_s, spans, strict=True)
            )
        ],
        "requests": [
            {"label": label, "tally": cell(sent_s, None, None, group)} for group, label in enumerate(labels)
        ],
    }


def _labels(result: Result) -> tuple[list[str], list[int]]:
    """Return the labels in order of their first kind, and the label of each kind."""
    requests = result.load.requests
    counts: Counter[str] = Counter({request.label: 0 for request in requests})
    for kind, count in Counter(result.load.plan.kinds).items():
        counts[requests[kind].label] += count
    # Any label of a few requests is listed, in use or not.
    shown = {label for label, _ in counts.most_common(MAX_LABELS if len(requests) > MAX_LABELS else None)}
    numbers: dict[str, int] = {}
    labels = (request.label if request.label in shown else OTHER_LABEL for request in requests)
    groups = [numbers.setdefault(label, len(numbers)) for label in labels]
    return list(numbers), groups


def _load(result: Result, run_info: RunInfo, labels: list[str], sent_s: float) -> Part:
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


def _generator(result: Result) -> Part:
    cost, lag = result.run_cost, Histogram()
    lag.record_all(result.request_log.lag_s)
    return {
        "lag": times(lag),
        "cpu_share": cost.cpu_share,
        "overrun_s": cost.overrun_s,
        "resent": cost.resent,
        "connections": cost.connections,
    }
