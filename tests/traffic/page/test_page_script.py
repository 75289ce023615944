"""The script of the report page: markup, numbers as people read them, axes, curves and steps of time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.traffic.page.drawn_page import value
from tests.traffic.page.sample_document import document

MADE_UP = document()
MADE_UP["totals"]["planned"] = 0  # without plots: most of these tests call a single function
AMOUNTS = st.floats(1e-6, 1e9)
MAX_STEPS = 240


def js(expression: str, *arguments: object) -> Any:
    """The value of a function of the script for these arguments."""
    return value(
        MADE_UP, f"{expression}({', '.join(map(json.dumps, arguments))})" if arguments else expression
    )


@given(st.text(), st.text())
def test_no_text_becomes_markup(content: str, title: str) -> None:
    expression = (
        f'html`<p title="${{{json.dumps(title)}}}">${{{json.dumps(content)}}}${{html`<b>x</b>`}}</p>`.text'
    )
    element = ElementTree.fromstring(js(expression))
    assert [child.tag for child in element] == ["b"]
    shown = (element.text or "").replace("\ufffd", "")
    assert set(shown) <= set(content) | {"\n"}
    assert len(element.attrib["title"]) == len(title.replace("\r\n", "\n"))


def test_control_characters_are_marked() -> None:
    assert js("escaped", "a\x00b\x1b[31m\x85\ud800") == "a\ufffdb\ufffd[31m\ufffd\ufffd"
    assert js("escaped", "tab\tand\nline, 10 %, ü, 🐵") == "tab\tand\nline, 10 %, ü, 🐵"
    assert js("escaped", "<&>\"'") == "&#60;&#38;&#62;&#34;&#39;"


def test_lists_of_markup_pass_and_lists_of_text_are_escaped() -> None:
    assert js('html`${[html`<i></i>`, "<b>", 1]}`.text') == "<i></i>&#60;b&#62;1"


@pytest.mark.parametrize(
    ("duration_s", "told"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.00042, "0.42 ms"),
        (0.0184, "18.4 ms"),
        (0.2049, "205 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1 s"),
        (1.234, "1.23 s"),
        (99.97, "100 s"),
        (1234.0, "1,234 s"),
    ],
)
def test_durations(duration_s: float | None, told: str) -> None:
    assert js("duration", duration_s) == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (0.0004, "< 0.1 %"),
        (0.047, "4.7 %"),
        (0.4752, "47.5 %"),
        (0.9912, "99.12 %"),
        (0.9999, "> 99.9 %"),
        (1.0, "100 %"),
        (1.25, "125 %"),
    ],
)
def test_ratios(ratio: float | None, told: str) -> None:
    assert js("share", ratio) == told


@given(st.floats(0.0, 1.0, exclude_min=True, exclude_max=True))
def test_small_shares_are_not_0_and_large_ones_not_100_percent(ratio: float) -> None:
    assert js("share", ratio) not in {"0 %", "100 %"}


@pytest.mark.parametrize(
    ("function", "numbers", "told"),
    [
        ("count", [12345.0, 2.5e6], ["12,345", "2,500,000"]),
        ("rate", [None, 0.0, 0.24, 9.96, 850.0], ["–", "0/s", "0.2/s", "10.0/s", "850/s"]),
        (
            "clock",
            [0, 12.5, 120, 150, 3600, 7325],
            ["0 s", "12.5 s", "120 s", "2:30", "1 h", "2:02:05"],
        ),
        ("size", [12.0, 2048.0, 5e6, 3e9], ["12 B", "2 KiB", "4.77 MiB", "2.79 GiB"]),
        ("powerOfTen", [0.00001, 1.0], ["0.001 %", "100 %"]),
    ],
)
def test_everything_else(function: str, numbers: list[float | None], told: list[str]) -> None:
    assert js(f"{json.dumps(numbers)}.map((number) => {function}(number))") == told


def test_singular_is_used_for_one() -> None:
    told = js('[0, 1, 2000].map((number) => plural(number, "request"))')
    assert told == ["0 requests", "1 request", "2,000 requests"]


class Axis:
    """An axis, its ticks and the places of some numbers."""

    def __init__(self, expression: str, numbers: Sequence[float] = ()) -> None:
        found = js(f"(axis => [axis.ticks, {json.dumps(list(numbers))}.map(axis.place)])({expression})")
        self.ticks: list[tuple[float, Any]] = [(place, label) for place, label in found[0]]
        self.places: list[float] = found[1]

    @property
    def labels(self) -> list[Any]:
        return [label for _, label in self.ticks]


@given(AMOUNTS)
def test_linear_axis_fits_the_maximum_closely(most: float) -> None:
    ticks = Axis(f"linear({most!r}, Number)").ticks
    axis = Axis(f"linear({most!r}, Number)", [most, 0.0, *(label for _, label in ticks)])
    assert 0.45 < axis.places[0] <= 1.0 + 1e-9
    assert axis.places[1] == 0.0
    assert 2 <= len(ticks) <= 6
    assert axis.places[2:] == pytest.approx([place for place, _ in ticks])


def test_a_linear_axis_names_round_numbers() -> None:
    assert Axis("linear(850, count)").labels == ["0", "250", "500", "750", "1,000"]
    assert Axis("linear(1, share)").labels == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert Axis("linear(0, Number)").labels == [0, 0.25]


def test_bytes_have_ticks_that_are_round_in_their_own_unit() -> None:
    labels = Axis(f"linear({80 * 1024**2}, size, 1024)").labels
    assert labels == ["0 B", "20 MiB", "40 MiB", "60 MiB", "80 MiB"]
    assert Axis("linear(0, size, 1024)").ticks[0] == (0.0, "0 B")


@given(st.lists(AMOUNTS, max_size=5))
def test_logarithmic_axis_covers_whole_decades(numbers: list[float]) -> None:
    axis = Axis(f"logarithmic({json.dumps(numbers)}, Number)", numbers)
    assert all(-1e-9 <= place <= 1.0 + 1e-9 for place in axis.places)
    assert (axis.ticks[0][0], axis.ticks[-1][0]) == (0.0, 1.0)
    steps = [later / earlier for earlier, later in pairwise(axis.labels)]
    assert steps == pytest.approx([10.0] * len(steps))


def test_values_below_a_logarithmic_axis_are_at_its_origin() -> None:
    assert Axis("logarithmic([0.01, 1], Number)", [0.0]).places == [0.0]


@given(st.floats(0.5, 1e6), st.integers(2, 8))
def test_an_axis_of_time_ends_with_the_run_and_is_not_crowded(length_s: float, ticks: int) -> None:
    axis = Axis(f"timeAxis({length_s!r}, {ticks})", [length_s])
    assert axis.places == [1.0]
    assert len(axis.ticks) <= ticks + 1
    assert all(0.0 <= place <= 1.0 + 1e-6 for place, _ in axis.ticks)


def test_time_axis_uses_natural_steps() -> None:
    assert Axis("timeAxis(60)").labels == [f"{ten} s" for ten in range(0, 70, 10)]
    assert Axis("timeAxis(600)").labels[1:3] == ["120 s", "4:00"]
    assert [place for place, _ in Axis(f"timeAxis({20 * 86400})").ticks] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_a_gap_lifts_the_pen_and_a_lone_point_is_a_dot() -> None:
    assert js("line", [(0.0, 0.0), (0.5, 1.0), None, (1.0, 0.25)]) == "M0 1000h0L500 0M1000 750h0"
    assert js("line", [None, None]) == ""


def of_length(seconds: int) -> Any:
    """The report of a run of so many seconds."""
    report = deepcopy(MADE_UP)
    curves = report["seconds"]
    for part in (curves, *curves["priorities"].values()):
        for name, column in part.items():
            if isinstance(column, list):
                part[name] = (column * math.ceil(seconds / len(column)))[:seconds]
    return report


def test_curves_are_level_between_edges() -> None:
    two = of_length(2)
    assert value(two, "line(stairs([0.2, 0.4]))") == "M0 800h0L500 800L500 600L1000 600"
    assert value(two, "band([0.1, 0.1], [0.9, 0.5])") == (
        "M0 100L500 100L500 500L1000 500L1000 900L500 900L500 900L0 900Z"
    )


@pytest.mark.slow
@given(st.integers(1, 6 * MAX_STEPS))
@example(20 * MAX_STEPS + 1)
def test_every_second_is_in_one_step(seconds: int) -> None:
    report = of_length(seconds)
    edges, counts = value(report, f"[edges, mean(Array({seconds}).fill(6))]")
    assert (edges[0], edges[-1]) == (0, seconds)
    assert counts == [6] * (len(edges) - 1)
    assert len(counts) <= MAX_STEPS


def test_step_shows_mean_counts_and_worst_latencies() -> None:
    report = of_length(2 * MAX_STEPS + 1)
    assert value(report, "stepS") == 3
    assert value(report, "mean([1, 2, 6, 5]).slice(0, 2)") == [3, 5]
    assert value(report, "worst([0.1, null, 0.3, null, null, null, 0.2]).slice(0, 3)") == [0.3, None, 0.2]


def test_the_share_that_took_longer_falls_from_all_to_one() -> None:
    points = js("slower", {"count": 4, "histogram": [[0, 1], [2000, 2], [8000, 1]]})
    assert points == [
        [1e-4, 1.0],
        [1e-4, 0.75],
        [0.002, 0.75],
        [0.002, 0.25],
        [0.008, 0.25],
        [0.008, 0.25],
    ]
