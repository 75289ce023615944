"""The sources of the documentation site: links, navigation and API reference."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath

import pytest

from docs.generate import api
from docs.generate.pages import ROOT, Navigation, Pages, navigation, place
from docs.generate.site import api_entries, collect, stage
from tests.docs.pages import blocks


@cache
def files() -> dict[PurePosixPath, bytes]:
    return collect()


def pages_in(entries: Navigation) -> list[str]:
    return [page for _, below in entries for page in ([below] if isinstance(below, str) else pages_in(below))]


def test_navigation_has_every_page_once() -> None:
    named = pages_in(navigation(api_entries()))
    assert len(named) == len(set(named))
    own = {path for path in files() if path.suffix == ".md" and path.parts[0] != "source"}
    assert {PurePosixPath(name) for name in named if not name.startswith("source/")} == own


def test_navigation_leads_to_pages_that_exist() -> None:
    assert [name for name in pages_in(navigation(api_entries())) if PurePosixPath(name) not in files()] == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("README.md", "overview.md"),
        ("docs/guards.md", "guards.md"),
        ("docs/adr/README.md", "adr/README.md"),
        ("examples", "source/examples.md"),
        ("tests/resilience/conformance", "source/tests/resilience/conformance.md"),
        ("tests/resilience/conformance/README.md", "source/tests/resilience/conformance.md"),
        ("examples/k6.js", "source/examples/k6.js.txt"),
        (".github/workflows/ci.yml", "source/github/workflows/ci.yml.txt"),
        ("benchmarks/results/peers.json", "source/benchmarks/results/peers.json"),
    ],
)
def test_each_file_has_one_place(path: str, expected: str) -> None:
    assert place(ROOT / path) == PurePosixPath(expected)


@pytest.fixture
def linked() -> str:
    text = """
    [a](../README.md#limits) [b](guards.md) [c](https://example.com/x) [d](#here) `[e](gone.md)`
    <img src="demo.svg"> ![f](concepts.svg)
    """
    return Pages()._linked(text, ROOT / "docs", PurePosixPath("adr/page.md"))


def test_links_lead_to_places_of_the_site(linked: str) -> None:
    found = re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)\"", linked)
    assert [link or source for link, source in found] == [
        *("../overview.md#limits", "../guards.md", "https://example.com/x", "#here", "gone.md"),
        *("../demo.svg", "../concepts.svg"),
    ]


def test_link_to_nothing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"page\.md: the link gone\.md leads to nothing"):
        Pages()._linked("[a](gone.md)", ROOT / "docs", PurePosixPath("page.md"))


def test_sources_are_staged_beside_the_settings(tmp_path: Path) -> None:
    settings = stage(tmp_path)
    assert 'nav = [{"Which page?" = "index.md"}' in settings.read_text("utf-8")
    assert (tmp_path / "pages" / "assets" / "iframe-worker.js").exists()
    assert (tmp_path / "pages" / "live-page-dark.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize("name", api.MODULES)
def test_reference_has_each_public_name(name: str) -> None:
    module = import_module(name)
    text = files()[PurePosixPath(f"api/{name}.md")].decode()
    headings = re.findall(r"^## `(\w+)`$", text, re.MULTILINE)
    exported = getattr(module, "__all__", headings)
    assert headings
    assert sorted(headings) == sorted(exported)


@pytest.mark.parametrize("name", api.MODULES)
def test_reference_explains_each_public_name(name: str) -> None:
    entries = files()[PurePosixPath(f"api/{name}.md")].decode().split("\n## ")[1:]
    texts = {entry.partition("\n")[0]: re.sub(r"```.*?```", "", entry, flags=re.DOTALL) for entry in entries}
    unexplained = [title for title, text in texts.items() if not text.partition("\n")[2].strip()]
    assert unexplained in ([], ["`__version__`"])


def test_reference_has_the_modules_that_pages_import() -> None:
    text = "".join(block.text for block in blocks("python"))
    imported = set(re.findall(r"^from (autoglm_throttle[\w.]*) import", text, re.MULTILINE))
    assert imported <= set(api.MODULES)


def test_reference_lists_each_module() -> None:
    assert re.findall(r"\]\((.+)\.md\)", api.index_page()) == list(api.MODULES)


def function(text: str) -> api.Function:
    (node,) = ast.parse(text).body
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return node


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(self, a: int, *, b: str = 'x') -> None: ...", "def f(a: int, *, b: str = 'x') -> None"),
        ("async def f(*rest: int, **more: str): ...", "async def f(*rest: int, **more: str)"),
        ("def f(a, b=1, /, c=2): ...", "def f(a, b=1, c=2)"),
    ],
)
def test_signature_has_parameters_and_result(source: str, expected: str) -> None:
    assert api.signature(function(source)) == expected


def test_long_signature_has_a_line_for_each_parameter() -> None:
    long = ", ".join(f"parameter_{number}: int" for number in range(6))
    lines = api.signature(function(f"def f({long}) -> int: ...")).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("def f(", "    parameter_0: int,", ") -> int")


def test_sections_of_a_docstring_are_lists() -> None:
    sections = "    Args:\n        a: one,\n            two.\n\n    Raises:\n        ValueError: three.\n"
    text = api.text_of(f"Do ``x``.\n\n{sections}")
    assert text == "Do `x`.\n\n**Args**\n\n- `a`: one,\n    two.\n\n**Raises**\n\n- `ValueError`: three.\n"


def test_docstrings_below_attributes_are_shown() -> None:
    text = files()[PurePosixPath("api/autoglm_throttle.md")].decode()
    assert "- `taken_at_s: float`: Monotonic." in text
    assert "- `verified: bool = False`: Whether the identity was checked." in text
    assert "Annotated[" not in text.partition("## `BreakerSettings`")[2].partition("\n## ")[0]
