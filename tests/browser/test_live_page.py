"""The live page in a real browser: silent, readable in both schemes and widths, and up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from autoglm_throttle.observe import host
from tests.browser import visible_text
from tests.browser.chromium import Chromium
from tests.browser.served_page import HOSTILE, ServedPage, served_page
from tests.observe.scraping import HOST

pytestmark = [pytest.mark.server, pytest.mark.slow]

SECTIONS = [
    "now",
    "alerts",
    "gpu",
    "classes",
    "queue",
    "users",
    "engines",
    "guards",
    "latency",
    "host",
    "workers",
    "configuration",
]
SHADES = "[...document.querySelectorAll('#latency td')].map((cell) => cell.className)"
DRAWN = "document.querySelectorAll('.uplot canvas').length"
SENTENCE = "document.getElementById('sentence').textContent"
NEWEST = "document.querySelector('#plot-admitted li span:last-child').textContent"

FOCUS = """
(() => {
  const { activeElement: focused } = document;
  return [focused.closest('section')?.id ?? focused.tagName, getComputedStyle(focused).outlineStyle];
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(scope="module")
def served() -> Iterator[ServedPage]:
    with pytest.MonkeyPatch.context() as patch, served_page() as one:
        # Rates of the real host are known from a second after the reading before on: that changes the page.
        patch.setattr(host, "_monitor", lambda: SimpleNamespace(current=lambda: HOST))
        one.step(12, requests=10)  # an alert that begins or ends in a test would change more than texts
        yield one


def until(browser: Chromium, expression: str) -> None:
    """Wait until a JavaScript expression is true."""
    give_up_s = time.monotonic() + 20.0
    while not browser.value(expression):
        assert time.monotonic() < give_up_s, (expression, browser.said, browser.value(SENTENCE))


def faults(browser: Chromium, served: ServedPage) -> list[str]:
    """Everything that is wrong with the open page: messages, foreign requests, contrast, width."""
    found = [f"asked for {asked}" for asked in browser.asked if not asked.startswith(served.url)]
    texts = visible_text.pairs(browser, visible_text.TEXTS)
    if len(texts) < 300:
        found.append(f"only {len(texts)} texts were found")
    found += [f"too faint: {pair}" for pair in texts if pair.contrast < visible_text.TEXT_CONTRAST]
    shapes = visible_text.pairs(browser, SHAPES)
    found += [f"too faint: {pair}" for pair in shapes if pair.contrast < visible_text.SHAPE_CONTRAST]
    page, window = browser.value(visible_text.WIDTHS)
    if page > window:
        found.append(f"{page} px wide in a window of {window} px")
    return found + browser.said


SHAPES = """
[...document.querySelectorAll('.key, .line, .state')].map((shape) => {
  const style = getComputedStyle(shape), sheet = getComputedStyle(shape.closest('figure')).backgroundColor;
  const name = shape.getAttribute('class');
  const [kind] = name.split(' '), { key, line } = { key: style.backgroundColor, line: style.stroke };
  return [name, { key, line }[kind] ?? style.fill, sheet];
}).filter(([name, color]) => color !== 'rgba(0, 0, 0, 0)')
"""


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_silent_and_readable(
    browser: Chromium, served: ServedPage, scheme: Literal["light", "dark"], width: int
) -> None:
    browser.visit(served.url, width=width, scheme=scheme)
    until(browser, f"{DRAWN} >= 8")
    assert faults(browser, served) == []
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (visible_text.luminance(ground) > 0.5) is (scheme == "light")


def test_sections_are_in_order_and_names_stay_text(browser: Chromium, served: ServedPage) -> None:
    browser.visit(served.url)
    until(browser, f"{DRAWN} >= 8")
    shown = browser.value("[...document.querySelectorAll('section')].map((one) => one.id)")
    assert shown == SECTIONS
    assert HOSTILE in browser.value("document.getElementById('guards').textContent")
    shades = set(browser.value(SHADES))
    assert {"", "shade1", "shade5"} <= shades
    assert browser.value("document.querySelectorAll('main script, svg script').length") == 0
    assert browser.value(SENTENCE) == served.document()["sentence"]
    assert browser.value("document.title") == served.document()["sentence"]
    names = browser.accessible("image")
    assert any(name.startswith("GPU utilization. GPU 0: 88 %, GPU 1: 62 %") for name in names)
    assert len(names) == browser.value("document.querySelectorAll('figure').length")
    assert "Circuit breakers" in browser.accessible("region")


def test_each_step_arrives_by_itself(browser: Chromium, served: ServedPage) -> None:
    browser.visit(served.url)
    until(browser, f"{DRAWN} >= 8")
    browser.value(
        "document.querySelectorAll('section')[0] === (window.kept = document.querySelector('section'))"
    )
    served.step(requests=10)
    until(browser, f"{NEWEST} === 'high: 0.4 /s'")
    # Texts have changed in place: focus, selection and scrolling stay.
    assert browser.value("window.kept === document.querySelector('section')")
    assert browser.value(SENTENCE) == served.document()["sentence"]
    assert [asked for asked in browser.asked if asked.endswith("data.json")] == [f"{served.url}data.json"]
    assert browser.said == []


def test_a_new_row_leaves_the_other_sections_alone(browser: Chromium, served: ServedPage) -> None:
    browser.visit(served.url)
    until(browser, f"{DRAWN} >= 8")
    browser.value("(window.kept = document.querySelector('#classes .scroll')).focus()")
    browser.value("window.guards = document.querySelector('#guards table')")
    with served.throttle.guard("a second one"):
        pass
    served.step()
    until(browser, "document.getElementById('guards').textContent.includes('a second one')")
    assert browser.value("document.activeElement === window.kept && window.kept.isConnected")
    assert not browser.value("window.guards.isConnected"), "the section that has changed is made anew"
    assert (
        browser.value("[...document.querySelectorAll('#sections > section')].map(({ id }) => id)") == SECTIONS
    )


def test_without_events_the_page_polls(browser: Chromium, served: ServedPage) -> None:
    browser.call("Network.setBlockedURLs", urls=["*/events"])
    try:
        browser.visit(served.url)
        until(browser, f"{DRAWN} >= 8")
        served.step(requests=20)
        until(browser, f"{NEWEST} === 'high: 0.8 /s'")
        assert len([asked for asked in browser.asked if asked.endswith("data.json")]) >= 2
    finally:
        browser.call("Network.setBlockedURLs", urls=[])


def test_all_is_reached_by_the_keyboard(browser: Chromium, served: ServedPage) -> None:
    browser.visit(served.url)
    until(browser, f"{DRAWN} >= 8")
    reached = []
    for _ in range(40):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        place, outline = browser.value(FOCUS)
        if place == "BODY":
            break
        assert outline == "solid", place
        reached.append(place)
    links = browser.value("document.querySelectorAll('a').length")
    assert reached[:links] == ["A"] * links
    with_tables = browser.value("[...document.querySelectorAll('section:has(table)')].map((one) => one.id)")
    assert list(dict.fromkeys(reached[links:])) == with_tables


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_without_javascript_the_page_is_complete(
    browser: Chromium, served: ServedPage, scheme: Literal["light", "dark"], width: int
) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.visit(served.url, width=width, scheme=scheme)
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert faults(browser, served) == []
    assert browser.value("document.querySelectorAll('svg.plot').length") >= 9
    assert browser.value("document.querySelectorAll('.uplot').length") == 0
    assert "shade5" in browser.value(SHADES)


def test_a_page_without_data_says_so(browser: Chromium, served: ServedPage) -> None:
    browser.visit(served.url)
    until(browser, f"{DRAWN} >= 8")
    browser.value("latest.at -= 60, showAge()")
    assert browser.value("document.getElementById('age').textContent").startswith("Stale: no data since ")


@pytest.mark.parametrize(
    "fault",
    [
        "console.log('x')",
        "document.body.insertAdjacentHTML('beforeend', "
        "'<p class=faint>faint words</p>'), document.querySelector('.faint').style.color = '#f4f4f4'",
        "document.body.insertAdjacentHTML('beforeend', '<script>1</script><img src=\"http://127.0.0.1:9/x\">')",
    ],
)
def test_a_page_with_a_fault_is_found_out(
    browser: Chromium, served: ServedPage, fault: str, tmp_path: Path
) -> None:
    browser.visit(served.url)
    until(browser, f"{DRAWN} >= 8")
    browser.value(f"{fault}, 0")
    until(browser, "true")
    assert faults(browser, served) != []
