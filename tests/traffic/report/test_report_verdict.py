"""The exit status, and when a run is not to be believed: one table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.report import Objectives, ReplayInfo, make
from autoglm_throttle.traffic.report.schema import Part
from autoglm_throttle.traffic.report.tally import times
from autoglm_throttle.traffic.report.verdict import caveats, verdict
from autoglm_throttle.traffic.request_log import RequestResult
from tests.traffic.report.sample_runs import RUN_INFO, Sent, made

HOLDS: Part = {"term": "error<1%", "value": 0.0, "unit": "ratio", "holds": True}
FAILS: Part = {"term": "p99<1s", "value": None, "unit": "s", "holds": False}


@pytest.mark.parametrize(
    ("judged", "doubted", "aborted", "status", "text"),
    [
        ([], [], False, 0, "done; no objectives were stated"),
        ([HOLDS], [], False, 0, "the objective holds"),
        ([HOLDS, HOLDS], [], False, 0, "all objectives hold"),
        ([HOLDS, FAILS], [], False, 1, "failed: p99<1s"),
        ([HOLDS], ["too slow"], False, 3, "not valid: too slow"),
        ([FAILS], ["too slow", "too late"], False, 3, "not valid: too slow"),
        ([HOLDS], [], True, 130, "interrupted"),
        ([FAILS], ["too slow"], True, 130, "interrupted"),
    ],
)
def test_the_exit_status(
    judged: list[Part], doubted: list[str], aborted: bool, status: int, text: str
) -> None:
    told = verdict(judged, doubted, aborted=aborted)
    assert told["status"] == status
    assert told["text"].startswith(text)
    assert told["objectives"] == judged
    assert (told["caveats"], told["valid"], told["aborted"]) == (doubted, not doubted, aborted)


def generator(lag_s: float | None = 0.001, late: int = 2, **changed: Any) -> Part:
    lag = Histogram()
    for _ in range(late if lag_s is not None else 0):
        lag.record(lag_s or 0.0)
    part: Part = {
        "lag": times(lag),
        "cpu_share": 0.2,
        "overrun_s": 0.0,
        "resent": 0,
        "connections": 1,
    }
    return {**part, **changed}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (generator(), None),
        (generator(lag_s=None), None),
        (generator(lag_s=0.010), None),
        (generator(lag_s=0.0101), "lag p99 10.1 ms, allowed 10 ms"),
        (generator(overrun_s=0.2), None),
        (generator(overrun_s=0.21), "ran over by 0.21 s of 20 s"),
        (generator(cpu_share=None), None),
        (generator(cpu_share=0.95), None),
        (generator(cpu_share=0.96), "used 96% of a core"),
    ],
)
def test_slow_generator_invalidates_the_run(part: Part, said: str | None) -> None:
    found = caveats(part, 20.0)
    assert len(found) == (said is not None)
    for doubt in found:
        assert said is not None
        assert said in doubt
        assert "lower the rate" in doubt


def test_every_caveat_is_reported() -> None:
    assert caveats(generator(overrun_s=0.050), 0.08) == [], "as late as a pause for once"
    assert caveats(generator(overrun_s=0.051), 0.08) != []
    assert len(caveats(generator(lag_s=1.0, overrun_s=5.0, cpu_share=1.0), 20.0)) == 3


def test_one_late_request_of_a_few_is_chance() -> None:
    assert caveats(generator(lag_s=0.5, late=1), 20.0) == []
    assert caveats(generator(lag_s=0.5, late=2), 20.0) != []


@pytest.mark.parametrize(
    ("endings", "said"),
    [
        ([RequestResult.OK, RequestResult.CLIENT_ERROR], ""),
        ([None] * 3, ""),
        (
            [RequestResult.CLIENT_ERROR] * 5,
            "0 of 5 requests succeeded (5 x 404): check the URL and the method",
        ),
        (
            [RequestResult.LIMITED] * 2,
            "0 of 2 requests succeeded (2 x 429): raise the limits of the caller, or send as more callers",
        ),
        (
            [RequestResult.CLIENT_ERROR, *[RequestResult.TIMEOUT] * 2, None],
            "0 of 3 requests succeeded (1 x 404, 2 x timeout): lower the rate, or raise the timeout",
        ),
        ([RequestResult.SERVER_ERROR], "0 of 1 requests succeeded (1 x 500): see the log of the service"),
        ([RequestResult.OK, RequestResult.CONNECTION, *[RequestResult.TIMEOUT] * 3], ""),
        ([RequestResult.OK, *[RequestResult.TIMEOUT] * 9], ""),
        (
            [RequestResult.OK, RequestResult.CONNECTION, *[RequestResult.TIMEOUT] * 4, None],
            "the service stopped accepting connections: the last 5 requests got no answer;"
            " see the log of the service",
        ),
    ],
)
def test_total_failure_without_objectives_fails_the_run(
    endings: list[RequestResult | None], said: str
) -> None:
    result = make(made([Sent(ending=ending) for ending in endings]), RUN_INFO)["verdict"]
    assert result["text"] == (f"failed: {said}" if said else "done; no objectives were stated")
    assert result["status"] == (1 if said else 0)


def test_total_failure_keeps_the_meaning_of_objectives() -> None:
    lost = made([Sent(ending=RequestResult.LIMITED)] * 3)
    stated = replace(RUN_INFO, objectives=Objectives.parse("limited>=100%"))
    result = make(lost, stated)["verdict"]
    assert result["status"] == 0
    assert result["text"].startswith("the objective holds; 0 of 3 requests succeeded (3 x 429)")


# FIELD.md, row 35
@pytest.mark.parametrize("ending", [RequestResult.LIMITED, RequestResult.SHED])
@pytest.mark.parametrize(
    ("served", "slo", "status"),
    [
        (4, "", 1),
        (5, "", 0),
        (4, "p99<1s,error<1%,done>=100%", 1),
        (4, "rps>=1/s", 1),
        (5, "p99<1s,error<1%", 0),
        (4, "p99<1s,limited<=100%", 0),
        (4, "shed<=100%", 0),
        (4, "goodput.mid>=4%", 0),
        (4, "rejection.p99<1s", 0),
        (4, "goodput>99%", 1),
    ],
)
def test_rejecting_nearly_all_passes_only_by_an_objective(
    ending: RequestResult, served: int, slo: str, status: int
) -> None:
    run = made([*[Sent()] * served, *[Sent(ending=ending)] * (100 - served)])
    result = make(run, replace(RUN_INFO, objectives=Objectives.parse(slo)))["verdict"]
    assert result["status"] == status, result["text"]
    if served == 4:
        assert "4 of 100 requests succeeded (4 x 200, 96 x " in result["text"]


def test_replay_like_its_recording_passes_though_rejected() -> None:
    alike: Part = {"term": "--check 1.00%", "value": 0.0, "unit": "ratio", "holds": True}
    run = made([Sent(), *[Sent(ending=RequestResult.LIMITED)] * 99])
    assert make(run, replace(RUN_INFO, replay=ReplayInfo(objectives=(alike,))))["verdict"]["status"] == 0


def test_total_failure_is_part_of_every_verdict() -> None:
    said = {
        verdict(judged, doubted, aborted=False, failure="every answer was 404")["text"]
        for judged, doubted in (([FAILS], []), ([HOLDS], []), ([], ["too slow"]))
    }
    assert said == {
        "failed: p99<1s; every answer was 404",
        "the objective holds; every answer was 404",
        "not valid: every answer was 404; too slow",
    }


def test_extra_objective_counts_for_the_verdict() -> None:
    document = make(made([Sent()]), replace(RUN_INFO, replay=ReplayInfo(objectives=(FAILS,))))
    assert document["verdict"]["status"] == 1
    assert document["verdict"]["objectives"] == [FAILS]
