"""The built documentation site: no other host, links that lead somewhere, a search that needs no server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.generate.site import build
from tests.browser.chromium import Chromium

pytestmark = pytest.mark.slow

LOADED = {
    **dict.fromkeys(("script", "img", "source", "iframe", "embed", "audio", "video"), ("src", "srcset")),
    "link": ("href",),
    "object": ("data",),
}
"""Elements that load something, and the attributes that name it."""

ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)")

RESULTS = """
[...document.querySelectorAll('*')].filter((one) => one.shadowRoot)
  .flatMap((one) => [...one.shadowRoot.querySelectorAll('a')]).map((link) => link.href)
"""


class PageParser(HTMLParser):
    """The links of a page, the files that it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.loads += [given[name] for name in LOADED.get(tag, ()) if name in given]
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    assert build(folder) > 90
    return folder


@cache
def parsed(path: Path) -> PageParser:
    return PageParser(path.read_text("utf-8"))


def foreign(site: Path) -> list[str]:
    """Files of other hosts that a page or a style sheet of the site loads."""
    found = []
    for path in site.rglob("*.html"):
        page = PageParser(path.read_text("utf-8"))
        found += [f"{path.name}: {one}" for one in page.loads if ELSEWHERE.match(one)]
    for path in site.rglob("*.css"):
        found += [f"{path.name}: {one}" for one in IN_STYLES.findall(path.read_text("utf-8"))]
    return found


def broken(site: Path, path: Path) -> Iterator[str]:
    """The links and files of a page that are not in the site."""
    page = parsed(path)
    for target in (*page.links, *page.loads):
        if re.match(r"[a-z]+:", target, re.IGNORECASE):
            continue
        parts = urlsplit(target)
        file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        exists = file.is_relative_to(site) and file.is_file()
        has_anchor = parts.fragment and file.suffix == ".html"
        if not exists or (has_anchor and unquote(parts.fragment) not in parsed(file).anchors):
            yield target


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    assert foreign(site) == []


def test_file_of_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<script src="//x.test/a.js"></script><img src="b.png">')
    (tmp_path / "page.css").write_text(
        "a { background: url(https://x.test/c.png) } b { background: url(d.png) }"
    )
    assert foreign(tmp_path) == ["page.html: //x.test/a.js", "page.css: https://x.test/c.png"]


def test_every_link_and_anchor_of_the_site_exists(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]  # read at any address
    found = {path.relative_to(site).as_posix(): list(broken(site, path)) for path in pages}
    assert {name: targets for name, targets in found.items() if targets} == {}


def test_broken_links_of_a_page_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<h1 id="here">x</h1><a href="#here"></a><a href="#gone"></a><a href="../out.html"></a>')
    assert list(broken(tmp_path, page)) == ["#gone", "../out.html"]


def test_no_markup_is_left_as_text(site: Path) -> None:
    left = []
    for path in site.rglob("*.html"):
        article = re.search(r"<article.*</article>", path.read_text("utf-8"), re.DOTALL)
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", article[0] if article else "", flags=re.DOTALL)
        paragraphs = re.findall(r"<p>(.*?)</p>", text, re.DOTALL)
        marks = re.compile(r"^(- |\|)|\]\(|```", re.MULTILINE)
        left += [f"{path.name}: {paragraph}" for paragraph in paragraphs if marks.search(paragraph)]
    assert left == []


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("browser")) as one:
        yield one


def until(browser: Chromium, expression: str) -> None:
    give_up_s = time.monotonic() + 20.0
    while not browser.value(expression):
        assert time.monotonic() < give_up_s, (expression, browser.said)


@pytest.mark.server
@pytest.mark.parametrize("page", ["index.html", "adr/index.html"])
def test_search_finds_pages_without_a_server(site: Path, browser: Chromium, page: str) -> None:
    browser.open(site / page)
    until(browser, "document.querySelector('iframe')?.contentWindow.importScripts !== undefined")
    browser.value("document.querySelector('#__search').click()")
    until(browser, "[...document.querySelectorAll('*')].some((one) => one.shadowRoot?.activeElement)")
    browser.call("Input.insertText", text="dry run would reject")
    until(browser, f"{RESULTS}.length > 0")
    found = {urlsplit(url).path for url in browser.value(RESULTS)}
    assert str(site / "getting-started.html") in found
    assert all(Path(unquote(path)).exists() for path in found)
    assert browser.said == []


@pytest.mark.server
@pytest.mark.parametrize("width", [320, 1280])
def test_pages_load_only_files_and_fit_the_window(site: Path, browser: Chromium, width: int) -> None:
    for name in ("overview.html", "settings.html", "concepts.html", "api/autoglm_throttle.html"):
        browser.open(site / name, width=width, scheme="dark")
        until(browser, "document.readyState === 'complete'")
        assert [url for url in browser.asked if not url.startswith((site.as_uri(), "data:"))] == []
        assert browser.said == []
        page, window = browser.value("[document.documentElement.scrollWidth, window.innerWidth]")
        assert page <= window, name
