"""Text of any content is escaped in a page."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.report.page.markup import Markup, clean, join, tag


@given(st.text(), st.text())
def test_no_text_becomes_markup(content: str, value: str) -> None:
    element = ElementTree.fromstring(tag("p", content, tag("b", "x"), title=value))
    assert [child.tag for child in element] == ["b"]
    shown = (element.text or "").replace("\ufffd", "")
    assert set(shown) <= set(content) | {"\n"}
    assert len(element.attrib["title"]) == len(value.replace("\r\n", "\n"))


def test_control_characters_are_marked() -> None:
    assert clean("a\x00b\x1b[31m\x85\ud800") == "a\ufffdb\ufffd[31m\ufffd\ufffd"
    assert clean("tab\tand\nline, 10 %, ü, 🐵") == "tab\tand\nline, 10 %, ü, 🐵"


def test_names_of_attributes() -> None:
    assert tag("th", "a", class_="b", aria_label='"c"') == '<th class="b" aria-label="&quot;c&quot;">a</th>'
    assert tag("svg", viewBox="0 0 1 1") == '<svg viewBox="0 0 1 1"></svg>'
    assert tag("meta", name="a") == '<meta name="a" />'


@pytest.mark.parametrize(
    ("children", "joined"),
    [((), ""), (("<", Markup("<b></b>")), "&lt;<b></b>"), ((tag("i"), "&"), "<i></i>&amp;")],
)
def test_markup_passes_and_text_is_escaped(children: tuple[str, ...], joined: str) -> None:
    assert join(*children) == joined
    assert isinstance(join(*children), Markup)
