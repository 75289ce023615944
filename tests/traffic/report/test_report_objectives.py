"""Grammar and evaluation of objectives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report import Document, Objectives, make
from autoglm_throttle.traffic.report.objectives import METRICS, OPERATORS, ObjectiveTerm
from autoglm_throttle.traffic.report.schema import Part
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.types import Priority
from tests.traffic.report.sample_runs import RUN_INFO, Sent, made


def run_of_ten() -> Document:
    """10 requests in 10 s: 6 high and ok, in 10 to 60 ms; 4 low, each with another bad end."""
    sent = [
        Sent(at_s=place, response_s=0.01 * place, service_s=0.005, first_byte_s=0.004, priority=Priority.HIGH)
        for place in range(1, 7)
    ]
    lows = [
        Sent(at_s=7.0, ending=RequestResult.LIMITED, response_s=0.002),
        Sent(at_s=7.0, ending=RequestResult.SHED, response_s=0.002),
        Sent(at_s=8.0, ending=RequestResult.TIMEOUT, response_s=30.0),
        Sent(at_s=9.0, ending=RequestResult.DROPPED),
    ]
    sent += [
        Sent(at_s=one.at_s, ending=one.ending, response_s=one.response_s, priority=Priority.LOW, segment=1)
        for one in lows
    ]
    return make(made(sent, ends_s=[6.5, 10.0], names=["calm", "peak"]), RUN_INFO)


RUN = run_of_ten()


def judged(text: str) -> list[Part]:
    return Objectives.parse(text).evaluate(RUN)


@pytest.mark.parametrize(
    ("metric", "value", "unit"),
    [
        ("mean", 0.035, "s"),
        ("p50", 0.030, "s"),
        ("p99", 0.060, "s"),
        ("p99.9", 0.060, "s"),
        ("p16", 0.010, "s"),
        ("max", 0.060, "s"),
        ("service.p99", 0.005, "s"),
        ("service.mean", 0.005, "s"),
        ("first_byte.max", 0.004, "s"),
        ("rejection.p95", 0.002, "s"),
        ("error", 0.2, "ratio"),
        ("limited", 0.1, "ratio"),
        ("shed", 0.1, "ratio"),
        ("dropped", 0.1, "ratio"),
        ("done", 0.8, "ratio"),
        ("goodput", 0.6, "ratio"),
        ("goodput.rps", 0.6, "rps"),
        ("rps", 0.8, "rps"),
        ("p99.high", 0.060, "s"),
        ("p99.9.high", 0.060, "s"),
        ("goodput.high", 1.0, "ratio"),
        ("goodput.rps.high", 0.6, "rps"),
        ("error.low", 0.5, "ratio"),
        ("error@peak", 0.5, "ratio"),
        ("error@2", 0.5, "ratio"),
        ("error.low@peak", 0.5, "ratio"),
        ("rps@1", 6 / 6.5, "rps"),
        ("done.high@calm", 1.0, "ratio"),
        ("p99.low", None, "s"),
        ("error.mid", None, "ratio"),
        ("error@nowhere", None, "ratio"),
        ("error.low@nowhere", None, "ratio"),
    ],
)
def test_every_metric_takes_its_value_from_its_place(metric: str, value: float | None, unit: str) -> None:
    bound = {"s": "1s", "ratio": "100%", "rps": "9/s"}[unit]
    (one,) = judged(f"{metric}<={bound}")
    assert one["unit"] == unit
    assert one["term"] == f"{metric}<={bound}"
    assert one["holds"] is (value is not None)
    if value is None:
        assert one["value"] is None
    else:
        assert one["value"] == pytest.approx(value, rel=1 / 128, abs=2e-6)


def test_unusual_percentile_is_read_from_the_histogram() -> None:
    assert judged("p16<1s")[0]["value"] == pytest.approx(0.010, rel=1 / 128)
    assert judged("p17<1s")[0]["value"] == pytest.approx(0.020, rel=1 / 128)


def test_the_usual_percentiles_are_those_of_the_report() -> None:
    names = {"p50": "p50_s", "p90": "p90_s", "p95": "p95_s", "p99": "p99_s", "p99.9": "p999_s"}
    told = {one["term"]: one["value"] for one in judged(",".join(f"{name}<1s" for name in names))}
    response = RUN["totals"]["response"]
    assert told == {f"{name}<1s": response[key] for name, key in names.items()}


@pytest.mark.parametrize(
    ("text", "unit", "bound"),
    [
        ("p99<500ms", "s", 0.5),
        ("p99<500000us", "s", 0.5),
        ("p99 < .5 s", "s", 0.5),
        ("error<0.5%", "ratio", 0.005),
        ("error<0.005", "ratio", 0.005),
        ("rps>=10000/s", "rps", 10_000.0),
        ("rps>=10000", "rps", 10_000.0),
    ],
)
def test_units_are_those_of_the_metric(text: str, unit: str, bound: float) -> None:
    term = ObjectiveTerm.parse(text)
    assert term.unit == unit
    assert term.bound == pytest.approx(bound)


@given(st.sampled_from(sorted(METRICS)), st.sampled_from(sorted(OPERATORS)), st.sampled_from(Priority))
def test_formatted_objectives_round_trip(metric: str, operator: str, priority: Priority) -> None:
    term = ObjectiveTerm.parse(f"{metric}.{priority.label}@a b:1{operator}0.5")
    assert (term.operator, term.bound, term.priority, term.segment) == (operator, 0.5, priority, "a b:1")
    assert ObjectiveTerm.parse(f"{metric}{operator}0.5").priority is None


@pytest.mark.parametrize(
    ("operator", "holds"),
    [
        ("<", (True, False, False)),
        ("<=", (True, True, False)),
        (">", (False, False, True)),
        (">=", (False, True, True)),
    ],
)
def test_operators_compare_as_written(operator: str, holds: tuple[bool, ...]) -> None:
    term = ObjectiveTerm.parse(f"rps{operator}2")
    assert tuple(term.holds(value) for value in (1.0, 2.0, 3.0)) == holds
    assert not term.holds(None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("p99", "no objective"),
        ("p99<", "no objective"),
        ("p99<500", "must be one of: us, ms, s"),
        ("p99=500ms", "no objective"),
        ("p99<500ms and more", "no objective"),
        ("p99<5/s", "must be one of: us, ms, s"),
        ("p99.hihg<1s", "unknown metric 'p99.hihg'"),
        ("p0<1s", "unknown metric 'p0'"),
        ("p100<1s", "unknown metric 'p100'"),
        ("median<1s", "unknown metric"),
        ("error<5ms", "must be one of: %, none"),
        ("error<2", "above 1"),
        ("error<101%", "above 1"),
        ("rps>5%", "must be one of: /s, none"),
        ("error<-1%", "no objective"),
        ("error<nan", "no objective"),
        ("error<1%,,rps>1", "no objective"),
    ],
)
def test_problems_name_the_term_and_known_metrics(text: str, fault: str) -> None:
    with pytest.raises(TrafficError, match=fault):
        Objectives.parse(text)


def test_all_problems_are_listed_together() -> None:
    with pytest.raises(TrafficError, match=r"median.*rps>5%"):
        Objectives.parse("median<1s,error<1%,rps>5%")


def test_no_text_is_no_objective() -> None:
    assert Objectives.parse(" ") == Objectives()
    assert judged("") == []


def test_unknown_segment_is_a_problem_before_the_run() -> None:
    objectives = Objectives.parse("error<1%,error@1<1%,error@peak<1%,p99@3<1s,p99@top<1s")
    with pytest.raises(TrafficError, match=r"p99@3<1s, p99@top<1s; there are 1 \(calm\), 2 \(peak\)"):
        objectives.check(["calm", "peak"])
    Objectives.parse("error@2<1%").check(["calm", "peak"])


def test_duplicate_segment_name_is_evaluated_twice() -> None:
    sent = [
        Sent(segment=0),
        Sent(at_s=1.0, segment=1),
        Sent(at_s=2.0, segment=2, ending=RequestResult.TIMEOUT),
    ]
    told = make(made(sent, ends_s=[1, 2, 3], names=["base", "peak", "base"]), RUN_INFO)
    objectives = Objectives.parse("error@base<1%")
    verdicts = objectives.evaluate(told)
    assert [(one["value"], one["holds"]) for one in verdicts] == [(0.0, True), (1.0, False)]


@pytest.mark.parametrize(("metric", "value"), [("p99.9", 0.01), ("p99.901", 4.0)])
def test_a_percentile_is_taken_as_it_is_written(metric: str, value: float) -> None:
    sent = [Sent(response_s=4.0 if n == 999 else 0.01) for n in range(1000)]
    told = make(made(sent), RUN_INFO)
    (one,) = Objectives.parse(f"{metric}<1s").evaluate(told)
    assert one["value"] == pytest.approx(value, rel=0.01)
