"""The summary agrees with the request log with each way of counting."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import fields

import pytest
from hypothesis import given

from autoglm_throttle.traffic import results
from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.request_log import OPEN, UNSENT, RequestResult
from autoglm_throttle.traffic.results import Result, Tally, tallies
from autoglm_throttle.types import Priority
from tests.traffic.report.sample_runs import REQUESTS, Sent, made, runs

GROUPS, COSTS = [0, 1, 0], [1.5, 1.0, 0.25]  # By kind
LIMITS_S = {Priority.HIGH: 1.0, Priority.MID: 5.0}


def known(histogram: Histogram, value: float) -> None:
    if not math.isnan(value):
        histogram.record(value)


def enter(row: Tally, result: Result, index: int, limit_s: float, cost: float) -> None:
    """Counts that one request adds to a row, rule by rule."""
    sheet = result.request_log
    row.planned += 1
    row.cost_planned += cost
    if sheet.results[index] == UNSENT:
        row.unsent += 1
        return
    ending = RequestResult(sheet.results[index])
    row.results[ending] += 1
    answered = ending < RequestResult.CONNECTION
    step = int((result.load.plan.offsets[index] + sheet.response_s[index]) * 4.0) if answered else 0
    row.answers.update([step] * answered)
    if sheet.statuses[index]:
        row.statuses[sheet.statuses[index]] += 1
    if ending.served:
        row.cost_served += cost
        row.timely_answers.update([step] * (sheet.response_s[index] <= limit_s))
        row.response.record(sheet.response_s[index])
        row.service.record(sheet.service_s[index])
        known(row.first_byte, sheet.first_byte_s[index])
    if ending.rejected:
        row.reasons[sheet.reason_texts[sheet.reasons[index]]] += 1
        row.rejection.record(sheet.response_s[index])
        known(row.promised, sheet.promised_s[index])


def slowly(result: Result) -> dict[tuple[int, int, int], Tally]:
    found: defaultdict[tuple[int, int, int], Tally] = defaultdict(Tally)
    plan = result.load.plan
    for index in range(len(plan)):
        kind = plan.kinds[index]
        key = plan.segments[index], plan.priorities[index], GROUPS[kind]
        limit_s = LIMITS_S.get(Priority(plan.priorities[index]), math.inf)
        enter(found[key], result, index, limit_s, COSTS[kind])
    return found


def plainly(row: Tally) -> dict[str, object]:
    told: dict[str, object] = {}
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, Histogram):
            told[field.name] = (value.pairs(), value.max_s, value.mean_s)
        else:
            told[field.name] = value
    return told


@given(runs)
def test_adding_up_by_columns_is_adding_up_one_by_one(result: Result) -> None:
    quickly = tallies(result.load, result.request_log, GROUPS, LIMITS_S, 0.25)
    assert {key: plainly(row) for key, row in quickly.items()} == {
        key: plainly(row) for key, row in slowly(result).items()
    }


@given(runs)
def test_adding_up_in_blocks_is_adding_up_at_once(result: Result) -> None:
    at_once = tallies(result.load, result.request_log, GROUPS, LIMITS_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "BLOCK", 3)
        in_blocks = tallies(result.load, result.request_log, GROUPS, LIMITS_S)
    assert {key: plainly(row) for key, row in in_blocks.items()} == {
        key: plainly(row) for key, row in at_once.items()
    }


@given(runs)
def test_every_planned_request_is_in_exactly_one_place(result: Result) -> None:
    total = result.total()
    assert total.planned == len(result.load.plan)
    assert total.sent == sum(total.results)
    assert total.sent == total.admitted + total.limited + total.shed + total.failed
    assert total.answered == total.statuses.total()
    assert total.response.count == total.service.count == total.admitted == total.timely
    assert total.rejection.count == total.limited + total.shed == total.reasons.total()


@given(runs)
def test_summary_has_a_row_for_every_segment_and_priority(result: Result) -> None:
    assert set(result.tallies) == {(segment, priority) for segment in (0, 1) for priority in Priority}
    assert {key: row.planned for key, row in result.tallies.items()} == result.load.plan.planned()


def test_open_request_is_only_counted_as_planned() -> None:
    result = made([Sent(), Sent()])
    result.request_log.results[1] = OPEN
    total = result.total()
    assert (total.planned, total.unsent, total.admitted) == (2, 0, 1)
    assert total.sent != sum(total.results)


def test_an_empty_plan_has_empty_rows() -> None:
    assert plainly(made([]).total()) == plainly(Tally())


@pytest.mark.parametrize(("response_s", "timely"), [(1.0, 1), (1.001, 0)])
def test_an_answer_at_the_limit_is_in_time(response_s: float, timely: int) -> None:
    result = made([Sent(response_s=response_s, priority=Priority.HIGH)])
    (row,) = tallies(result.load, result.request_log, [0], LIMITS_S).values()
    assert row.timely == timely


def test_the_kinds_of_these_tests_are_those_of_their_requests() -> None:
    assert [request.cost for request in REQUESTS] == COSTS
    assert GROUPS[0] == GROUPS[2]
    assert REQUESTS[0].label == REQUESTS[2].label
