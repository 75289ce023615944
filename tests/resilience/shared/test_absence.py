"""When a store counts as lost, when it is asked again, when it is back."""

from __future__ import annotations

import pytest

from autoglm_throttle.resilience.shared.absence import FAILURES, JITTER, LONGEST_S, Absence


def plain() -> Absence:
    return Absence(jitter=lambda: 1.0)


def test_it_takes_failures_in_a_row() -> None:
    absence = plain()
    for _ in range(3):
        assert [absence.failed(1.0) for _ in range(FAILURES - 1)] == [False, False]
        assert not absence.answered()
        assert absence.up
    assert [absence.failed(1.0) for _ in range(FAILURES)] == [False, False, True]
    assert not absence.up


def test_a_final_one_is_enough() -> None:
    absence = plain()
    assert absence.failed(5.0, final=True)
    assert (absence.up, absence.since_s, absence.due_s) == (False, 5.0, 6.0)
    assert "since 5.000, asked at 6.000" in repr(absence)


def test_the_pauses_double_up_to_the_longest() -> None:
    absence = plain()
    absence.failed(0.0, final=True)
    pauses = [absence.due_s]
    for _ in range(6):
        now = absence.due_s
        assert not absence.failed(now, final=True)
        pauses.append(absence.due_s - now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, LONGEST_S, LONGEST_S, LONGEST_S]
    assert absence.since_s == 0.0


def test_what_fails_late_and_is_no_probe_puts_nothing_off() -> None:
    absence = plain()
    absence.failed(0.0, final=True)
    assert not absence.failed(0.5)
    assert absence.due_s == 1.0


def test_a_return_begins_anew() -> None:
    absence = plain()
    absence.failed(0.0, final=True)
    absence.failed(1.0)
    assert absence.answered()
    assert absence.up
    assert repr(absence) == "Absence(up)"
    assert not absence.failed(9.0), "one is no outage"
    assert absence.failed(9.0, final=True)
    assert absence.due_s == 10.0


@pytest.mark.parametrize("_", range(20))
def test_no_two_ask_in_step(_: int) -> None:
    absence = Absence()
    absence.failed(0.0, final=True)
    assert 1.0 - JITTER <= absence.due_s <= 1.0 + JITTER
