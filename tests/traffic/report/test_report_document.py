"""The document of a run: content, and equal bytes for equal runs."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report import Objectives, ReplayInfo, RunInfo, dumps, loads, make
from autoglm_throttle.traffic.report.document import MAX_LABELS, OTHER_LABEL
from autoglm_throttle.traffic.report.schema import Document, Part
from autoglm_throttle.traffic.request_log import OPEN, RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Priority
from tests.traffic.report.sample_runs import REQUESTS, RUN_INFO, Sent, made, runs, sents


def document(sent: list[Sent], facts: RunInfo = RUN_INFO) -> Document:
    return make(made(sent), facts)


def tallies(told: Document) -> list[Part]:
    return [
        told["totals"],
        *told["priorities"].values(),
        *(segment["tally"] for segment in told["segments"]),
        *(tally for segment in told["segments"] for tally in segment["priorities"].values()),
        *(part["tally"] for part in told["requests"]),
    ]


@given(runs)
def test_the_parts_make_the_whole(result: Result) -> None:
    told = make(result, RUN_INFO)
    for parts in (
        list(told["priorities"].values()),
        [segment["tally"] for segment in told["segments"]],
        [part["tally"] for part in told["requests"]],
    ):
        whole = told["totals"]
        assert sum(part["planned"] for part in parts) == whole["planned"] == len(result.load.plan)
        assert sum(part["response"]["count"] for part in parts) == whole["response"]["count"]
        assert sum(part["cost"]["planned"] for part in parts) == whole["cost"]["planned"]
        assert sum(part["goodput"]["requests"] for part in parts) == whole["goodput"]["requests"]
        for name in whole["classes"]:
            assert sum(part["classes"][name] for part in parts) == whole["classes"][name]


@given(runs)
def test_result_counts_and_ratios_of_every_tally_add_up(result: Result) -> None:
    for tally in tallies(make(result, RUN_INFO)):
        sent = tally["planned"] - tally["unsent"]
        assert list(tally["classes"]) == [ending.label for ending in RequestResult]
        assert sum(tally["classes"].values()) == sent
        if not sent:
            assert tally["done_ratio"] is tally["error_ratio"] is tally["goodput"]["ratio"] is None
            continue
        errors = sum(tally["classes"][ending.label] for ending in RequestResult if ending.failed)
        assert tally["error_ratio"] == errors / sent
        assert tally["limited_ratio"] == tally["classes"]["limited"] / sent
        assert tally["shed_ratio"] == tally["classes"]["shed"] / sent
        assert tally["dropped_ratio"] == tally["classes"]["dropped"] / sent
        assert tally["done_ratio"] == sum(tally["statuses"].values()) / sent
        assert tally["goodput"]["requests"] <= tally["classes"]["ok"] + tally["classes"]["degraded"]


@given(runs)
def test_percentiles_rise_and_stay_below_the_longest(result: Result) -> None:
    for tally in tallies(make(result, RUN_INFO)):
        times: Part = tally["response"]
        if not times["count"]:
            assert times["mean_s"] is times["p50_s"] is times["max_s"] is None
            continue
        rising = [
            times["p50_s"],
            times["p90_s"],
            times["p95_s"],
            times["p99_s"],
            times["p999_s"],
            times["max_s"],
        ]
        assert None not in rising
        assert rising == sorted(rising, key=lambda value: value or 0.0)
        assert sum(count for _, count in times["histogram"]) == times["count"]


@given(runs)
def test_equal_runs_have_equal_bytes_that_round_trip(result: Result) -> None:
    text = dumps(make(result, RUN_INFO))
    again = replace(result, request_log=copy.deepcopy(result.request_log))
    assert dumps(make(again, RUN_INFO)) == text
    assert loads(text) == make(result, RUN_INFO)


def test_run_environment_is_one_separate_line() -> None:
    result = made([Sent()])
    here, there = (
        dumps(make(result, replace(RUN_INFO, about={"date": date, "python": "3.11"}))).splitlines()
        for date in ("today", "tomorrow")
    )
    assert [number for number, pair in enumerate(zip(here, there, strict=True)) if pair[0] != pair[1]] == [4]
    assert here[4].startswith('"about"')


def test_load_options_are_reported() -> None:
    facts = RunInfo(
        title="peak",
        shape="fixed:2:1s",
        arrivals="poisson",
        seed=7,
        mix={Priority.HIGH: 25.0, Priority.LOW: 75.0},
        limits_s={Priority.LOW: 2.0, Priority.HIGH: 0.2},
    )
    told = make(made([Sent(client=4), Sent(client=9, kind=1)], requests=REQUESTS), facts)
    assert told["title"] == "peak"
    assert told["load"] == {
        "shape": "fixed:2:1s",
        "arrivals": "poisson",
        "seed": 7,
        "mix": {"high": 25.0, "mid": 0.0, "low": 75.0},
        "clients": 2,
        "requests": ["POST /v1/predict", "POST /v1/other"],
        "loop": "open",
        "planned": 2,
        "duration_s": 10.0,
        "sent_s": 10.0,
        "limits_s": {"high": 0.2, "low": 2.0},
    }
    closed = make(replace(made([Sent()]), closed_loop=True), facts)
    assert closed["load"]["loop"] == "closed"


def test_one_of_each_is_where_it_belongs() -> None:
    told = document(
        [
            Sent(first_byte_s=0.25, response_s=0.5, service_s=0.375),
            Sent(ending=RequestResult.LIMITED, reason="rate", promised_s=2.0, response_s=0.125),
            Sent(ending=RequestResult.SERVER_ERROR, priority=Priority.LOW),
            Sent(ending=RequestResult.TIMEOUT, response_s=30.0),
            Sent(ending=None),
        ]
    )
    totals = told["totals"]
    assert totals["statuses"] == {"200": 1, "429": 1, "500": 1}
    assert totals["reasons"] == {"rate": 1}
    assert (totals["planned"], totals["unsent"], totals["cost"]) == (5, 1, {"planned": 5.0, "served": 1.0})
    assert (totals["done_ratio"], totals["error_ratio"]) == (0.75, 0.5)
    assert totals["response"]["max_s"] == 0.5
    assert totals["service"]["max_s"] == 0.375
    assert totals["first_byte"]["max_s"] == 0.25
    assert totals["rejection"]["max_s"] == 0.125
    assert totals["promised"]["max_s"] == 2.0
    assert told["priorities"]["low"]["error_ratio"] == 1.0
    assert told["priorities"]["high"]["error_ratio"] is None
    assert told["seconds"]["failed"][0] == 2


def test_rates_are_by_the_length_of_the_stretch() -> None:
    sent = [Sent(at_s=at_s, segment=int(at_s >= 4.0)) for at_s in (0.0, 1.0, 2.0, 4.5)]
    told = make(made(sent, ends_s=[4.0, 5.0]), RUN_INFO)
    assert told["totals"]["rps"] == 4 / 5
    assert [segment["tally"]["rps"] for segment in told["segments"]] == [3 / 4, 1.0]
    assert [(segment["start_s"], segment["end_s"]) for segment in told["segments"]] == [
        (0.0, 4.0),
        (4.0, 5.0),
    ]
    assert told["totals"]["goodput"] == {"requests": 4, "ratio": 1.0, "rps": 4 / 5}


def test_responses_during_the_drain_raise_no_rate() -> None:
    """300/s are offered for 2 s to a service that can do 100/s."""
    sent = [Sent(at_s=n / 300, response_s=(n + 1) / 100 - n / 300, segment=n // 300) for n in range(600)]
    told = make(made(sent, ends_s=[1.0, 2.0]), replace(RUN_INFO, limits_s={}))
    for tally in (told["totals"], *(segment["tally"] for segment in told["segments"])):
        assert tally["rps"] == pytest.approx(100.0, rel=0.02)
        assert tally["goodput"]["rps"] == tally["rps"]


def test_slow_answers_alone_lower_no_rate() -> None:
    sent = [Sent(at_s=n / 100, response_s=3.0 + n % 2 / 500, segment=n // 100) for n in range(200)]
    told = make(made(sent, ends_s=[1.0, 2.0]), replace(RUN_INFO, limits_s={Priority.MID: 3.0}))
    for tally in (told["totals"], *(segment["tally"] for segment in told["segments"])):
        assert (tally["rps"], tally["goodput"]["rps"]) == (100.0, 50.0)


@pytest.mark.parametrize(("stopped_s", "length_s"), [(2.5, 2.5), (11.0, 5.0), (-0.01, 0.0)])
def test_stopped_run_states_its_sending_time(stopped_s: float, length_s: float) -> None:
    """Stopped users have no unsent requests: their further requests are unknown."""
    told = make(made([Sent(), Sent(at_s=2.0)], ends_s=[5.0], effort={"stopped_s": stopped_s}), RUN_INFO)
    assert told["load"].get("sent_s") == length_s
    assert told["totals"]["rps"] == (2 / length_s if length_s else 0.0)


def test_rates_of_a_stopped_run_use_its_sending_time() -> None:
    sent = [
        Sent(at_s=0.0),
        Sent(at_s=1.0),
        Sent(at_s=2.0, ending=None),
        Sent(at_s=4.5, segment=1, ending=None),
    ]
    told = make(made(sent, ends_s=[4.0, 5.0], effort={"stopped_s": 2.0}, aborted=True), RUN_INFO)
    assert told["totals"]["rps"] == 2 / 2.0
    assert [segment["tally"]["rps"] for segment in told["segments"]] == [2 / 2.0, 0.0]
    assert told["verdict"]["status"] == 130
    assert told["verdict"]["aborted"]


def test_goodput_uses_the_limit_of_the_priority() -> None:
    facts = replace(RUN_INFO, limits_s={Priority.HIGH: 0.1})
    told = document([Sent(response_s=0.2, priority=priority) for priority in Priority], facts)
    assert [told["priorities"][name]["goodput"]["ratio"] for name in ("high", "mid", "low")] == [
        0.0,
        1.0,
        1.0,
    ]


def test_requests_with_one_label_are_one_part() -> None:
    told = make(made([Sent(kind=kind) for kind in (0, 1, 2, 2)], requests=REQUESTS), RUN_INFO)
    assert [(part["label"], part["tally"]["planned"]) for part in told["requests"]] == [
        ("POST /v1/predict", 3),
        ("POST /v1/other", 1),
    ]
    assert told["requests"][0]["tally"]["cost"]["planned"] == 1.5 + 2 * 0.25


def test_most_frequent_request_kinds_are_listed() -> None:
    requests = [PlannedRequest(target=f"/{number}") for number in range(MAX_LABELS + 10)]
    often = MAX_LABELS + 5
    told = make(
        made([Sent(kind=kind) for kind in (*range(len(requests)), often)], requests=requests), RUN_INFO
    )
    labels = {part["label"]: part["tally"]["planned"] for part in told["requests"]}
    assert len(labels) == MAX_LABELS + 1
    assert labels[f"POST /{often}"] == 2
    assert labels[OTHER_LABEL] == 10
    assert sum(labels.values()) == len(requests) + 1


def test_many_requests_with_few_labels_need_no_others() -> None:
    requests = [PlannedRequest(body=b"%d" % number) for number in range(MAX_LABELS + 10)]
    told = make(made([Sent(kind=kind) for kind in range(len(requests))], requests=requests), RUN_INFO)
    assert told["load"]["requests"] == ["POST /v1/predict"]


def test_generator_cost_is_reported() -> None:
    effort = {"cpu_share": 0.25, "overrun_s": 0.001, "resent": 3, "connections": 256}
    told = make(made([Sent(lag_s=0.0078125), Sent(lag_s=math.nan)], effort=effort), RUN_INFO)
    generator = told["generator"]
    assert {name: generator[name] for name in effort} == effort
    assert (generator["lag"]["count"], generator["lag"]["max_s"]) == (1, 0.007812)


def test_non_finite_samples_are_omitted() -> None:
    watched = ({"t_s": 0.0, "cpu_share": math.nan}, {"t_s": 1.0, "cpu_share": 0.5})
    told = make(replace(made([Sent()]), watched=watched), RUN_INFO)
    assert told["watched"] == [{"t_s": 0.0}, {"t_s": 1.0, "cpu_share": 0.5}]


def test_objectives_and_caveats_determine_the_verdict() -> None:
    facts = replace(RUN_INFO, objectives=Objectives.parse("error<0.5%"))
    assert document([Sent()], facts)["verdict"]["status"] == 0
    failed = document([Sent(ending=RequestResult.TIMEOUT)], facts)["verdict"]
    text = "0 of 1 requests succeeded (1 x timeout): lower the rate, or raise the timeout"
    assert (failed["status"], failed["text"]) == (1, f"failed: error<0.5%; {text}")
    doubted = document([Sent()], replace(facts, caveats=("the control failed",)))["verdict"]
    assert (doubted["status"], doubted["valid"], doubted["caveats"]) == (3, False, ["the control failed"])


def test_a_replay_brings_its_comparison() -> None:
    assert document([Sent()])["replay"] is None
    assert document([Sent()], replace(RUN_INFO, replay=ReplayInfo({"same": 1})))["replay"] == {"same": 1}


def test_unfinished_run_has_no_report() -> None:
    result = made([Sent()])
    result.request_log.results[0] = OPEN
    with pytest.raises(RuntimeError, match="has open requests"):
        make(result, RUN_INFO)


@given(st.lists(sents, max_size=5))
def test_a_priority_without_requests_is_there_with_zeros(sent: list[Sent]) -> None:
    told = document([replace(one, priority=Priority.LOW, segment=0, kind=0) for one in sent])
    assert list(told["priorities"]) == ["high", "mid", "low"]
    assert told["priorities"]["high"]["planned"] == 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"schema": NaN}', "NaN is not a number"),
        ("[]", "no report"),
        ('{"kind": "something"}', "no report"),
        ('{"kind": "autoglm-throttle-load", "schema": 2}', "schema 2; this version reads schema 1"),
        ('{"kind": "autoglm-throttle-load", "schema": 1, "title": ""}', "damaged: about is missing"),
    ],
)
def test_document_that_is_no_report_is_rejected(text: str, fault: str) -> None:
    with pytest.raises(TrafficError, match=fault):
        loads(text)


def test_each_part_of_the_json_is_on_its_own_line() -> None:
    told = document([Sent()])
    lines = dumps(told).splitlines()
    assert (lines[0], lines[-1]) == ("{", "}")
    assert [json.loads("{" + line.rstrip(",") + "}") for line in lines[1:-1]] == [
        {name: part} for name, part in told.items()
    ]
