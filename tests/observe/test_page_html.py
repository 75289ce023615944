"""The live page without JavaScript: escaped text, and plots in SVG."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from autoglm_throttle.observe.page.html import HEIGHT, page, render
from autoglm_throttle.observe.page.plots import Plot, PlotSpec
from autoglm_throttle.observe.page.text import Section, section, table

HOSTILE = "<script>alert('1')</script>\"&"


def plot(*series: tuple[str, tuple[str, ...]], top: float | None = None, kind: str = "line") -> Plot:
    spec = PlotSpec("a", "now", "A", "%", lambda _: {}, top, kind)  # type: ignore[arg-type]
    return Plot(spec, ((85.0, "85 %: rates at 70%"),) if top else (), series)


def rendered(*plots: Plot, sections: tuple[Section, ...] = (section("now", "Now"),)) -> str:
    return render("Limiting: <b>.", sections, plots, 0.0, 5.0)


class Checked(HTMLParser):
    """Reads a page: its elements are closed in order, and none has a style or a handler."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.open.append(tag)
        for name, value in attrs:
            assert name != "style"
            assert not name.startswith("on")
            if name in {"href", "src", "action"}:
                assert re.match(r"data:,$|#[a-z]+$|[a-z]+(\.(css|js)\?v=[0-9.]+)?$", value or ""), value

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_text_from_outside_stays_text() -> None:
    one = section("now", "Now", [(HOSTILE, HOSTILE)], [table(HOSTILE, f"a|{HOSTILE}", [[HOSTILE, HOSTILE]])])
    read = Checked(rendered(plot((HOSTILE, ("1", "2"))), sections=(one,)))
    assert read.seen.count("script") == 2  # uplot.js and page.js
    assert read.text.count(HOSTILE) == 7
    assert "Limiting: <b>." in read.text


def test_the_page_refreshes_itself_without_javascript() -> None:
    assert '<noscript><meta http-equiv="refresh" content="5" /></noscript>' in rendered()
    assert "As of <time>1970-01-01 00:00:00 UTC</time>" in rendered()


def test_a_page_without_a_script_is_complete() -> None:
    read = Checked(page("T & <b>", "<p>main</p>"))
    assert "script" not in read.seen
    assert "T & <b>" in read.text


@pytest.mark.parametrize(
    ("values", "path"),
    [
        (("0", "50", "100"), "M0.0 200.0h0L500.0 100.0L1000.0 0.0"),
        (("0", "null", "100"), "M0.0 200.0h0M1000.0 0.0h0"),
        (("null", "200"), "M1000.0 0.0h0"),
        (("50",), "M0.0 100.0h0"),
        (("null",), ""),
    ],
)
def test_lines_have_gaps_where_values_are_missing(values: tuple[str, ...], path: str) -> None:
    assert f'<path class="line s0" d="{path}" />' in rendered(plot(("x", values), top=100.0))


def test_bands_are_lines_with_text() -> None:
    text = rendered(plot(("x", ("1",)), top=100.0))
    assert f'y1="{0.15 * HEIGHT:g}" y2="{0.15 * HEIGHT:g}"' in text
    assert '<p class="axis">0 to 100 %; 85 %: rates at 70%</p>' in text
    assert 'aria-label="A, 0 to 100 %; 85 %: rates at 70%"' in text


@pytest.mark.parametrize(("values", "top"), [(("2", "8"), "8"), (("0", "0"), "1"), (("null",), "1")])
def test_an_axis_without_an_end_reaches_the_largest_value(values: tuple[str, ...], top: str) -> None:
    assert f'<p class="axis">0 to {top} %</p>' in rendered(plot(("x", values)))


def test_a_legend_has_the_newest_values() -> None:
    read = Checked(rendered(plot(("x", ("1", "2.5")), ("y", ("3", "null")))))
    assert "x: 2.5 %" in read.text
    assert "y: –" in read.text


def test_a_strip_has_a_rectangle_for_each_run_of_a_state() -> None:
    text = rendered(plot(("GPU 0", ('"idle"', '"idle"', "null", '"stalled"')), kind="strip"))
    Checked(text)
    assert re.findall(r'<rect class="state (\w+)" x="([\d.]+)" y="0" width="([\d.]+)"', text) == [
        ("idle", "0.0", "500.0"),
        ("stalled", "750.0", "250.0"),
    ]
    assert 'aria-label="A: GPU 0: stalled"' in text


def test_sections_are_linked_and_named() -> None:
    text = rendered(sections=(section("now", "Now"), section("gpu", "GPU")))
    assert re.findall(r'<li><a href="#(\w+)">', text) == ["now", "gpu"]
    assert '<section id="gpu" aria-labelledby="gpu-title"><h2 id="gpu-title">GPU</h2></section>' in text
    one = section("now", "Now", [("a", "b")], [table("T", "x", [["y"]])])
    assert 'role="region" aria-label="T" tabindex="0"' in rendered(sections=(one,))
