"""The tables of the headline experiment in the docs, from made-up rounds."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.headline_rows import evaluation, part
from benchmarks.headline_rows.cases import HOLD_CASES, LEVELS, SHORT, Scale
from tests.benchmarks.test_headline_evaluation import rounds, slow

pytestmark = pytest.mark.slow

MACHINE = {"date": "2026-11-22", "processor": "a processor", "cores": 2, "python": "3.11.7", "versions": {}}


def kept(scale: Scale = SHORT) -> dict[str, Any]:
    return {**MACHINE, "scale": {"rounds": 3}, "rows": evaluation.rows(rounds(), scale)}


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_each_level_has_a_table_with_the_published_figures_first() -> None:
    text = part.headline_part(kept())
    heads = [row for row in text.splitlines() if "p99" in row]
    assert [cells(head)[0] for head in heads] == ["100/s", "1000/s", "3000/s", "5000/s"]
    published = [cells(row) for row in text.splitlines() if row.startswith("| published")]
    assert [(row[1], row[5], row[6]) for row in published] == [
        ("42 ms", "0.0%", "0 times"),
        ("118 ms", "0.3%", "12 times"),
        ("205 ms", "4.7%", "89 times"),
    ]
    assert "medians of 3 rounds" in text
    assert "a processor, 2 cores" in text


def test_rows_without_a_control_that_passed_have_no_figures() -> None:
    seen = rounds()
    for one in seen:
        slow(one, "headroom/fastapi")
    text = part.headline_part({**kept(), "rows": evaluation.rows(seen, SHORT)})
    last = [cells(row) for row in text.splitlines() if "(FastAPI app)" in row][-1]
    assert last[1:] == ["-"] * 10 + ["inconclusive"]


def test_rows_of_the_nominal_rates_are_no_comparison() -> None:
    rows = [cells(row) for row in part.headline_part(kept()).splitlines() if row.startswith("| ")]
    assert all(len(row) == 12 for row in rows)
    assert not any("1000/500/100" in row[0] for row in rows)


def test_summary_shows_the_control_and_the_loaded_rows() -> None:
    found = kept(Scale(LEVELS, 3.0, 3.0, 3, HOLD_CASES))
    rows = [cells(row) for row in part.summary_part(found).splitlines() if row.startswith("| ")][1:]
    assert [row[0].partition(";")[0].partition(":")[0] for row in rows] == [
        "control",
        "the service alone",
        "autoglm_throttle, in memory",
        "autoglm_throttle, users on Redis",
    ]
    bare = rows[1]
    assert bare[4] == "2000 ms"
    assert bare[11] == "fail"
    assert "5000/s" in part.hold_part(found)
