"""Parsing of load descriptions, and error texts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import (
    GRAMMAR,
    Arrivals,
    LoadShape,
    PriorityMix,
    TraceShape,
    Users,
    format_plan,
    make_plan,
    parse_shape,
)


@pytest.mark.parametrize(("text", "k"), [("uniform", math.inf), ("poisson", 1.0), ("gamma:0.5", 0.5)])
def test_arrivals_are_read_and_written(text: str, k: float) -> None:
    assert Arrivals.parse(text).k == k
    assert str(Arrivals.parse(text)) == text


@given(st.floats(min_value=0.01, max_value=10_000.0))
def test_arrivals_round_trip(k: float) -> None:
    assert Arrivals.parse(str(Arrivals(k))) == Arrivals(k)


def test_gamma_one_is_poisson() -> None:
    shape = LoadShape.parse("fixed:50:10")
    assert Arrivals.parse("gamma:1") == Arrivals.POISSON
    assert str(Arrivals(2)) == "gamma:2"
    poisson = make_plan(shape, Arrivals.POISSON, PriorityMix(), 4).offsets
    assert poisson != make_plan(shape, Arrivals(1.5), PriorityMix(), 4).offsets


@pytest.mark.parametrize("text", ["", "gamma", "gamma:", "gamma:0", "gamma:-1", "gamma:nan", "gamma:1e9"])
def test_invalid_arrival_process_is_rejected(text: str) -> None:
    with pytest.raises(TrafficError):
        Arrivals.parse(text)


@pytest.mark.parametrize("text", ["even", "uniform:2", "Poisson"])
def test_unknown_arrivals_list_the_processes(text: str) -> None:
    with pytest.raises(TrafficError, match="uniform, poisson or gamma:K"):
        Arrivals.parse(text)


@pytest.mark.parametrize(
    ("text", "steps", "think_s"),
    [
        ("users:50:20s", ((50, 20.0),), 0.1),
        ("users:50:2m:0", ((50, 120.0),), 0.0),
        ("users:5:10:250ms", ((5, 10.0),), 0.25),
        ("users:50:200:4:10", ((50, 10.0), (100, 10.0), (150, 10.0), (200, 10.0)), 0.1),
        ("users:3:1:3:1", ((3, 1.0), (2, 1.0), (1, 1.0)), 0.1),
    ],
)
def test_users_are_read(text: str, steps: tuple[tuple[int, float], ...], think_s: float) -> None:
    users = Users.parse(text)
    assert users == Users(steps, think_s)
    assert users.duration_s == sum(seconds for _, seconds in steps)
    assert users.peak_users == max(count for count, _ in steps)
    assert parse_shape(text) == users


@pytest.mark.parametrize(
    "text",
    [
        *("users", "users:5", "users:0:1", "users:1.5:1", "users:5:0", "users:65537:1", "users:5:1:-1"),
        *("users:5:1:nan", "users:1:5:1:1", "users:1:0:2:1", "users:1:2:3:4:5", "user:1:1", "users:nan:1"),
    ],
)
def test_invalid_users_are_rejected(text: str) -> None:
    with pytest.raises(TrafficError):
        Users.parse(text)


def test_users_need_a_step() -> None:
    with pytest.raises(TrafficError, match="step"):
        Users(())
    with pytest.raises(TrafficError, match="users must be"):
        Users(((0, 1.0),))


@pytest.mark.parametrize("text", ["fixed:5:1", "step:1,2:1", "step:1:3:3:1", "spike:1:5:1:1", "ramp:0:5:1"])
def test_shapes_are_shapes(text: str) -> None:
    read = parse_shape(f" {text} ")
    assert isinstance(read, LoadShape)
    assert read.levels == LoadShape.parse(text).levels


def test_trace_path_may_contain_any_character() -> None:
    assert parse_shape("trace:/tmp/a:b c.csv.gz") == TraceShape("/tmp/a:b c.csv.gz")
    with pytest.raises(TrafficError, match="path"):
        parse_shape("trace:")


@pytest.mark.parametrize("text", ["", "5", "sine:1:2", "Fixed:1:1", ":", "fixed"])
def test_unknown_shape_lists_the_shapes(text: str) -> None:
    with pytest.raises(TrafficError, match="expected fixed:RATE:TIME") as told:
        parse_shape(text)
    if text != "fixed":
        assert GRAMMAR in str(told.value)


@pytest.mark.parametrize(
    "text", ["fixed:100:10x", "fixed:1:x", "ramp:1:2:", "users:5:1h", "spike:1:2:1s:3 q"]
)
def test_wrong_duration_lists_the_units(text: str) -> None:
    with pytest.raises(TrafficError, match=r"is no duration: a number with ms, s or m, such as 500ms"):
        parse_shape(text)


def test_a_timetable_counts_by_segment_priority_and_second() -> None:
    made = make_plan(LoadShape.parse("step:2,30:1500ms"), Arrivals.UNIFORM, PriorityMix(), 5)
    lines = format_plan(made)
    assert lines[0].split() == ["segment", "from", "to", "planned", "high", "mid", "low"]
    assert [line.split()[:6] for line in lines[1:4]] == [
        ["2/s", "0", "s", "1.5", "s", "3"],
        ["30/s", "1.5", "s", "3", "s", "45"],
        ["total", "0", "s", "3", "s", "48"],
    ]
    for line in lines[1:4]:
        planned, *parts = map(int, line.split()[-4:])
        assert planned == sum(parts)
    assert int(lines[3].split()[-4]) == 48
    assert [tuple(map(int, line.split()[:2])) for line in lines[6:]] == [(0, 2), (1, 16), (2, 30)]
    by_priority = [sum(int(line.split()[column]) for line in lines[6:]) for column in (2, 3, 4)]
    assert by_priority == [int(word) for word in lines[3].split()[-3:]]


def test_the_last_moment_of_a_timetable_belongs_to_a_second() -> None:
    half = format_plan(make_plan(LoadShape.parse("fixed:2:2500ms"), Arrivals.UNIFORM, PriorityMix()))
    assert [line.split()[:2] for line in half[5:]] == [["0", "2"], ["1", "2"], ["2", "1"]]


@pytest.mark.parametrize(
    "text", ["fixed:1e-8:1e9s", "step:0.001,0.001:1500000", "users:1:2592001", "users:1:2:2:2000000"]
)
def test_load_longer_than_a_month_is_rejected(text: str) -> None:
    with pytest.raises(TrafficError, match="longer than 30 days"):
        parse_shape(text)
