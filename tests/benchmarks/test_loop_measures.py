"""Figures, tables, bars and charts made of counts."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.loop import measures, plot, robust, table
from benchmarks.loop.clients import Plan
from benchmarks.loop.measures import Figures, Possible
from benchmarks.loop.plant import PlantSpec
from benchmarks.loop.request import Request
from benchmarks.loop.run_counts import RunCounts
from benchmarks.loop.scenarios import SCENARIOS
from benchmarks.loop.study import Curve, Result

pytestmark = pytest.mark.slow

STEP = SCENARIOS["step_2x"]
SPIKE = SCENARIOS["spike_10x_10s"]


@pytest.mark.parametrize(
    ("series", "turns"),
    [
        ([], 0),
        ([None, 64.0, 64.0], 0),
        ([64.0, 50.0, 40.0, 41.0, 39.0], 0),
        ([64.0, 40.0, 60.0], 1),
        ([1.0, 0.0, 1.0, 0.0], 2),
        ([1.0, 0.81, 1.0, 0.81, 1.0], 0),
        ([1.0, 1.1, 1.3, 1.2, 1.1, 1.0, 1.4], 2),
    ],
)
def test_a_turn_is_a_change_of_direction_by_a_fifth(series: list[float | None], turns: int) -> None:
    assert measures.reversals(series) == turns


@given(st.lists(st.floats(0.0, 100.0), max_size=20))
def test_a_series_and_its_mirror_turn_as_often(series: list[float]) -> None:
    assert measures.reversals(series) == measures.reversals(series[::-1])


def test_p99_is_by_nearest_rank() -> None:
    assert measures.p99([]) is None
    assert measures.p99([3.0]) == 3.0
    assert measures.p99([float(n) for n in range(100, 0, -1)]) == 99.0
    assert measures.p99([float(n) for n in range(1000)]) == 989.0


def counted(scenario: str, good_by_bin: list[int]) -> RunCounts:
    chosen = SCENARIOS[scenario]
    counts = RunCounts(chosen.warm_s, chosen.duration_s, chosen.slo_s)
    counts.good_by_bin[: len(good_by_bin)] = good_by_bin
    counts.offered, counts.good, counts.rejected = [100, 300, 600], [80, 100, 20], [10, 200, 300]
    counts.high_s = [0.5] * 99
    counts.states = [(1.0, 64.0), (0.5, 50.0), (1.0, 50.0)]
    return counts


BEST = Possible(400.0, (100.0, 280.0, 20.0), [50] * 121, 0.25)


def test_figures_are_relative_to_the_possible() -> None:
    figures = measures.figures(STEP, counted("step_2x", [50] * 121), BEST)
    assert (figures.goodput, figures.high) == (0.5, 0.8)
    assert figures.mid == pytest.approx(100 / 280)
    assert figures.low is None  # twenty possible answers make no ratio
    assert (figures.high_p99_s, figures.high_p99_over) == (0.5, 2.0)
    assert figures.refused == pytest.approx(0.51)
    assert (figures.react_s, figures.recover_s, figures.reversals) == (0.0, None, 1)


def test_reaction_and_recovery_follow_from_the_windows() -> None:
    # bins of 0.5 s: the overload begins at bin 30, the spike ends at bin 50
    late = [50] * 30 + [0] * 6 + [50] * 85
    assert measures.figures(STEP, counted("step_2x", late), BEST).react_s == 3.0
    almost = [50] * 50 + [47] * 71
    assert measures.figures(SPIKE, counted("spike_10x_10s", almost), BEST).recover_s == math.inf
    assert measures.figures(STEP, counted("step_2x", almost), BEST).react_s == 0.0


def test_more_than_a_full_service_is_not_demanded_in_a_window() -> None:
    # the oracle answers 60 of each bin's requests later on, a full service does 50 in that time
    best = Possible(400.0, (100.0, 280.0, 20.0), [60] * 121, 0.25)
    assert measures.figures(SPIKE, counted("spike_10x_10s", [50] * 121), best).recover_s == 0.0


def test_where_no_oracle_is_a_full_service_is_the_measure() -> None:
    scenario = SCENARIOS["llm_2x"]
    at_s = [20.0 + n / 10.0 for n in range(400)] + [60.0 + n / 100.0 for n in range(24000)]
    best = measures.possible(scenario, Plan(at_s, [0] * len(at_s), [1.0] * len(at_s), []), None)
    assert best.good == pytest.approx(400 + 240 * scenario.plant.capacity_rps)
    assert (best.by_bin, best.high_p99_s) == (None, None)


def row(**changes: float | None) -> Figures:
    given: dict[str, float | None] = dict.fromkeys(("goodput", "high", "mid", "low", "refused"), 1.0)
    given |= {"high_p99_s": 0.5, "high_p99_over": 2.0, "react_s": None, "recover_s": None}
    return Figures(**{**given, "reversals": 0, "kills": 0, **changes})  # type: ignore[arg-type]


def test_medians_are_taken_over_the_seeds() -> None:
    middle = measures.median([row(goodput=0.5), row(goodput=0.9), row(goodput=0.70001)])
    assert middle["goodput"] == 0.7
    assert middle["react_s"] is None
    assert (
        measures.median([row(react_s=math.inf), row(react_s=math.inf), row(react_s=1.0)])["react_s"]
        == math.inf
    )


def all_good() -> dict[str, dict[str, dict[str, float | None]]]:
    perfect = measures.median([row(refused=0.0, react_s=0.0, recover_s=0.0)])
    return {name: {"adaptive": dict(perfect)} for name in SCENARIOS}


def test_perfect_figures_meet_every_bar() -> None:
    found = table.bars(all_good(), "adaptive")
    assert len(found) > 30
    assert [bar.name for bar in found if not bar.met] == []


@pytest.mark.parametrize(
    ("scenario", "figure", "value", "missed"),
    [
        ("step_5x", "goodput", 0.975, {"goodput / oracle, step_5x"}),
        ("sawtooth_0.3-3x", "goodput", 0.94, {"goodput / oracle, worst"}),
        ("stall_8s_0.5x", "high", 0.96, set()),
        ("step_10x", "high", 0.96, {"high / oracle, worst but for the hang"}),
        ("step_2x", "high_p99_over", 2.3, {"high p99 / oracle, step_2x"}),
        ("fake_busy_0.3x", "refused", 0.001, {"false refusals, fake_busy_0.3x"}),
        ("bursts_0.5x", "refused", 0.021, {"false refusals, bursts_0.5x"}),
        ("oom_tight_3x", "kills", 1.0, {"OOM kills, all scenarios"}),
        ("step_10x", "reversals", 1.0, {"reversals, step_10x"}),
        ("spike_10x_10s", "reversals", 1.0, set()),
        ("retry_2x_20s", "recover_s", math.inf, {"recovery in s, retry_2x_20s"}),
        ("llm_2x", "goodput", 0.9, {"goodput / possible, llm_2x"}),
    ],
)
def test_each_bar_can_be_missed(scenario: str, figure: str, value: float, missed: set[str]) -> None:
    medians = all_good()
    medians[scenario]["adaptive"][figure] = value
    found = table.bars(medians, "adaptive")
    assert {bar.name for bar in found if not bar.met} == missed
    assert f"{len(found) - len(missed)} of {len(found)} bars met" in table.verdicts(found)


def test_bars_of_scenarios_that_were_not_run_are_left_out() -> None:
    found = table.bars({"step_2x": all_good()["step_2x"]}, "adaptive")
    assert {bar.name.rpartition(", ")[2] for bar in found} == {
        "geometric mean",
        "worst",
        "worst but for the hang",
        "all scenarios",
        "step_2x",
    }


def test_table_has_a_row_per_scenario_and_a_column_per_limiter() -> None:
    medians = {
        "step_2x": {
            "oracle": measures.median([row()]),
            "concurrency": measures.median([row(react_s=math.inf)]),
        }
    }
    lines = table.text(medians, ("oracle", "concurrency")).splitlines()
    assert lines[0].split() == ["goodput", "/", "oracle", "oracle", "concurrency"]
    assert lines[1].split() == ["step_2x", "1", "1"]
    assert "never" in lines[-1]


def test_pictures_are_svg_with_a_panel_for_each_scenario(tmp_path: Path) -> None:
    curve = Curve(offered=[50] * 121, good=[40] * 121, bin_s=0.5)
    results = [
        Result(name, 1, {}, {"oracle": curve, "adaptive": curve, "codel": curve})
        for name in ("step_2x", "step_5x", "llm_2x")
    ]
    paths = plot.write(results, tmp_path)
    assert [path.name for path in paths] == ["closed_loop_step.svg", "closed_loop_slow.svg"]
    tree = ElementTree.parse(paths[0])
    lines = [node for node in tree.iter() if node.tag.endswith("polyline")]
    assert len(lines) == 2 * 3  # asked, oracle and adaptive; codel is not drawn
    heights = {point.split(",")[1] for point in lines[1].attrib["points"].split()}
    assert len(heights) == 1


def test_random_services_are_reproducible_and_within_ranges() -> None:
    for number in range(200):
        scenario = robust.scenario(number)
        assert scenario == robust.scenario(number)
        plant = scenario.plant
        assert isinstance(plant, PlantSpec)
        assert 1 <= plant.batch <= 64
        assert 10.0 <= plant.capacity_rps <= 200.0
        assert scenario.slo_s >= max(0.5, 5.99 * plant.full_s)
        assert sum(scenario.mix) == pytest.approx(1.0)
        if plant.memory_each:
            assert (1.0 - plant.memory_idle) / plant.memory_each >= 15.99


def test_summary_names_the_worst_and_counts_passing_services() -> None:
    figures = [
        (1.0, 0.99, 0),
        (0.5, 0.9, 0),
        (0.99, 0.91, 0),
        (0.97, 0.96, 1),
        (None, None, 0),
        (1.0, 1.0, 0),
    ]
    medians = {
        f"robust_{number}": {"concurrency": {"goodput": goodput, "high": high, "kills": kills}}
        for number, (goodput, high, kills) in enumerate(figures)
    }
    figures_found = robust.summary(medians, "concurrency")
    assert figures_found["within"] == 2
    assert figures_found["kills"] == 1
    assert (figures_found["goodput_worst"], figures_found["high_worst"]) == (0.0, 0.0)
    assert list(figures_found["worst"]) == ["robust_4", "robust_1", "robust_2", "robust_3", "robust_0"]
    assert figures_found["worst"]["robust_1"] == {"goodput": 0.5, "high": 0.9, "kills": 0}
    del medians["robust_4"]
    mean = (1.0 * 0.5 * 0.99 * 0.97 * 1.0) ** 0.2
    assert robust.summary(medians, "concurrency")["goodput_mean"] == pytest.approx(mean, abs=1e-4)


def test_counters_start_after_the_warm_up() -> None:
    counts = RunCounts(3.0, 10.0, 2.0)
    early, late = Request(0, 1.0, 0, 1.0), Request(1, 4.0, 2, 1.0)
    for request in (early, late):
        counts.record_sent(request)
        counts.record_rejected(request, request.sent_s)
        counts.record_answered(request, request.sent_s + 1.0)
    assert (counts.offered, counts.rejected, counts.good) == ([0, 0, 1], [0, 0, 1], [0, 0, 1])
    assert (sum(counts.offered_by_bin), sum(counts.good_by_bin)) == (2, 2)
    counts.record_answered(Request(2, 5.0, 0, 1.0), 7.1)
    assert (counts.good, counts.high_s) == ([0, 0, 1], [2.0999999999999996])
