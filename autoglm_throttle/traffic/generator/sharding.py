"""Divides a load among several processes, and merges their results. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.options import ClientOptions
from autoglm_throttle.traffic.generator.user_schedule import UserSchedule
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.request_log import RequestLog
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.result import Result, RunCost

COLUMNS = ("results", "statuses", "lag_s", "response_s", "service_s", "first_byte_s", "promised_s")


def split(load: RequestSource | UserSchedule, count: int) -> Sequence[RequestSource | UserSchedule]:
    """Divide a load into ``count`` shares: every ``count``-th request, or user.

    Raises:
        TrafficError: fewer requests or users than processes.
    """
    if isinstance(load, UserSchedule):
        return [replace(load, share=share, shares=count) for share in range(count)]
    if len(load.plan) < count:
        raise TrafficError(f"{len(load.plan)} requests cannot be shared by {count} processes")
    return [replace(load, plan=_every_nth(load.plan, share, count)) for share in range(count)]


def split_options(options: ClientOptions, count: int) -> list[ClientOptions]:
    """Divide the options among processes, so that their sum keeps the given limits."""
    return [
        replace(
            options,
            # At least one each, also if there are more processes than connections.
            connections=max(1, _part(options.connections, share, count)),
            more_connections=_part(options.more_connections, share, count),
            max_inflight=max(1, _part(options.max_inflight, share, count)),
        )
        for share in range(count)
    ]


def merge(load: RequestSource | UserSchedule, results: Sequence[Result]) -> Result:
    """Merge the results of all shares, in order of the intended starts."""
    if isinstance(load, UserSchedule):
        return _merge_users(load, results)
    request_log = RequestLog(len(load.plan))
    for share, result in enumerate(results):
        indexes = range(share, len(load.plan), len(results))
        for name in COLUMNS:
            getattr(request_log, name)[share :: len(results)] = getattr(result.request_log, name)
        _copy_reasons(request_log, indexes, result.request_log)
    return Result(
        load, request_log, _merge_run_costs(results), aborted=any(result.aborted for result in results)
    )


def lost_result(share: RequestSource | UserSchedule, elapsed_s: float) -> Result:
    """Build the result of a process that ended early: its whole share counts as skipped."""
    run_cost = RunCost(elapsed_s=elapsed_s, lost=1)
    if isinstance(share, UserSchedule):
        empty_plan = LoadPlan(
            offsets=array("d"),
            priorities=b"",
            segments=array("H"),
            clients=array("I"),
            kinds=array("I"),
            names=share.names,
            ends_s=share.ends_s,
        )
        return Result(RequestSource(empty_plan, share.requests), RequestLog(), run_cost, closed_loop=True)
    request_log = RequestLog(len(share.plan))
    for index in range(len(request_log)):
        request_log.skip(index)
    return Result(share, request_log, run_cost)


def _part(whole: int, share: int, count: int) -> int:
    return whole // count + (share < whole % count)


def _every_nth(plan: LoadPlan, share: int, count: int) -> LoadPlan:
    return replace(
        plan,
        offsets=plan.offsets[share::count],
        priorities=plan.priorities[share::count],
        segments=plan.segments[share::count],
        clients=plan.clients[share::count],
        kinds=plan.kinds[share::count],
    )


def _copy_reasons(request_log: RequestLog, indexes: Sequence[int], other: RequestLog) -> None:
    """Copy the reasons, because each log numbers them separately."""
    for index, number in zip(indexes, other.reasons, strict=True):
        if number:
            request_log.record_rejection(index, other.reason_texts[number], None)


def _merge_users(schedule: UserSchedule, results: Sequence[Result]) -> Result:
    order = sorted(
        (offset, share, index)
        for share, result in enumerate(results)
        for index, offset in enumerate(result.load.plan.offsets)
    )
    plans, request_log = [result.load.plan for result in results], RequestLog(len(order))
    for position, (_, share, index) in enumerate(order):
        _copy(request_log, position, results[share].request_log, index)
    plan = LoadPlan(
        offsets=array("d", (offset for offset, _, _ in order)),
        priorities=bytes(plans[share].priorities[index] for _, share, index in order),
        segments=array("H", (plans[share].segments[index] for _, share, index in order)),
        clients=array("I", (plans[share].clients[index] for _, share, index in order)),
        kinds=array("I", (plans[share].kinds[index] for _, share, index in order)),
        names=schedule.names,
        ends_s=schedule.ends_s,
    )
    aborted = any(result.aborted for result in results)
    return Result(
        RequestSource(plan, schedule.requests),
        request_log,
        _merge_run_costs(results),
        aborted=aborted,
        closed_loop=True,
    )


def _copy(request_log: RequestLog, position: int, other: RequestLog, index: int) -> None:
    for name in COLUMNS:
        getattr(request_log, name)[position] = getattr(other, name)[index]
    if other.reasons[index]:
        request_log.record_rejection(position, other.reason_texts[other.reasons[index]], None)


def _merge_run_costs(results: Sequence[Result]) -> RunCost:
    run_costs = [result.run_cost for result in results]
    shares = [run_cost.cpu_share for run_cost in run_costs if run_cost.cpu_share is not None]
    stops = [run_cost.stopped_s for run_cost in run_costs if run_cost.stopped_s is not None]
    return RunCost(
        elapsed_s=max(run_cost.elapsed_s for run_cost in run_costs),
        stopped_s=max(stops, default=None),
        overrun_s=max(run_cost.overrun_s for run_cost in run_costs),
        cpu_share=max(shares, default=None),
        resent=sum(run_cost.resent for run_cost in run_costs),
        connections=sum(run_cost.connections for run_cost in run_costs),
        processes=len(run_costs),
        lost=sum(run_cost.lost for run_cost in run_costs),
        loop=next((run_cost.loop for run_cost in run_costs if not run_cost.lost), run_costs[0].loop),
    )
