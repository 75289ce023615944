"""The curves of a run add up to its totals and agree with a plain count of the request log."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.report.tally import exact_percentile, peaks, seconds
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Priority
from tests.traffic.report.sample_runs import ENDS_S, Sent, made, runs, sents

CLASSES = ("ok", "degraded", "limited", "shed", "failed", "dropped", "unsent")


def told_of(sent: list[Sent], until_s: float = 3.0) -> dict[str, object]:
    result = made(sent, ends_s=[until_s])
    return dict(seconds(result.load.plan, result.request_log))


@given(runs)
def test_every_second_adds_up_and_all_seconds_make_the_totals(result: Result) -> None:
    told = seconds(result.load.plan, result.request_log)
    total = result.total()
    sums = {
        "planned": sum(told["planned"]),
        "ok": sum(told["ok"]),
        "degraded": sum(told["degraded"]),
        "limited": sum(told["limited"]),
        "shed": sum(told["shed"]),
        "failed": sum(told["failed"]) + sum(told["dropped"]),
        "unsent": sum(told["unsent"]),
    }
    assert sums == {
        "planned": total.planned,
        "ok": total.results[RequestResult.OK],
        "degraded": total.results[RequestResult.DEGRADED],
        "limited": total.limited,
        "shed": total.shed,
        "failed": total.failed,
        "unsent": total.unsent,
    }
    assert sum(told["dropped"]) == total.results[RequestResult.DROPPED]
    columns = [told[name] for name in CLASSES]
    assert told["planned"] == [sum(second) for second in zip(*columns, strict=True)]


@given(runs)
def test_the_priorities_make_the_whole_in_every_second(result: Result) -> None:
    told = seconds(result.load.plan, result.request_log)
    parts = list(told["priorities"].values())
    for name in ("planned", "limited", "shed", "failed", "dropped", "unsent"):
        columns = [part[name] for part in parts]
        assert told[name] == [sum(second) for second in zip(*columns, strict=True)]
    served = [sum(second) for second in zip(*(part["served"] for part in parts), strict=True)]
    assert served == [ok + degraded for ok, degraded in zip(told["ok"], told["degraded"], strict=True)]
    for part in parts:
        assert sum(part["planned"]) == sum(
            sum(part[name]) for name in ("served", "limited", "shed", "failed", "dropped", "unsent")
        )


@given(runs)
def test_every_list_has_one_entry_for_each_second_of_the_plan(result: Result) -> None:
    told = seconds(result.load.plan, result.request_log)
    last = max(result.load.plan.offsets, default=0.0)
    count = 5 if last >= ENDS_S[-1] else 4
    lists = [value for value in told.values() if isinstance(value, list)]
    lists += [value for part in told["priorities"].values() for value in part.values()]
    assert {len(one) for one in lists} == {count}


@given(runs)
def test_a_percentile_of_a_second_is_exact(result: Result) -> None:
    told = seconds(result.load.plan, result.request_log)
    plan, sheet = result.load.plan, result.request_log
    curves = zip(told["p50_s"], told["p95_s"], told["p99_s"], strict=True)
    for second, (p50_s, p95_s, p99_s) in enumerate(curves):
        mine = sorted(
            sheet.response_s[index]
            for index, offset in enumerate(plan.offsets)
            if int(offset) == second and sheet.results[index] <= RequestResult.DEGRADED
        )
        if not mine:
            assert p50_s is None
            continue
        assert p50_s == pytest.approx(mine[(len(mine) - 1) // 2], abs=1e-6)
        assert p95_s == pytest.approx(mine[math.ceil(0.95 * len(mine)) - 1], abs=1e-6)
        assert p99_s == pytest.approx(mine[math.ceil(0.99 * len(mine)) - 1], abs=1e-6)


@given(st.lists(sents, max_size=20))
def test_a_plan_that_is_not_in_order_is_put_in_order(sent: list[Sent]) -> None:
    ordered = made(sorted(sent, key=lambda one: one.at_s), ends_s=ENDS_S)
    shuffled = made(sent, ends_s=ENDS_S)
    assert seconds(ordered.load.plan, ordered.request_log) == seconds(
        shuffled.load.plan, shuffled.request_log
    )


def test_lag_of_sent_requests_has_a_curve() -> None:
    told = told_of([Sent(at_s=0.1, lag_s=0.002), Sent(at_s=0.2, lag_s=math.nan), Sent(at_s=2.0, lag_s=0.25)])
    assert told["lag_p99_s"] == [0.002, None, 0.25]


def test_nothing_planned_is_one_curve_of_nothing() -> None:
    told = told_of([], until_s=2.0)
    assert told["planned"] == told["inflight"] == [0, 0]
    assert told["p50_s"] == [None, None]


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 2.0), (0.51, 3.0), (0.75, 3.0), (0.76, 4.0), (1.0, 4.0), (0.0, 1.0)]
)
def test_exact_percentile_is_the_least_covering_value(share: float, value: float) -> None:
    assert exact_percentile([1.0, 2.0, 3.0, 4.0], share) == value


def in_flight(result: Result, moment: float) -> int:
    """Counts every request; single precision as in the request log."""
    sheet, found = result.request_log, 0
    for index, offset in enumerate(result.load.plan.offsets):
        if sheet.results[index] >= RequestResult.DROPPED:
            continue
        lag = 0.0 if math.isnan(sheet.lag_s[index]) else sheet.lag_s[index]
        end = offset + max(lag, sheet.response_s[index])
        found += offset + lag <= moment <= end
    return found


@given(runs)
def test_the_peak_in_flight_is_that_of_looking_at_every_launch(result: Result) -> None:
    plan, sheet = result.load.plan, result.request_log
    launches = [
        offset + (0.0 if math.isnan(lag) else lag)
        for offset, lag, ending in zip(plan.offsets, sheet.lag_s, sheet.results, strict=True)
        if ending < RequestResult.DROPPED
    ]
    told = peaks(plan.offsets, sheet.lag_s, sheet.response_s, sheet.results, 6)
    for second, peak in enumerate(told):
        moments = [second, *(moment for moment in launches if second <= moment < second + 1)]
        assert peak == max(in_flight(result, moment) for moment in moments)


def test_request_is_in_flight_in_every_second_until_its_end() -> None:
    sent = [Sent(at_s=0.5, response_s=2.0), Sent(at_s=0.9, response_s=0.05)]
    assert told_of(sent, until_s=4.0)["inflight"] == [2, 1, 1, 0]


def test_dropped_and_unsent_requests_are_never_in_flight() -> None:
    sent = [
        Sent(ending=RequestResult.DROPPED),
        Sent(ending=None),
        Sent(ending=RequestResult.TIMEOUT, response_s=30.0),
    ]
    assert told_of(sent)["inflight"] == [1, 1, 1]


@given(sents, st.sampled_from(Priority))
def test_a_served_request_is_in_the_curve_of_its_priority(one: Sent, priority: Priority) -> None:
    sent = replace(one, at_s=1.2, ending=RequestResult.DEGRADED, priority=priority, response_s=0.125)
    told = seconds(made([sent]).load.plan, made([sent]).request_log)
    assert {name: (part["served"][1], part["p95_s"][1]) for name, part in told["priorities"].items()} == {
        other.label: (1, 0.125) if other is priority else (0, None) for other in Priority
    }


def test_request_planned_for_the_end_has_its_own_second() -> None:
    assert told_of([Sent(at_s=3.0)], until_s=3.0)["planned"] == [0, 0, 0, 1]


def test_the_percentiles_of_a_second_are_not_the_same() -> None:
    told = told_of([Sent(at_s=0.5, response_s=number / 64) for number in range(1, 101)])
    assert [told[name][0] for name in ("p50_s", "p95_s", "p99_s")] == [50 / 64, 1.484375, 1.546875]  # type: ignore[index]


@pytest.mark.parametrize("percent", [7, 14, 28, 55, 56, 99])
def test_a_share_takes_its_own_rank(percent: int) -> None:
    assert exact_percentile(range(1, 101), percent / 100) == percent
