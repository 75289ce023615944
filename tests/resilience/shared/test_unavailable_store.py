"""When a store counts as lost, when it is asked again, when it is back."""

from __future__ import annotations

import pytest

from autoglm_throttle.store.breakers.health import FAILURES, JITTER, MAX_PROBE_S, BreakerStoreHealth


def plain() -> BreakerStoreHealth:
    return BreakerStoreHealth(jitter=lambda: 1.0)


def test_it_takes_failures_in_a_row() -> None:
    absence = plain()
    for _ in range(3):
        assert [absence.record_failure(1.0) for _ in range(FAILURES - 1)] == [False, False]
        assert not absence.record_success()
        assert absence.is_up
    assert [absence.record_failure(1.0) for _ in range(FAILURES)] == [False, False, True]
    assert not absence.is_up


def test_a_final_one_is_enough() -> None:
    absence = plain()
    assert absence.record_failure(5.0, final=True)
    assert (absence.is_up, absence.lost_since_s, absence.probe_due_s) == (False, 5.0, 6.0)
    assert "since 5.000, next probe at 6.000" in repr(absence)


def test_the_pauses_double_up_to_the_longest() -> None:
    absence = plain()
    absence.record_failure(0.0, final=True)
    pauses = [absence.probe_due_s]
    for _ in range(6):
        now = absence.probe_due_s
        assert not absence.record_failure(now, final=True)
        pauses.append(absence.probe_due_s - now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, MAX_PROBE_S, MAX_PROBE_S, MAX_PROBE_S]
    assert absence.lost_since_s == 0.0


def test_late_failure_outside_a_probe_delays_nothing() -> None:
    absence = plain()
    absence.record_failure(0.0, final=True)
    assert not absence.record_failure(0.5)
    assert absence.probe_due_s == 1.0


def test_a_return_begins_anew() -> None:
    absence = plain()
    absence.record_failure(0.0, final=True)
    absence.record_failure(1.0)
    assert absence.record_success()
    assert absence.is_up
    assert repr(absence) == "BreakerStoreHealth(up)"
    assert not absence.record_failure(9.0), "one is no outage"
    assert absence.record_failure(9.0, final=True)
    assert absence.probe_due_s == 10.0


@pytest.mark.parametrize("_", range(20))
def test_probe_times_vary_between_processes(_: int) -> None:
    absence = BreakerStoreHealth()
    absence.record_failure(0.0, final=True)
    assert 1.0 - JITTER <= absence.probe_due_s <= 1.0 + JITTER
