"""The latency model: a planted effect is found, and the model is silent where it cannot know."""

from __future__ import annotations

import random

import pytest

from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.observe.latency_model import HeatCell, HeatMap, LatencyModel, Silence
from benchmarks.models import TRUTH_S, effects

SEEDS = range(12)


def stepped(model: LatencyModel, steps: int, **known: float | None) -> None:
    """Take steps with random shares, but for those that are given."""
    rng = random.Random(steps)
    for _ in range(steps):
        gpu, cpu = rng.random(), rng.random()
        model.step(known.get("latency", gpu), {"gpu": gpu, "cpu": cpu, **known})


def silences(model: LatencyModel) -> list[Silence | None]:
    return [effect.silence for effect in model.view().effects]


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_planted_effect_is_found(correlation: float) -> None:
    found = [effects(seed, correlation=correlation)["gpu"] for seed in SEEDS]
    for effect in found:
        assert effect.silence is None
        assert effect.seconds == pytest.approx(TRUTH_S, rel=0.1)
    covered = [(effect.low_s or 0.0) <= TRUTH_S <= (effect.high_s or 0.0) for effect in found]
    assert sum(covered) >= len(SEEDS) - 2


def test_a_pinned_gpu_has_no_known_effect() -> None:
    found = [effects(seed, pinned=True)["gpu"] for seed in SEEDS]
    assert {effect.silence for effect in found} == {Silence.DID_NOT_MOVE}
    assert {(effect.seconds, effect.low_s, effect.high_s) for effect in found} == {(None, None, None)}


def test_gpu_and_cores_that_move_together_have_no_known_effect() -> None:
    for seed in SEEDS:
        found = effects(seed, correlation=0.95)
        assert (found["gpu"].silence, found["gpu"].moves_with) == (Silence.MOVED_TOGETHER, "cpu")
        assert (found["cpu"].silence, found["cpu"].moves_with) == (Silence.MOVED_TOGETHER, "gpu")


def test_a_resource_without_effect_has_a_wide_interval() -> None:
    assert {effects(seed)["iowait"].silence for seed in SEEDS} == {Silence.WIDE_INTERVAL}


def test_correlated_noise_widens_the_interval() -> None:
    widths = []
    for noise_memory in (0.0, 0.9):
        effect = effects(1, noise_memory=noise_memory, noise=0.02)["gpu"]
        widths.append((effect.high_s or 0.0) - (effect.low_s or 0.0))
    assert widths[1] > 2.5 * widths[0]


def test_ten_minutes_are_needed() -> None:
    model = LatencyModel(("gpu", "cpu"))
    stepped(model, 120)
    assert silences(model) == [Silence.TOO_FEW_STEPS] * 2
    assert model.view().explained is None
    stepped(model, 1)
    assert silences(model) == [None, Silence.WIDE_INTERVAL]
    assert model.view().explained == pytest.approx(1.0, abs=0.01)
    assert model.view().steps == pytest.approx(120, abs=5)


def test_unknown_values_are_no_steps() -> None:
    model = LatencyModel(("gpu", "cpu"))
    stepped(model, 130)
    before = model.view()
    stepped(model, 59, gpu=None)
    stepped(model, 59, latency=None)
    assert model.view() == before


def test_a_resource_that_vanished_is_no_input() -> None:
    model = LatencyModel(("gpu", "cpu"))
    stepped(model, 130)
    stepped(model, 60, cpu=None)
    assert silences(model) == [Silence.TOO_FEW_STEPS, Silence.NOT_MEASURED]
    stepped(model, 120, cpu=None)
    assert silences(model) == [None, Silence.NOT_MEASURED]


def test_nothing_is_measured() -> None:
    model = LatencyModel(("gpu",))
    model.step(0.1, {})
    assert silences(model) == [Silence.NOT_MEASURED]


def test_an_effect_that_changed_is_followed() -> None:
    model = LatencyModel(("gpu", "cpu"))
    rng = random.Random(1)
    for factor in (0.1, 0.3):
        for _ in range(3000):
            shares = {"gpu": rng.random(), "cpu": rng.random()}
            model.step(factor * shares["gpu"] + rng.gauss(0, 0.01), shares)
    assert model.view().effects[0].seconds == pytest.approx(0.0264, rel=0.03)  # 0.02 if nothing was forgotten


def counts(bucket: int, requests: int) -> list[float]:
    return [float(requests * (index == bucket)) for index in range(len(DURATION_BUCKETS_S) + 1)]


def test_a_heat_map_has_the_median_of_each_cell() -> None:
    heat = HeatMap()
    heat.step(0.05, 0.95, counts(5, 10))  # 75 to 100 ms
    heat.step(0.09, 1.0, counts(5, 20))
    heat.step(1.0, 0.3, counts(0, 4))
    heat.step(-0.1, 1.7, counts(6, 30))  # shares out of range are those of the edge
    assert heat.cells() == (HeatCell(0, 9, 60.0, 0.1), HeatCell(9, 3, 4.0, 0.0025))


def test_a_heat_map_leaves_out_what_is_not_known() -> None:
    heat = HeatMap()
    heat.step(None, 0.5, counts(1, 1))
    heat.step(0.5, None, counts(1, 1))
    heat.step(0.5, 0.5, None)
    heat.step(0.5, 0.5, counts(1, 0))
    assert heat.cells() == ()


def test_a_heat_map_forgets_half_in_two_hours() -> None:
    heat = HeatMap()
    heat.step(0.5, 0.5, counts(1, 8))
    for _ in range(1386):
        heat.step(None, None, None)
    assert [cell.requests for cell in heat.cells()] == [4.0]
