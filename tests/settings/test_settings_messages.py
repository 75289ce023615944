"""Each recorded wrong value is answered with all its problems: place, range, and the recorded words."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.settings import wrong_values
from tests.settings.message_table import differing, record, table
from tests.settings.wrong_values import (
    WrongValue,
    allowed_in,
    decoded,
    equal,
    load_cases,
    normal_place,
    replay,
    save_cases,
)

CASES = load_cases()
EACH = pytest.mark.parametrize(
    "case", CASES, ids=[f"{number}-{case.entry}" for number, case in enumerate(CASES)]
)


@EACH
def test_wrong_value_is_reported_as_recorded(case: WrongValue) -> None:
    now = replay(case)
    assert {normal_place(place) for place, _, _ in now} == {
        normal_place(place) for place, _, _ in case.expected
    }
    assert len(now) >= len(case.expected)
    ranges = {(normal_place(place), allowed_in(message)) for place, message, _ in case.expected}
    for place, allowed in ranges:
        messages = [message for other, message, _ in now if normal_place(other) == place]
        assert any(allowed in message for message in messages), (place, allowed)
    assert equal(now, case.expected), "see `python -m tests.settings.message_table`"


def test_every_difference_is_explained() -> None:
    unexplained = [case.text for case in CASES if bool(case.new) != bool(case.why)]
    needless = [case.text for case in CASES if case.new and equal(case.new, case.problems)]
    assert (unexplained, needless) == ([], [])


def test_cases_are_distinct_and_complete() -> None:
    texts = [(case.entry, case.text) for case in CASES]
    assert len(set(texts)) == len(texts) > 500
    assert [case.text for case in CASES if not case.problems] == []
    # The recording names no folder of the computer that it was made on.
    folders = (tempfile.gettempdir(), str(Path.home()))
    assert [case.text for case in CASES if any(f"{folder}/" in case.text for folder in folders)] == []


def test_table_shows_old_and_new_message_with_reason() -> None:
    case = WrongValue("Settings", [("workers", "must be | 1", "")], {"workers": 0}, why="clearer")
    text = table([case])
    assert "| Settings(workers=0) | workers: must be \\| 1 | workers: must be a whole number from 1" in text
    assert "| clearer |" in text
    assert text.endswith("0 of 1 wrong values have equal messages.")


def test_recorded_difference_is_expected_from_then_on() -> None:
    case = WrongValue("Settings", [("workers", "must be 1", "")], {"workers": 0})
    assert differing([case])
    assert record([case], "clearer", "no such text") == 0
    assert record([case], "clearer", "workers") == 1
    assert (case.why, case.expected) == ("clearer", replay(case))
    case.problems = case.expected
    case.new = [("workers", "must be 2", "")]
    assert record([case], "clearer", "") == 1
    assert (case.why, case.new) == ("", [])


def test_stored_file_is_as_it_would_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = wrong_values.FILE.read_text("utf-8")
    monkeypatch.setattr(wrong_values, "FILE", tmp_path / "copy.json")
    save_cases(CASES)
    assert wrong_values.FILE.read_text("utf-8") == stored


def test_stored_python_value_holds_no_other_call() -> None:
    assert decoded([{"python": "(b'x' * 3, {1: Path('a')})"}])[0][0] == b"xxx"
    for text in ("open('x')", "__import__('os')", "(1).real", "[x for x in 'ab']"):
        with pytest.raises(ValueError, match="malformed"):
            decoded({"python": text})
