"""The lines that type checkers get are right or wrong at run time as well, and a missing report is seen.

`make check` runs the checkers themselves: they are no part of the environment of the tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autoglm_throttle import ConfigError
from tests.project.typed_user import FIRST, IMPORTS, RIGHT, WRONG, Place, faults, text_of


@pytest.fixture(autouse=True, scope="module")
def names() -> dict[str, object]:
    """The names that the file of a user imports."""
    made: dict[str, object] = {}
    exec(IMPORTS, made)
    return made


@pytest.mark.parametrize("line", WRONG)
def test_wrong_line_is_a_problem_at_run_time(line: str, names: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        eval(line, names)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("line", RIGHT)
def test_right_line_runs(line: str, names: dict[str, object]) -> None:
    assert eval(line, names) is not None


def test_wrong_lines_are_twenty_and_in_one_place() -> None:
    assert len(set(WRONG)) == len(set(RIGHT)) == 20
    assert text_of(WRONG).splitlines()[FIRST - 1] == f"VALUE_0 = {WRONG[0]}"


def test_missing_and_needless_reports_are_named() -> None:
    def places(folder: Path) -> set[Place]:
        wrong = {("wrong.py", FIRST + number) for number in range(1, 20)}
        return {*wrong, ("right.py", FIRST + 1)} if (folder / "right.py").exists() else set()

    assert faults({"mypy": places}) == [
        f"mypy reports: VALUE_1 = {RIGHT[1]}",
        f"mypy does not report: VALUE_0 = {WRONG[0]}",
    ]
