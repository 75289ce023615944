"""A plan is a function of its inputs, exact at every change of rate."""

from __future__ import annotations

import math
from array import array
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import (
    MIX,
    Arrivals,
    LoadLevel,
    LoadPlan,
    LoadShape,
    PriorityMix,
    load_plan,
    make_plan,
    make_replay_plan,
    parse_duration,
    parse_mix,
)
from autoglm_throttle.types import Priority

rates = st.floats(min_value=0.5, max_value=200.0)
levels = st.lists(
    st.builds(
        LoadLevel, rates, st.floats(min_value=0.1, max_value=5.0), end_rps=st.none() | st.just(0.0) | rates
    ),
    min_size=1,
    max_size=5,
)
arrivals = st.sampled_from([Arrivals.UNIFORM, Arrivals.POISSON, Arrivals(0.25), Arrivals(4.0)])
seeds = st.integers(min_value=0, max_value=2**32)


def of_segment(made: LoadPlan, segment: int) -> int:
    return sum(count for (where, _), count in made.planned().items() if where == segment)


@given(levels, arrivals, seeds)
def test_plan_is_sorted_and_deterministic(chosen: list[LoadLevel], process: Arrivals, seed: int) -> None:
    shape = LoadShape(chosen)
    made = make_plan(shape, process, PriorityMix(clients=3), seed)
    assert list(made.offsets) == sorted(made.offsets)
    assert all(0.0 <= offset <= shape.duration_s for offset in made.offsets)
    assert list(made.segments) == sorted(made.segments)
    assert made == make_plan(LoadShape(chosen), process, PriorityMix(clients=3), seed)


@given(levels, seeds)
def test_uniform_arrivals_fill_each_segment_to_within_one(chosen: list[LoadLevel], seed: int) -> None:
    made = make_plan(LoadShape(chosen), Arrivals.UNIFORM, PriorityMix(), seed)
    for segment, level in enumerate(chosen):
        assert abs(of_segment(made, segment) - level.requests) <= 1.0


@settings(max_examples=40)
@given(levels, st.sampled_from([0.5, 1.0, 4.0]), seeds)
def test_random_arrivals_fill_each_segment_to_within_five_sigma(
    chosen: list[LoadLevel], k: float, seed: int
) -> None:
    made = make_plan(LoadShape(chosen), Arrivals(k), PriorityMix(), seed)
    for segment, level in enumerate(chosen):
        sigma = math.sqrt(level.requests / k)
        assert abs(of_segment(made, segment) - level.requests) <= 5.0 * sigma + 5.0 / min(1.0, k)


@given(levels, arrivals, seeds)
def test_segments_contain_the_requests_of_their_time(
    chosen: list[LoadLevel], process: Arrivals, seed: int
) -> None:
    made = make_plan(LoadShape(chosen), process, PriorityMix(), seed)
    edge_s = 0.0
    for segment, level in enumerate(chosen):
        inside = [
            offset for offset, where in zip(made.offsets, made.segments, strict=True) if where == segment
        ]
        assert all(edge_s - 1e-9 <= offset <= edge_s + level.duration_s + 1e-9 for offset in inside)
        edge_s += level.duration_s


@given(levels, arrivals, seeds)
def test_changing_the_mix_or_the_clients_moves_no_arrival(
    chosen: list[LoadLevel], process: Arrivals, seed: int
) -> None:
    one = make_plan(LoadShape(chosen), process, PriorityMix(), seed)
    other = make_plan(
        LoadShape(chosen), process, PriorityMix({Priority.HIGH: 100.0}, 7, 1.0, kinds=(1.0, 2.0)), seed
    )
    assert one.offsets == other.offsets
    assert one.segments == other.segments
    assert set(other.priorities) <= {Priority.HIGH}


def test_the_rate_changes_exactly_where_the_shape_says() -> None:
    made = make_plan(LoadShape.parse("step:10,100:1"), Arrivals.UNIFORM, PriorityMix())
    assert len(made) == 110
    assert made.offsets[9] == pytest.approx(0.9)
    assert made.offsets[10] == pytest.approx(1.0)
    assert made.offsets[11] == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("process", "wanted"),
    [
        (Arrivals.UNIFORM, 0.0),
        (Arrivals.POISSON, 1.0),
        (Arrivals(0.5), 2.0),
        (Arrivals(4.0), 0.25),
    ],
)
def test_the_squared_variation_of_gaps_is_the_inverse_of_k(process: Arrivals, wanted: float) -> None:
    offsets = make_plan(LoadShape.parse("fixed:1000:20"), process, PriorityMix(), 1).offsets
    gaps = [later - earlier for earlier, later in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.001, rel=0.05)
    variation = sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2
    assert variation == pytest.approx(wanted, rel=0.06, abs=1e-9)


def test_the_mix_is_kept_in_the_long_run() -> None:
    made = make_plan(LoadShape.parse("fixed:1000:20"), Arrivals.UNIFORM, PriorityMix())
    for priority, share in MIX.items():
        assert made.priorities.count(priority) / len(made) == pytest.approx(share / 100.0, abs=0.015)


def test_skewed_clients_follow_zipf() -> None:
    made = make_plan(LoadShape.parse("fixed:1000:20"), Arrivals.UNIFORM, PriorityMix(clients=4, skew=1.0))
    counts = [list(made.clients).count(client) for client in range(4)]
    assert [count / counts[0] for count in counts] == pytest.approx([1.0, 1 / 2, 1 / 3, 1 / 4], abs=0.03)


def test_changing_one_part_of_the_mix_keeps_the_others() -> None:
    shape = LoadShape.parse("fixed:100:5")
    one = make_plan(shape, Arrivals.POISSON, PriorityMix(clients=5), 3)
    mixed = make_plan(
        shape, Arrivals.POISSON, PriorityMix({Priority.LOW: 100.0}, clients=5, kinds=(1.0, 1.0)), 3
    )
    crowded = make_plan(shape, Arrivals.POISSON, PriorityMix(clients=9, kinds=(1.0, 1.0)), 3)
    assert one.clients == mixed.clients
    assert mixed.kinds == crowded.kinds
    assert one.priorities == crowded.priorities


def test_kinds_are_drawn_by_their_shares() -> None:
    made = make_plan(LoadShape.parse("fixed:1000:20"), Arrivals.UNIFORM, PriorityMix(kinds=(1.0, 4.0, 5.0)))
    assert [made.kinds.count(kind) / len(made) for kind in range(3)] == pytest.approx(
        [0.1, 0.4, 0.5], abs=0.015
    )
    assert set(make_plan(LoadShape.parse("fixed:10:1"), Arrivals.UNIFORM, PriorityMix()).kinds) == {0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fixed:50:2m", [(50.0, 120.0)]),
        ("step:1,2.5:500ms", [(1.0, 0.5), (2.5, 0.5)]),
        ("step:10:30:3:5s", [(10.0, 5.0), (20.0, 5.0), (30.0, 5.0)]),
        ("spike:10:100:3:1", [(10.0, 3.0), (100.0, 1.0), (10.0, 3.0)]),
    ],
)
def test_shapes_are_read(text: str, expected: list[tuple[float, float]]) -> None:
    read = [(level.rate_rps, level.duration_s) for level in LoadShape.parse(text).levels]
    assert read == [pytest.approx(pair) for pair in expected]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fixed",
        "fixed:1",
        "fixed:x:1",
        "fixed:0:1",
        "fixed:-1:1",
        "fixed:nan:1",
        "fixed:inf:1",
        "fixed:1:0",
        "fixed:1:5h",
        "step:1,:1",
        "step:1:2:1:1",
        "step:1:2:2.5:1",
        "step:1:2:99999:1",
        "ramp:1:2",
        "ramp:0:0:1",
        "ramp:-1:2:3",
        "ramp:1:inf:3",
        "fixed:1000000:60",
        "fixed:1e300:1e300",
    ],
)
def test_invalid_shape_is_rejected(text: str) -> None:
    with pytest.raises(TrafficError):
        LoadShape.parse(text)


def test_a_shape_needs_a_level_and_not_too_many() -> None:
    for chosen in ([], [LoadLevel(1.0, 1.0)] * 65_536):
        with pytest.raises(TrafficError, match="at least one"):
            LoadShape(chosen)
    assert LoadShape([LoadLevel(1.0, 1e-3)] * 65_535).duration_s == pytest.approx(65.535)


def test_a_plan_holds_fifty_million_requests_and_no_more() -> None:
    assert LoadShape.parse("fixed:500000:100").requests == 50_000_000
    with pytest.raises(TrafficError, match="50000000"):
        LoadShape.parse("fixed:500001:100")


def test_durations_have_units() -> None:
    assert [parse_duration(word) for word in ("250ms", "20s", "2m", "1.5")] == [0.25, 20.0, 120.0, 1.5]


def test_a_mix_is_read_and_checked() -> None:
    assert parse_mix("high=10, mid=30,low=60") == MIX
    assert parse_mix("low=100") == {Priority.LOW: 100.0}
    for text in ("high=10", "high=200,low=-100", "urgent=100", "high", "low=nan"):
        with pytest.raises(TrafficError):
            parse_mix(text)


@pytest.mark.parametrize(
    "fault",
    [
        {"clients": 0},
        {"clients": 65_537},
        {"skew": -1.0},
        {"skew": math.inf},
        {"kinds": ()},
        {"kinds": (1.0, 0.0)},
        {"kinds": (math.inf,)},
        {"kinds": (math.nan,)},
    ],
)
def test_impossible_priority_mix_is_rejected(fault: dict[str, object]) -> None:
    with pytest.raises(TrafficError):
        PriorityMix(**fault)  # type: ignore[arg-type]


@given(st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=30), seeds)
def test_a_replay_keeps_every_gap(times: list[float], seed: int) -> None:
    times.sort()
    made = make_replay_plan(times, PriorityMix(), seed=seed)
    assert made.offsets == array("d", (time_s - times[0] for time_s in times))
    assert list(made.segments) == [0] * len(times)
    assert made.names == ("trace",)


def test_impossible_replay_is_rejected() -> None:
    impossible: tuple[list[float], ...] = ([], [2.0, 1.0], [1.0, math.nan], [0.0, math.inf])
    for times in impossible:
        with pytest.raises(TrafficError):
            make_replay_plan(times, PriorityMix())


def test_endless_trace_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_plan, "MAX_PLANNED", 100)
    assert len(make_replay_plan(map(float, range(100)), PriorityMix())) == 100
    with pytest.raises(TrafficError, match="no more than 100"):
        make_replay_plan(map(float, count()), PriorityMix())
