"""The settings page says what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from autoglm_throttle.settings import settings_table
from autoglm_throttle.settings.groups import GROUP_OF, GROUPS
from docs.generate.settings import DESIGN, heading, meanings, settings_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "settings.md"
COMMAND = "python -m docs.generate.settings > docs/settings.md"


def section(group: str) -> str:
    return settings_page().partition(f"\n## {heading(group)}\n")[2].partition("\n## ")[0]


def cells(name: str) -> list[str]:
    (row,) = re.findall(rf"^\| `{name}`(?: \*)? \|.*$", section(GROUP_OF[name]), re.MULTILINE)
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_page_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "docs.generate.settings"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert made.stdout == PAGE.read_text("utf-8"), f"run: {COMMAND}"
    assert f"Made by `{COMMAND}`" in made.stdout


def test_page_mentions_no_env_file_by_default() -> None:
    page = settings_page()
    assert "a line of a `.env` file" not in page
    assert "No `.env` file is searched for." in page


def test_page_has_one_section_for_each_group_in_order() -> None:
    headings = re.findall(r"^## (.+)$", settings_page(), re.MULTILINE)
    assert headings == [*map(heading, GROUPS), "Routes, plans and guards"]


@pytest.mark.parametrize("group", GROUPS)
def test_section_has_the_settings_of_its_group_in_order(group: str) -> None:
    named = re.findall(r"^\| `(\w+)`", section(group), re.MULTILINE)
    assert named == [name for name, own in GROUP_OF.items() if own == group]


@pytest.mark.parametrize("name", settings_table())
def test_row_agrees_with_the_declaration(name: str) -> None:
    known = settings_table()[name]
    setting, variable, allowed, default, about, origin = cells(name)
    assert setting == f"`{name}`" + (" *" if known.starred else "")
    assert variable == ("file and code only" if known.file_only else f"`AUTOGLM_THROTTLE_{name.upper()}`")
    assert allowed == known.field_type.allowed
    assert default == (f"`{known.default_text}`" if known.default_text else "not set")
    assert about.endswith(".")
    assert origin
    assert not set("[]") & set(about + origin)


@pytest.mark.parametrize("group", GROUPS)
def test_every_field_has_a_docstring(group: str) -> None:
    assert all(meaning.text for meaning in meanings(group).values())


def test_origin_stands_in_brackets_or_is_the_design() -> None:
    assert meanings("gpu")["sample_interval_s"].origin == "founding figure"
    assert meanings("observe")["metrics"].origin == DESIGN


def test_page_counts_variables_and_settings() -> None:
    variables = sum(not known.file_only for known in settings_table().values())
    assert f"{variables} of the {len(settings_table())}\n" in settings_page()


def test_names_in_capitals_are_variables() -> None:
    """A key of the file must not look like a variable."""
    keys = {name.upper() for name, known in settings_table().items() if known.file_only}
    named = re.findall(r"\b[A-Z][A-Z0-9_]{2,}\b", settings_page().replace("AUTOGLM_THROTTLE_", ""))
    assert keys.isdisjoint(named)
