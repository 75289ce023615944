"""Sample runs: request logs filled in by hand or by hypothesis."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

from hypothesis import strategies as st

from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.report import RunInfo
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.traffic.results import Result, RunCost
from autoglm_throttle.types import Priority

STATUS = {
    RequestResult.OK: 200,
    RequestResult.DEGRADED: 200,
    RequestResult.LIMITED: 429,
    RequestResult.SHED: 503,
    RequestResult.CLIENT_ERROR: 404,
    RequestResult.SERVER_ERROR: 500,
}

RUN_INFO = RunInfo(title="a run", shape="by hand")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request and its ending; None: left out."""

    at_s: float = 0.0
    ending: RequestResult | None = RequestResult.OK
    response_s: float = 0.01
    service_s: float = 0.005
    first_byte_s: float = nan
    lag_s: float = 0.0
    priority: Priority = Priority.MID
    segment: int = 0
    client: int = 0
    kind: int = 0
    reason: str = ""
    promised_s: float | None = None


def made(
    sent: Sequence[Sent],
    *,
    ends_s: Sequence[float] = (10.0,),
    names: Sequence[str] | None = None,
    requests: Sequence[PlannedRequest] = (PlannedRequest(),),
    effort: Mapping[str, float] | None = None,
    aborted: bool = False,
) -> Result:
    """A finished run."""
    plan = LoadPlan(
        offsets=array("d", [one.at_s for one in sent]),
        priorities=bytes(one.priority for one in sent),
        segments=array("H", [one.segment for one in sent]),
        clients=array("I", [one.client for one in sent]),
        kinds=array("I", [one.kind for one in sent]),
        names=tuple(names or (f"part {number}" for number in range(len(ends_s)))),
        ends_s=tuple(ends_s),
    )
    sheet = RequestLog(len(sent))
    for index, one in enumerate(sent):
        _enter(sheet, index, one)
    more: dict[str, float] = {"elapsed_s": ends_s[-1], **(effort or {})}
    return Result(RequestSource(plan, requests), sheet, RunCost(**more), aborted=aborted)  # type: ignore[arg-type]


def _enter(sheet: RequestLog, index: int, one: Sent) -> None:
    if one.ending is None:
        sheet.skip(index)
        return
    sheet.lag_s[index] = one.lag_s
    sheet.close(index, one.ending, nan if one.ending is RequestResult.DROPPED else one.response_s)
    sheet.statuses[index] = STATUS.get(one.ending, 0)
    if one.ending in STATUS:
        sheet.service_s[index] = one.service_s
        sheet.first_byte_s[index] = one.first_byte_s
    if one.ending.rejected:
        sheet.record_rejection(index, one.reason, one.promised_s)


ENDS_S = (1.5, 4.0)

durations = st.floats(min_value=0.0, max_value=40.0, width=32)

sents = st.builds(
    Sent,
    at_s=st.floats(min_value=0.0, max_value=ENDS_S[-1]),
    ending=st.sampled_from(
        [*RequestResult, RequestResult.OK, RequestResult.OK, RequestResult.DEGRADED, None]
    ),
    response_s=durations,
    service_s=durations,
    first_byte_s=st.just(nan) | durations,
    lag_s=st.just(nan) | st.floats(min_value=0.0, max_value=0.0625, width=32),
    priority=st.sampled_from(Priority),
    segment=st.sampled_from([0, 1]),
    kind=st.sampled_from([0, 1, 2]),
    reason=st.sampled_from(["", "rate", "gpu"]),
    promised_s=st.none() | durations,
)

REQUESTS = (PlannedRequest(cost=1.5), PlannedRequest(target="/v1/other"), PlannedRequest(cost=0.25))
"""Of kinds 0..2; the first and the last have one label."""

runs = st.lists(sents, max_size=40).map(
    lambda sent: made(sorted(sent, key=lambda one: one.at_s), ends_s=ENDS_S, requests=REQUESTS)
)
