"""Links of the Markdown files: each leads to a file of the repository, and its anchor to a heading there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FILES = sorted(
    path for folder in ("docs", "tests", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.md")
) + sorted(ROOT.glob("*.md"))

CODE = re.compile(r"^(`{3,}).*?^\1$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"\]\(([^)\s]+)\)|\bsrc(?:set)?=\"([^\"]+)\"")


def slug(heading: str) -> str:
    """The anchor of a heading, as web pages of repositories make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page; a heading that occurs again gets a number."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def targets(text: str) -> Iterator[str]:
    """The links and pictures of a page, without those to other hosts."""
    for link, source in TARGET.findall(CODE.sub("", text)):
        target = link or source
        if not re.match(r"[a-z]+:", target):
            yield target


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for target in targets(text):
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", FILES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert broken(page, page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](gone.md)", ["gone.md"]),
        ("[a](guards.md#no-such-heading)", ["guards.md#no-such-heading"]),
        ("[a](#gone)", ["#gone"]),
        ('<img src="gone.png">', ["gone.png"]),
        ("[a](guards.md#benchmarks), [b](https://example.com/x#y), `[c](gone.md)`", []),
    ],
)
def test_broken_links_are_found(text: str, found: list[str]) -> None:
    assert broken(ROOT / "docs" / "index.md", text) == found


def test_equal_headings_have_numbered_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `A b`\n\n## Use\n\n## Use\n\n```text\n# no heading\n```\n")
    assert anchors(page) == {"a-b", "use", "use-1"}
