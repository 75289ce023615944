"""The settings page says what the code does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from autoglm_throttle.settings.field import setting_of
from pydantic.fields import FieldInfo

from autoglm_throttle.settings import settings_table
from docs.generate.settings import HEADINGS, settings_page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "autoglm_throttle.settings"], capture_output=True, text=True, check=True
    )
    assert made.stdout == PAGE.read_text("utf-8"), (
        "run: python -m autoglm_throttle.settings > docs/settings.md"
    )


def test_page_mentions_no_env_file_by_default() -> None:
    page = settings_page()
    assert "a line of a `.env` file" not in page
    assert "No `.env` file is searched for." in page


def test_every_setting_stands_on_it_once() -> None:
    page = settings_page()
    for name in settings_table:
        shown = name if settings_table()[name].tuning else name.upper()
        assert page.count(f"\n| `{shown}`") == 1
    assert set(HEADINGS) <= set(settings_table)
    assert next(iter(HEADINGS)) == next(iter(settings_table))


def test_constants_stand_in_a_section_of_their_own_at_the_end() -> None:
    kinds = [known.file_only for known in settings_table().values()]
    assert kinds == sorted(kinds)
    before, rest = settings_page().split(f"## {HEADINGS['inflight_start']}")
    section = rest.partition("\n## ")[0]
    assert "as environment variables they are errors" in section
    for name, known in settings_table().items():
        assert (f"\n| `{name}`" in section) is known.file_only
        assert (f"\n| `{name.upper()}`" in before) is not known.file_only


def test_no_cell_breaks_its_row() -> None:
    rows = [line for line in settings_page().splitlines() if line.startswith("| `") and line.count("|") != 3]
    assert {row.count("|") for row in rows} == {6}


def test_a_setting_without_a_form_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="odd is declared without a form"):
        setting_of("odd", FieldInfo(default=1))
