"""The control rule, fed with made-up rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.headline_rows.control import (
    Point,
    Round,
    done_ratio,
    evaluate,
    is_counted,
    majority,
    order,
    p99_ratio,
)

CONTROL = "control"
GOOD = Point(1.0, 0.1, 0.0)
BAD = Point(0.5, 3.0, 0.2)


def rounds(*letters: str) -> list[Round]:
    """``gb``: the control was good and the row bad; ``-``: it did not run."""
    points = {"g": GOOD, "b": BAD}
    return [
        {name: points[letter] for name, letter in zip((CONTROL, "row"), one, strict=True) if letter != "-"}
        for one in letters
    ]


@pytest.mark.parametrize(
    ("point", "passes"),
    [
        (Point(0.99, 0.499, 0.0049), True),
        (Point(0.989, 0.1, 0.0), False),
        (Point(1.0, 0.5, 0.0), False),
        (Point(1.0, 0.1, 0.005), False),
        (Point(None, 0.1, 0.0), False),
        (Point(1.0, None, 0.0), False),
        (Point(1.0, 0.1, None), False),
        (Point(1.0, 0.1, 0.0, rejects_too_many=True), False),  # FIELD.md, row 35
    ],
)
def test_a_row_passes_a_round_within_all_three_bounds(point: Point, passes: bool) -> None:
    assert point.passes is passes


@pytest.mark.parametrize(
    ("letters", "outcome", "counted", "passed", "status"),
    [
        (("gg", "gg", "gg", "gg", "gg"), "pass", 5, 5, 0),
        (("gg", "gg", "gg", "gb", "gb"), "pass", 5, 3, 0),
        (("gg", "gg", "gb", "gb", "gb"), "fail", 5, 2, 1),
        (("gg", "gg", "gg", "bg", "bb"), "pass", 3, 3, 0),
        (("gg", "gg", "gb", "bg", "bg"), "fail", 3, 2, 1),
        (("gg", "gg", "bg", "bg", "bg"), "inconclusive", 2, 2, 3),
        (("gb", "gb", "bb", "bb", "bb"), "inconclusive", 2, 0, 3),
        (("g-", "g-", "g-", "gg", "gg"), "fail", 5, 2, 1),
        (("-g", "-g", "-g", "gg", "gg"), "inconclusive", 2, 2, 3),
        (("gg", "gg", "bg"), "pass", 2, 2, 0),
        (("gg", "bg", "bg"), "inconclusive", 1, 1, 3),
        ((), "inconclusive", 0, 0, 3),
    ],
)
def test_the_judgement(
    letters: tuple[str, ...], outcome: str, counted: int, passed: int, status: int
) -> None:
    told = evaluate(rounds(*letters), "row", CONTROL)
    assert (told.outcome, told.rounds, told.counted, told.passed, told.status) == (
        outcome,
        len(letters),
        counted,
        passed,
        status,
    )
    assert told.text.startswith(outcome)


def test_number_of_required_passes_is_configurable() -> None:
    assert evaluate(rounds("gg", "gb", "gb"), "row", CONTROL, needed=1).outcome == "pass"
    assert evaluate(rounds("gg", "gg", "gg"), "row", CONTROL, needed=4).outcome == "inconclusive"


def test_control_is_evaluated_like_any_row() -> None:
    assert evaluate(rounds("gb", "gb", "bb"), CONTROL, CONTROL).outcome == "pass"


@pytest.mark.parametrize(("count", "needed"), [(1, 1), (2, 2), (3, 2), (5, 3), (10, 6)])
def test_more_than_half_must_pass(count: int, needed: int) -> None:
    assert majority(count) == needed


@given(st.lists(st.sampled_from(["gg", "gb", "bg", "bb", "g-", "-g"]), min_size=1, max_size=9))
def test_a_round_without_a_passing_control_decides_nothing(letters: list[str]) -> None:
    told = evaluate(rounds(*letters), "row", CONTROL)
    counted = [one for one in rounds(*letters) if is_counted(one, CONTROL)]
    assert told.counted == len(counted)
    assert (told.outcome == "pass") == (told.passed >= told.needed)
    assert (told.outcome == "inconclusive") == (told.counted < told.needed)
    better = evaluate(
        [{**one, "row": GOOD} if not is_counted(one, CONTROL) else one for one in rounds(*letters)],
        "row",
        CONTROL,
    )
    assert (better.outcome, better.passed) == (told.outcome, told.passed)


def test_ratios_are_to_the_control_of_the_same_round() -> None:
    made_up: list[Round] = [
        {CONTROL: Point(1.0, 0.1, 0.0), "row": Point(0.5, 0.2, 0.0)},
        {CONTROL: Point(0.5, 0.1, 0.0), "row": Point(0.5, 0.4, 0.0)},
        {CONTROL: Point(0.8, 0.1, 0.0), "row": Point(0.6, None, 0.0)},
        {"row": GOOD},
        {CONTROL: Point(0.0, 0.0, 0.0), "row": GOOD},
    ]
    done, p99 = done_ratio(made_up, "row", CONTROL), p99_ratio(made_up, "row", CONTROL)
    assert done is not None
    assert p99 is not None
    assert [done.median, done.least, done.greatest] == pytest.approx([0.75, 0.5, 1.0])
    assert [p99.median, p99.least, p99.greatest] == pytest.approx([3.0, 2.0, 4.0])
    assert str(done) == "0.750 (0.500..1.000)"
    assert done_ratio(made_up, "another", CONTROL) is None


@given(st.integers(min_value=1, max_value=7), st.integers(min_value=0, max_value=50))
def test_each_row_goes_first_in_its_turn(count: int, number: int) -> None:
    rows = [f"row {place}" for place in range(count)]
    assert sorted(order(rows, number)) == sorted(rows)
    assert [order(rows, number + turn)[0] for turn in range(count)] == order(rows, number)
