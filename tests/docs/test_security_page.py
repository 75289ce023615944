"""Each promise of docs/security.md names tests that exist in the file beside them."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "security.md"
ROWS = re.findall(r"^\| (.+?) \| (`test_.+\)) \|$", PAGE.read_text("utf-8"), re.MULTILINE)


def test_page_has_its_promises() -> None:
    table = PAGE.read_text("utf-8").partition("| promise |")[2].partition("\n\n")[0]
    assert len(ROWS) == table.count("\n| ") > 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_promise_names_existing_tests(row: tuple[str, str]) -> None:
    names, (path,) = re.findall(r"`(\w+)`", row[1]), re.findall(r"\]\(\.\./(.+?)\)", row[1])
    text = (ROOT / path).read_text("utf-8")
    assert names
    for name in names:
        assert re.search(rf"^(async )?def {name}\b|^    def {name}\b", text, re.MULTILINE), name
