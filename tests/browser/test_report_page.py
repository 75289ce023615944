"""The page of a report in a real browser: silent, complete in itself, readable in both schemes and widths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from autoglm_throttle.traffic.report.page import render
from tests.browser import visible_text
from tests.browser.chromium import Chromium
from tests.traffic.page.sample_document import document

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(document()), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [320, 400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_silent_and_readable(
    browser: Chromium, page: Path, scheme: Literal["light", "dark"], width: int
) -> None:
    browser.open(page, width=width, scheme=scheme)
    assert visible_text.faults(browser, page.as_uri()) == []
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (visible_text.luminance(ground) > 0.5) is (scheme == "light")


def test_every_plot_has_a_name_and_every_part_a_heading(browser: Chromium, page: Path) -> None:
    browser.open(page)
    names = browser.accessible("image")
    titles = browser.value("[...document.querySelectorAll('figure h3')].map(one => one.textContent)")
    assert len(titles) == 12
    assert [name.partition(". ")[0] for name in names] == titles
    assert {*titles, "In numbers", "How it was measured"} < set(browser.accessible("heading"))
    assert "Verdict" in browser.accessible("region")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("<script>1</script>", "log: .*script"),
        ("<img src='other.png' />", "log: .*other.png"),
        ("<p style='color: #f4f4f4'>faint words</p>", "too faint: .*faint words"),
        ("<div style='width: 3000px'>wide</div>", r"3\d\d\d px wide in a window of 1280 px"),
        ("<figure><svg class='plot'><text>a</text><text>b</text></svg></figure>", "a on b"),
    ],
)
def test_a_page_with_a_fault_is_found_out(browser: Chromium, tmp_path: Path, fault: str, told: str) -> None:
    path = tmp_path / "faulty.html"
    path.write_text(render(document()).replace("</body>", f"{fault}</body>"), encoding="utf-8")
    browser.open(path)
    found = visible_text.faults(browser, path.as_uri())
    assert any(re.search(told, one) for one in found), found
