"""Runs that nobody ran: sheets filled in by hand, or by hypothesis."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

from hypothesis import strategies as st

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.arrivals import Plan
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.load import Load, Request
from autoglm_throttle.traffic.report import RunInfo
from autoglm_throttle.traffic.result import Effort, Result
from autoglm_throttle.traffic.sheet import Sheet

STATUS = {
    Ending.OK: 200,
    Ending.DEGRADED: 200,
    Ending.LIMITED: 429,
    Ending.REJECTED: 503,
    Ending.CLIENT_ERROR: 404,
    Ending.SERVER_ERROR: 500,
}

FACTS = RunInfo(title="a run", shape="by hand")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request and its ending; None: left out."""

    at_s: float = 0.0
    ending: Ending | None = Ending.OK
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
    requests: Sequence[Request] = (Request(),),
    effort: Mapping[str, float] | None = None,
    aborted: bool = False,
) -> Result:
    """A finished run."""
    plan = Plan(
        offsets=array("d", [one.at_s for one in sent]),
        priorities=bytes(one.priority for one in sent),
        segments=array("H", [one.segment for one in sent]),
        clients=array("I", [one.client for one in sent]),
        kinds=array("I", [one.kind for one in sent]),
        names=tuple(names or (f"part {number}" for number in range(len(ends_s)))),
        ends_s=tuple(ends_s),
    )
    sheet = Sheet(len(sent))
    for index, one in enumerate(sent):
        _enter(sheet, index, one)
    more: dict[str, float] = {"elapsed_s": ends_s[-1], **(effort or {})}
    return Result(Load(plan, requests), sheet, Effort(**more), aborted=aborted)  # type: ignore[arg-type]


def _enter(sheet: Sheet, index: int, one: Sent) -> None:
    if one.ending is None:
        sheet.leave_out(index)
        return
    sheet.lag_s[index] = one.lag_s
    sheet.close(index, one.ending, nan if one.ending is Ending.DROPPED else one.response_s)
    sheet.statuses[index] = STATUS.get(one.ending, 0)
    if one.ending in STATUS:
        sheet.service_s[index] = one.service_s
        sheet.first_byte_s[index] = one.first_byte_s
    if one.ending.refused:
        sheet.refused(index, one.reason, one.promised_s)


ENDS_S = (1.5, 4.0)

durations = st.floats(min_value=0.0, max_value=40.0, width=32)

sents = st.builds(
    Sent,
    at_s=st.floats(min_value=0.0, max_value=ENDS_S[-1]),
    ending=st.sampled_from([*Ending, Ending.OK, Ending.OK, Ending.DEGRADED, None]),
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

REQUESTS = (Request(cost=1.5), Request(target="/v1/other"), Request(cost=0.25))
"""Of kinds 0..2; the first and the last have one label."""

runs = st.lists(sents, max_size=40).map(
    lambda sent: made(sorted(sent, key=lambda one: one.at_s), ends_s=ENDS_S, requests=REQUESTS)
)
