"""Divides a load among several processes, and merges their results. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from autoglm_throttle.traffic.arrivals import Plan
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.options import Options
from autoglm_throttle.traffic.generator.roster import Roster
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.result import Effort, Result
from autoglm_throttle.traffic.sheet import Sheet

COLUMNS = ("endings", "statuses", "lag_s", "response_s", "service_s", "first_byte_s", "promised_s")


def split(what: Load | Roster, count: int) -> Sequence[Load | Roster]:
    """Divide a load into ``count`` shares: every ``count``-th request, or user.

    Raises:
        TrafficError: fewer requests or users than processes.
    """
    if isinstance(what, Roster):
        return [replace(what, share=share, shares=count) for share in range(count)]
    if len(what.plan) < count:
        raise TrafficError(f"{len(what.plan)} requests cannot be shared by {count} processes")
    return [replace(what, plan=_every(what.plan, share, count)) for share in range(count)]


def split_options(options: Options, count: int) -> list[Options]:
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


def merge(what: Load | Roster, results: Sequence[Result]) -> Result:
    """Merge the results of all shares, in order of the intended starts."""
    if isinstance(what, Roster):
        return _merged_users(what, results)
    sheet = Sheet(len(what.plan))
    for share, result in enumerate(results):
        places = range(share, len(what.plan), len(results))
        for name in COLUMNS:
            getattr(sheet, name)[share :: len(results)] = getattr(result.sheet, name)
        _tell(sheet, places, result.sheet)
    return Result(what, sheet, _efforts(results), aborted=any(result.aborted for result in results))


def lost(share: Load | Roster, elapsed_s: float) -> Result:
    """Build the result of a process that ended early: its whole share counts as skipped."""
    effort = Effort(elapsed_s=elapsed_s, lost=1)
    if isinstance(share, Roster):
        nothing = Plan(
            offsets=array("d"),
            priorities=b"",
            segments=array("H"),
            clients=array("I"),
            kinds=array("I"),
            names=share.names,
            ends_s=share.ends_s,
        )
        return Result(Load(nothing, share.requests), Sheet(), effort, closed_loop=True)
    sheet = Sheet(len(share.plan))
    for index in range(len(sheet)):
        sheet.leave_out(index)
    return Result(share, sheet, effort)


def _part(whole: int, share: int, count: int) -> int:
    return whole // count + (share < whole % count)


def _every(plan: Plan, share: int, count: int) -> Plan:
    return replace(
        plan,
        offsets=plan.offsets[share::count],
        priorities=plan.priorities[share::count],
        segments=plan.segments[share::count],
        clients=plan.clients[share::count],
        kinds=plan.kinds[share::count],
    )


def _tell(sheet: Sheet, places: Sequence[int], other: Sheet) -> None:
    """Copy the reasons, because each log numbers them separately."""
    for place, number in zip(places, other.reasons, strict=True):
        if number:
            sheet.refused(place, other.stated[number], None)


def _merged_users(roster: Roster, results: Sequence[Result]) -> Result:
    order = sorted(
        (offset, share, index)
        for share, result in enumerate(results)
        for index, offset in enumerate(result.load.plan.offsets)
    )
    plans, sheet = [result.load.plan for result in results], Sheet(len(order))
    for place, (_, share, index) in enumerate(order):
        _copy(sheet, place, results[share].sheet, index)
    plan = Plan(
        offsets=array("d", (offset for offset, _, _ in order)),
        priorities=bytes(plans[share].priorities[index] for _, share, index in order),
        segments=array("H", (plans[share].segments[index] for _, share, index in order)),
        clients=array("I", (plans[share].clients[index] for _, share, index in order)),
        kinds=array("I", (plans[share].kinds[index] for _, share, index in order)),
        names=roster.names,
        ends_s=roster.ends_s,
    )
    aborted = any(result.aborted for result in results)
    return Result(Load(plan, roster.requests), sheet, _efforts(results), aborted=aborted, closed_loop=True)


def _copy(sheet: Sheet, place: int, other: Sheet, index: int) -> None:
    for name in COLUMNS:
        getattr(sheet, name)[place] = getattr(other, name)[index]
    if other.reasons[index]:
        sheet.refused(place, other.stated[other.reasons[index]], None)


def _efforts(results: Sequence[Result]) -> Effort:
    efforts = [result.effort for result in results]
    shares = [effort.cpu_share for effort in efforts if effort.cpu_share is not None]
    stops = [effort.stopped_s for effort in efforts if effort.stopped_s is not None]
    return Effort(
        elapsed_s=max(effort.elapsed_s for effort in efforts),
        stopped_s=max(stops, default=None),
        overrun_s=max(effort.overrun_s for effort in efforts),
        cpu_share=max(shares, default=None),
        resent=sum(effort.resent for effort in efforts),
        connections=sum(effort.connections for effort in efforts),
        processes=len(efforts),
        lost=sum(effort.lost for effort in efforts),
        loop=next((effort.loop for effort in efforts if not effort.lost), efforts[0].loop),
    )
