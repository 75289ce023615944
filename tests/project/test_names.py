"""Names and sentences of the package are plain: no metaphor, one meaning for each class name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "autoglm_throttle"

BANNED = frozenset(
    re.findall(
        r"\w+",
        """
        absence ask asked asker asking asks ballot bell bells blame board books card cards cast courier crew
        crowd crowded deed deputy desk door doorbell doubt doubts drowsy ending endings excuse excuses facts
        farewell fate fates forms gather greet guardian hear heard house inbox introduce judge judged
        judgement lab landing ledger lookout manner mend misfit news nobody noted outbox refusal refuse
        refused refuses refusing regime remark remarks rescue roster rung rungs said seldom sheet shelf shut
        somebody spared speak speaker spelled story tell teller telling tells tend till told trouble twin
        unheard upkeep whoever
        """,
    )
)
"""Words that name no concept of rate limiting, admission control, telemetry or load
testing; as parts of names."""

SETTINGS = frozenset({"log_refused_every_s", "refused_cache", "refused_cache_s"})
"""Flat names of settings, which stay as they are."""

CLAUSE = re.compile(
    r"\b(what|whoever|whom|who|whose|that which|so many|so much|as many|none of|nobody|somebody|whatever)\b",
    re.IGNORECASE,
)
SHARE_IN_CODE, SHARE_IN_PAGES = 0.04, 0.05

FILES = sorted(PACKAGE.rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

TREES = {path: ast.parse(path.read_text()) for path in FILES}

Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def parts_of(name: str) -> set[str]:
    """Split an identifier into its words, in lower case."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def names_in(tree: ast.Module) -> Iterator[str]:
    """Find the names that a module gives: classes, functions, parameters, attributes and variables."""
    for node in ast.walk(tree):
        if isinstance(node, Named):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def banned_names(file: str, tree: ast.Module) -> list[str]:
    """Find the names of a module, its own included, that hold a banned word."""
    names = {Path(file).stem, *names_in(tree)} - SETTINGS
    return sorted(name for name in names if parts_of(name) & BANNED)


def sentences(text: str) -> list[str]:
    """Split prose into sentences of three words or more; code, tables and headings are left out."""
    for pattern, flags in ((r"```.*?```", re.DOTALL), (r"^\|.*$", re.MULTILINE), (r"^#+ .*$", re.MULTILINE)):
        text = re.sub(pattern, "", text, flags=flags)
    text = re.sub(r"`[^`]*`", "X", text)
    found = [
        sentence
        for paragraph in re.split(r"\n\s*\n", text)
        for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()))
    ]
    return [sentence for sentence in found if len(sentence.split()) >= 3]


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Find the docstrings of a module, each without its list of arguments."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, Named)) and (docstring := ast.get_docstring(node)):
            yield docstring.split("Args:")[0]


def clauses(texts: Iterator[str]) -> tuple[float, list[str]]:
    """Return the share of sentences built on what or who, and these sentences."""
    every = [sentence for text in texts for sentence in sentences(text)]
    found = [sentence for sentence in every if CLAUSE.search(sentence)]
    return len(found) / len(every), found


def test_modules_have_no_banned_name() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): banned_names(path.name, tree) for path, tree in TREES.items()
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_folders_have_no_banned_name() -> None:
    folders = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_dir()}
    assert [folder for folder in folders if parts_of(folder) & BANNED] == []


def test_class_names_have_one_meaning() -> None:
    counts = Counter(
        node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in counts.items() if count > 1] == []


def test_docstrings_have_few_what_and_who_sentences() -> None:
    share, found = clauses(text for tree in TREES.values() for text in docstrings(tree))
    assert share <= SHARE_IN_CODE, found


def test_pages_have_few_what_and_who_sentences() -> None:
    share, found = clauses(path.read_text() for path in PAGES)
    assert share <= SHARE_IN_PAGES, found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class TheDoor: pass", ["TheDoor"]),
        ("def ask_store(): pass", ["ask_store"]),
        ("def check(told): pass", ["told"]),
        ("class A:\n    def __init__(self): self._heard = 1", ["_heard"]),
        ("NEWS = 1", ["NEWS"]),
        ("refused_cache_s = 1\ntask = 2\nsettled = 3", []),
    ],
)
def test_banned_words_are_found_in_every_kind_of_name(text: str, found: list[str]) -> None:
    assert banned_names("module.py", ast.parse(text)) == found
    assert banned_names("desk.py", ast.parse("")) == ["desk"]


def test_sentences_on_what_or_who_are_found() -> None:
    share, found = clauses(iter(["Whoever waits is called. A waiter is called.\n\n```\nwhat is this\n```"]))
    assert (share, found) == (0.5, ["Whoever waits is called."])
