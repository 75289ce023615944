"""Recorded against replayed."""

from __future__ import annotations

import json

import pytest

from autoglm_throttle.traffic.record import RecordedRequest
from autoglm_throttle.traffic.replay import (
    Replay,
    Selection,
    compare_results,
    comparison_lines,
    prepare,
)
from autoglm_throttle.traffic.request_log import RequestLog, RequestResult
from autoglm_throttle.traffic.results import Result, RunCost


def replay(*entries: tuple[float, str, int], loops: int = 1) -> Replay:
    return prepare(
        [
            RecordedRequest(
                t_s=t_s, id=number, method="GET", target="/", decision=decision, status=status, ms=20.0
            )
            for number, (t_s, decision, status) in enumerate(entries)
        ],
        Selection(loops=loops),
    )


def ended(made: Replay, *endings: tuple[RequestResult, int], aborted: bool = False) -> Result:
    sheet = RequestLog(len(made.load.plan))
    for index, (ending, status) in enumerate(endings):
        sheet.close(index, ending, 0.5)
        sheet.service_s[index] = 0.04
        sheet.statuses[index] = status
    return Result(made.load, sheet, RunCost(elapsed_s=1.0), aborted=aborted)


OK, LIMITED = (RequestResult.OK, 200), (RequestResult.LIMITED, 429)


def test_alike_is_no_difference() -> None:
    made = replay((0.0, "admitted", 200), (0.5, "limited", 429), (1.0, "rejected", 503))
    found = compare_results(made, ended(made, OK, LIMITED, (RequestResult.SHED, 503)))
    assert found is not None
    assert found["requests"] == 3
    assert found["differ"] == {"requests": 0, "ratio": 0.0}
    assert found["changed"] == {"requests": 0, "ratio": 0.0}
    assert found["seconds"] == []
    assert found["decisions"]["limited"] == {"recorded": 1, "replayed": 1}


def test_choice_among_equal_requests_is_no_difference() -> None:
    made = replay((0.0, "admitted", 200), (0.5, "limited", 429))
    found = compare_results(made, ended(made, LIMITED, OK))
    assert found is not None
    assert found["differ"]["requests"] == 0
    assert found["changed"] == {"requests": 2, "ratio": 1.0}


def test_second_of_a_rejection_is_a_difference() -> None:
    made = replay((0.0, "admitted", 200), (1.5, "limited", 429))
    found = compare_results(made, ended(made, LIMITED, OK))
    assert found is not None
    assert found["differ"] == {"requests": 2, "ratio": 1.0}
    assert [row["second"] for row in found["seconds"]] == [0, 1]
    assert found["seconds"][0]["recorded"] == {"admitted 200": 1}
    assert found["seconds"][0]["replayed"] == {"limited 429": 1}


def test_the_20_most_different_seconds_come_first() -> None:
    entries = [(float(second), "admitted", 200) for second in range(30)] + [(30.0, "admitted", 200)] * 2
    made = replay(*entries)
    found = compare_results(made, ended(made, *[LIMITED] * 32))
    assert found is not None
    assert [row["second"] for row in found["seconds"]] == [30, *range(19)]
    assert found["seconds"][0]["differ"] == 2


def test_every_loop_is_compared_with_the_recording() -> None:
    made = replay((0.0, "admitted", 200), (0.5, "limited", 429), loops=2)
    found = compare_results(made, ended(made, OK, LIMITED, OK, OK))
    assert found is not None
    assert found["statuses"] == {"200": {"recorded": 2, "replayed": 3}, "429": {"recorded": 2, "replayed": 1}}
    assert found["changed"]["requests"] == 1


def test_unsent_requests_are_omitted_on_both_sides() -> None:
    made = replay((0.0, "admitted", 200), (0.5, "limited", 429), (0.6, "limited", 429))
    result = ended(made, OK)
    result.request_log.skip(1)
    found = compare_results(made, result)
    assert found is not None
    assert found["requests"] == 1
    assert list(found["statuses"]) == ["200"]


def test_nothing_sent_is_no_division_by_nothing() -> None:
    made = replay((0.0, "admitted", 200))
    found = compare_results(made, ended(made))
    assert found is not None
    assert found["differ"]["ratio"] == 0.0


def test_errors_and_fallbacks_have_their_place() -> None:
    made = replay(*[(0.1, "admitted", 200)] * 4)
    endings = [
        (RequestResult.TIMEOUT, 0),
        (RequestResult.SERVER_ERROR, 500),
        (RequestResult.DEGRADED, 200),
        OK,
    ]
    found = compare_results(made, ended(made, *endings))
    assert found is not None
    assert found["decisions"] == {
        "admitted": {"recorded": 4, "replayed": 2},
        "degraded": {"recorded": 0, "replayed": 1},
        "none": {"recorded": 0, "replayed": 1},
    }
    assert found["served"]["p50_s"]["recorded"] == pytest.approx(0.020, rel=0.01)
    assert found["served"]["p50_s"]["replayed"] == pytest.approx(0.040, rel=0.01)


@pytest.mark.parametrize(
    ("decision", "status", "ending"),
    [
        ("", 503, RequestResult.SERVER_ERROR),  # no throttle, and no Retry-After
        ("", 200, RequestResult.DEGRADED),
        ("", 429, RequestResult.LIMITED),
        ("admitted", 429, RequestResult.LIMITED),  # behind a throttle the application says it itself
        ("admitted", 503, RequestResult.SHED),
        ("exempt", 503, RequestResult.SERVER_ERROR),
        ("limited", 429, RequestResult.LIMITED),
        ("rejected", 503, RequestResult.SHED),
        ("rejected", 418, RequestResult.CLIENT_ERROR),  # a refusal in words of one's own
        ("limited", 0, RequestResult.TIMEOUT),
        ("degraded", 200, RequestResult.DEGRADED),
        ("admitted", 302, RequestResult.OK),
    ],
)
def test_a_service_does_not_differ_from_itself(decision: str, status: int, ending: RequestResult) -> None:
    made = replay((0.0, decision, status), (0.1, "", 200))
    found = compare_results(made, ended(made, (ending, status), OK))
    assert found is not None
    assert found["differ"]["requests"] == found["changed"]["requests"] == 0
    assert all(row["recorded"] == row["replayed"] for row in found["decisions"].values())


def test_requests_cut_off_by_a_stop_are_no_difference() -> None:
    made = replay(*[(0.1, "admitted", 200)] * 3)
    cut_off = (RequestResult.UNANSWERED, 0)
    found = compare_results(made, ended(made, OK, cut_off, cut_off, aborted=True))
    assert found is not None
    assert (found["requests"], found["differ"]["requests"]) == (1, 0)
    found = compare_results(made, ended(made, OK, cut_off, cut_off))
    assert found is not None
    assert (found["requests"], found["differ"]["requests"]) == (3, 2)


def test_recording_without_responses_is_not_compared() -> None:
    made = replay((0.0, "", 0))
    assert compare_results(made, ended(made, OK)) is None
    assert compare_results(Replay(made.load, None), ended(made, OK)) is None


def test_it_is_json_and_text() -> None:
    made = replay((0.0, "admitted", 200), (1.5, "limited", 429))
    found = compare_results(made, ended(made, LIMITED, (RequestResult.TIMEOUT, 0)))
    assert found is not None
    assert json.loads(json.dumps(found)) == found
    lines = comparison_lines(found)
    assert any(
        "2 of 2 requests (100.00 %) had a different outcome, counted by second; 2 one by one" in line
        for line in lines
    )
    assert "  second 0: 1 of 1 different: 1 x admitted 200 -> 1 x limited 429" in lines
    assert any(line.split() == ["served", "p50", "20.0", "ms", "-"] for line in lines)
