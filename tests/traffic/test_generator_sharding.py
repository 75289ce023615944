"""A load shared by several processes is the same load, and their results are one."""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import isnan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, UserSchedule
from autoglm_throttle.traffic.generator.sharding import COLUMNS, merge, split, split_options
from autoglm_throttle.traffic.plan import Arrivals, LoadPlan, LoadShape, PriorityMix, Users, make_plan
from autoglm_throttle.traffic.request_log import RequestLog
from autoglm_throttle.traffic.request_result import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.traffic.result import Result, RunCost

CROWD = PriorityMix(clients=5, skew=1.0, kinds=(1.0, 2.0))
KINDS = (PlannedRequest(), PlannedRequest(method="GET", body=b""))


def load(count: int) -> RequestSource:
    return RequestSource(
        make_plan(LoadShape.parse(f"fixed:{count}:1"), Arrivals.UNIFORM, CROWD, 3), KINDS, tuple("abcde")
    )


def rows(made: LoadPlan) -> list[tuple[float, int, int, int, int]]:
    return list(zip(made.offsets, made.priorities, made.segments, made.clients, made.kinds, strict=True))


def filled(made: RequestSource | LoadPlan, seed: int) -> RequestLog:
    """A request log with a distinct value in every entry."""
    draw = Random(seed)
    sheet = RequestLog(len(made.plan if isinstance(made, RequestSource) else made))
    for index in range(len(sheet)):
        ending = draw.choice(list(RequestResult))
        sheet.close(index, ending, draw.random())
        sheet.statuses[index] = draw.randrange(600)
        sheet.lag_s[index], sheet.service_s[index] = draw.random(), draw.random()
        if ending.rejected:
            sheet.record_rejection(
                index, draw.choice(["user", "gpu", "queue", ""]), draw.choice([None, 1.0, 2.0])
            )
    return sheet


def lines(sheet: RequestLog) -> list[tuple[object, ...]]:
    columns = [[None if isnan(one) else one for one in getattr(sheet, name)] for name in COLUMNS]
    told = [sheet.reason_texts[number] for number in sheet.reasons]
    return list(zip(*columns, told, strict=True))


def effort(elapsed_s: float, cpu_share: float | None) -> RunCost:
    overrun_s = elapsed_s / 10.0
    return RunCost(elapsed_s=elapsed_s, overrun_s=overrun_s, cpu_share=cpu_share, resent=2, connections=7)


@given(st.integers(1, 60), st.integers(1, 7))
def test_shares_of_a_load_are_the_load_and_their_results_are_one(count: int, shares: int) -> None:
    whole = load(count)
    if count < shares:
        with pytest.raises(TrafficError, match=f"{count} requests cannot be shared by {shares} processes"):
            split(whole, shares)
        return
    parts = [part for part in split(whole, shares) if isinstance(part, RequestSource)]
    assert sorted(row for part in parts for row in rows(part.plan)) == sorted(rows(whole.plan))
    assert all(part.requests == KINDS and part.client(4) == "e" for part in parts)
    results = [Result(part, filled(part, seed), effort(1.0, 0.5)) for seed, part in enumerate(parts)]
    merged = merge(whole, results)
    told = lines(merged.request_log)
    for number, result in enumerate(results):
        assert told[number::shares] == lines(result.request_log)
    assert merged.balanced
    assert not merged.aborted
    assert merged.load is whole


@given(st.lists(st.lists(st.floats(0.0, 2.0), max_size=20), min_size=1, max_size=4))
def test_results_of_users_are_brought_together_in_order_of_time(starts: list[list[float]]) -> None:
    roster = UserSchedule(Users(((9, 1.0), (9, 1.1))), KINDS, CROWD)
    results = []
    for seed, offsets in enumerate(starts):
        draw = Random(seed)
        made = LoadPlan(
            offsets=array("d", sorted(offsets)),
            priorities=bytes(draw.randrange(3) for _ in offsets),
            segments=array("H", map(roster.step, sorted(offsets))),
            clients=array("I", (draw.randrange(5) for _ in offsets)),
            kinds=array("I", (draw.randrange(2) for _ in offsets)),
            names=roster.names,
            ends_s=roster.ends_s,
        )
        results.append(
            Result(RequestSource(made, KINDS), filled(made, seed), effort(1.0, None), closed_loop=True)
        )
    merged = merge(roster, results)
    assert merged.closed_loop
    assert list(merged.load.plan.offsets) == sorted(at_s for offsets in starts for at_s in offsets)
    both = [
        [
            row
            for result in group
            for row in zip(rows(result.load.plan), lines(result.request_log), strict=True)
        ]
        for group in (results, [merged])
    ]
    assert sorted(both[0], key=repr) == sorted(both[1], key=repr)


def test_users_are_shared_by_their_numbers() -> None:
    parts = split(UserSchedule(Users(((5, 1.0),)), KINDS, CROWD), 2)
    assert [list(part.numbers()) for part in parts if isinstance(part, UserSchedule)] == [[0, 2, 4], [1, 3]]


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 50_000), st.integers(1, 9))
def test_shares_of_options_add_up(connections: int, more: int, inflight: int, shares: int) -> None:
    whole = ClientOptions(connections=connections, more_connections=more, max_inflight=inflight, spin=True)
    parts = split_options(whole, shares)
    assert len(parts) == shares
    assert sum(part.connections for part in parts) == max(shares, connections)
    assert sum(part.more_connections for part in parts) == more
    assert sum(part.max_inflight for part in parts) == max(shares, inflight)
    assert {replace(part, connections=1, more_connections=0, max_inflight=1) for part in parts} == {
        replace(whole, connections=1, more_connections=0, max_inflight=1)
    }


def test_the_effort_is_that_of_the_busiest_and_the_latest() -> None:
    parts = [Result(load(4), RequestLog(4), one) for one in (effort(1.0, 0.2), effort(3.0, None))]
    whole = merge(load(8), [parts[0], replace(parts[1], aborted=True)])
    assert whole.aborted
    assert whole.run_cost == RunCost(
        elapsed_s=3.0, overrun_s=0.3, cpu_share=0.2, resent=4, connections=14, processes=2
    )
