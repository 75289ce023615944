"""The section of the live page about the latency model and leaks."""

from __future__ import annotations

import dataclasses
from typing import Any

from autoglm_throttle.observe.latency_model import (
    CELLS,
    HeatCell,
    LatencyView,
    ResourceEffect,
    Silence,
)
from autoglm_throttle.observe.leak import LeakView
from autoglm_throttle.observe.models import AXES, RESOURCES, Models, ModelsView
from autoglm_throttle.observe.page import latency
from autoglm_throttle.observe.page.html import render
from autoglm_throttle.observe.page.latency import latency_section
from autoglm_throttle.observe.page.text import SHADES, Section, Table
from autoglm_throttle.testing import throttle_for_tests
from tests.observe.page_states import stepped

EFFECTS = (
    ResourceEffect(resource="gpu", silence=None, seconds=0.018, low_s=0.017, high_s=0.019),
    ResourceEffect(resource="gpu_memory", silence=None, seconds=-0.004, low_s=-0.005, high_s=-0.003),
    ResourceEffect(resource="cpu", silence=Silence.MOVED_TOGETHER, moves_with="gpu"),
    ResourceEffect(resource="iowait", silence=Silence.NOT_MEASURED),
)
LEAKS = (LeakView("gpu:0", 3e9, 20.0), LeakView("gpu:1", 0.0, None), LeakView("process", None, None))
CELLS_SEEN = tuple(HeatCell(x, 9 - x, 10.0, 0.02 * (x + 1)) for x in range(CELLS))


def section_of(**changes: Any) -> Section:
    view = ModelsView(LatencyView(EFFECTS, 0.5, 360), {("gpu", "queue"): CELLS_SEEN}, LEAKS)
    inputs, history = stepped(throttle_for_tests())
    section = latency_section(
        dataclasses.replace(inputs, models=dataclasses.replace(view, **changes)), history
    )
    assert section is not None
    return section


def the_table(section: Section, caption: str) -> Table:
    (found,) = (one for one in section["tables"] if one["caption"].startswith(caption))
    return found


def test_an_effect_has_its_interval_or_the_reason_why_it_is_not_known() -> None:
    section = section_of()
    assert dict(section["pairs"]) == {
        "steps of 5 s": "360",
        "share of latency that resources explain": "50 %",
    }
    assert the_table(section, "Change")["rows"] == [
        ["GPU utilization", "+18 ms", "+17 ms to +19 ms", "yes"],
        ["GPU memory", "−4 ms", "−5 ms to −3 ms", "yes"],
        ["cores", "–", "–", "no: it moved together with GPU utilization"],
        ["waiting for disks", "–", "–", "no: it is not measured"],
    ]


def test_a_leak_is_told_from_none_and_from_too_little_data() -> None:
    assert the_table(section_of(), "Memory")["rows"] == [
        ["gpu:0", "3,000 MB/h", "yes", "20 h"],
        ["gpu:1", "0 MB/h", "none found", "–"],
        ["process", "–", "not known in the first 45 minutes", "–"],
    ]


def test_a_heat_map_has_the_median_of_each_cell_and_shades_by_rank() -> None:
    heat = the_table(section_of(), "Median")
    assert (
        heat["caption"] == "Median latency by GPU utilization (across) and share of requests that wait (down)"
    )
    assert heat["head"][:3] == ["share of requests that wait", "0 %", "10 %"]
    assert [row[0] for row in heat["rows"]] == [f"{10 * y} %" for y in reversed(range(CELLS))]
    assert heat["rows"][0] == ["90 %", "20 ms", *[""] * 9]
    assert heat["rows"][9] == ["0 %", *[""] * 9, "200 ms"]
    shades = [row[x + 1] for x, row in enumerate(heat["shades"])]
    assert shades == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert max(shades) == SHADES
    assert sum(map(sum, heat["shades"])) == sum(shades), "an empty cell has no shade"


def test_cells_of_equal_latency_have_one_shade() -> None:
    cells = tuple(HeatCell(x, 0, 10.0, 0.05) for x in range(3))
    heat = the_table(section_of(maps={("gpu", "cpu"): cells}), "Median")
    assert heat["shades"][9] == [0, 1, 1, 1, *[0] * 7]


def test_a_page_shades_the_cells() -> None:
    page = render("Now.", [section_of()], [], 0.0, 5.0)
    assert page.count('<td class="shade5">') == 2
    assert '<td class="shade1">20 ms</td>' in page
    assert "<td></td>" in page


def test_a_map_without_requests_and_a_process_without_models_show_nothing() -> None:
    section = section_of(maps=dict.fromkeys(AXES, ()), leaks=())
    assert [one["caption"][:6] for one in section["tables"]] == ["Change"]
    inputs, history = stepped(throttle_for_tests())
    assert latency_section(dataclasses.replace(inputs, models=None), history) is None


def test_every_name_of_the_models_has_a_text() -> None:
    assert {*RESOURCES, *(name for axes in AXES for name in axes)} == latency.RESOURCES.keys()
    assert set(Silence) == latency.SILENCES.keys()
    assert Models().view.latency.steps == 0
