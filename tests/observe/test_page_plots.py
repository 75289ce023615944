"""The plots of the live page: rings of texts, fed step by step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pytest

from autoglm_throttle.observe.page.plots import MAX_SERIES, PLOTS, POINTS, PlotRings, PlotSpec, Value
from autoglm_throttle.observe.series import STEP_S
from autoglm_throttle.observe.timer import new_history
from autoglm_throttle.testing import FakeGpu, throttle_for_tests
from tests.observe.page_states import stepped


class Scripted:
    """Rings of one plot with scripted values."""

    def __init__(self) -> None:
        self.values: Mapping[str, Value] = {}
        self.spec = PlotSpec("a", "now", "A", "%", lambda _: self.values, 100.0)
        self.rings = PlotRings([self.spec])
        self.history = new_history()
        self.now_s = 1000.0

    def step(self, **values: Value) -> None:
        self.now_s += STEP_S
        self.values = values
        self.history.record(self.now_s, 0.0, ())
        self.rings.record(self.history)

    def shown(self) -> dict[str, list[Value]]:
        (plot,) = self.rings.plots({})
        return {one["name"]: one["values"] for one in json.loads(plot.json())["series"]}


def test_each_step_adds_a_value_to_each_series() -> None:
    one = Scripted()
    one.step(x=1.0, y=2.0)
    one.step(x=3.14159, y="idle")
    assert one.shown() == {"x": [1, 3.142], "y": [2, "idle"]}
    assert one.rings.step == 202


def test_values_that_are_missing_are_gaps() -> None:
    one = Scripted()
    one.step(x=1.0)
    one.now_s += 2 * STEP_S
    one.step(x=2.0, late=5.0)
    one.step(x=None, late=math.inf)
    one.step(x=math.nan)
    assert one.shown() == {"x": [1, None, None, 2, None, None], "late": [None, None, None, 5, None, None]}


def test_a_series_without_values_is_forgotten_after_the_window() -> None:
    one = Scripted()
    one.step(x=1.0, gone=1.0)
    for _ in range(POINTS - 1):
        one.step(x=1.0)
    assert set(one.shown()) == {"x", "gone"}
    one.step(x=1.0)
    assert set(one.shown()) == {"x"}
    assert len(one.shown()["x"]) == POINTS
    one.now_s += 10 * POINTS * STEP_S
    one.step(x=7.0)
    assert one.shown()["x"] == [None] * (POINTS - 1) + [7]


def test_another_history_begins_anew() -> None:
    one = Scripted()
    one.step(x=1.0)
    one.history = new_history()
    one.step(z=2.0)
    assert one.shown() == {"z": [2]}


def test_series_of_one_plot_are_bounded() -> None:
    one = Scripted()
    one.step(**{f"s{index}": 1.0 for index in range(3 * MAX_SERIES)})
    assert list(one.shown()) == [f"s{index}" for index in range(MAX_SERIES)]


def test_a_message_has_the_newest_value_alone() -> None:
    one = Scripted()
    one.step(**{'"</script>': 1.0})
    one.step(**{'"</script>': 2.0})
    (plot,) = one.rings.plots({"a": ((85.0, "85 %: rates at 70%"),)})
    assert json.loads(plot.json(1)) == {
        "id": "a",
        "section": "now",
        "title": "A",
        "unit": "%",
        "kind": "line",
        "top": 100.0,
        "bands": [[85.0, "85 %: rates at 70%"]],
        "series": [{"name": '"</script>', "values": [2]}],
    }


def test_plots_show_devices_engines_and_classes() -> None:
    gpu = FakeGpu(2, engines=1)
    throttle = throttle_for_tests(gpu=gpu, policy="fixed")
    gpu.set(0, utilization_pct=91.0, memory_used_bytes=gpu.memory_total_bytes // 4)
    gpu.set_engine(0, kv_used_ratio=0.5, queued=7)
    throttle.tick(3)
    _, history = stepped(throttle, admitted=10)
    read = {spec.id: dict(spec.read(history)) for spec in PLOTS}
    assert read["gpu"] == pytest.approx({"GPU 0": 91.0, "GPU 1": 0.0})
    assert read["memory"] == pytest.approx({"GPU 0": 25.0, "GPU 1": 0.0})
    assert set(read["verdicts"]) == {"GPU 0", "GPU 1"}
    assert read["verdicts"]["GPU 1"] == "idle"
    assert list(read["kv"].values()) == [50.0]
    assert list(read["engine_queue"].values()) == [7.0]
    assert read["admitted"] == {"high": 0.0, "mid": 2.0, "low": 0.0}
    assert read["rejected"] == {"high": 0.0, "mid": 0.0, "low": 0.0}
    assert read["p95"]["mid"] == pytest.approx(0.09875)
    assert read["factor"] == {"share": 100.0 * throttle.control_state().factor}


def test_each_plot_belongs_to_a_section() -> None:
    assert {spec.section for spec in PLOTS} <= {"now", "gpu", "classes", "queue", "engines", "host"}
    assert len({spec.id for spec in PLOTS}) == len(PLOTS)
