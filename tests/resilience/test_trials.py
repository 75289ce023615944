"""Places with a lease, rounds of trials, and the steps of a ramp."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.half_open import CallSlots, RampUp
from autoglm_throttle.settings.groups.breaker import BreakerSettings

LEASE_S = 2.0
acts = st.lists(
    st.tuples(st.sampled_from(["take", "leave", "expire", "clear"]), st.integers(-8, 24), st.integers(0, 5)),
    max_size=40,
)


def trials(**rules: int) -> CallSlots:
    return CallSlots(BreakerSettings(trial_lease_s=LEASE_S, **rules))  # type: ignore[arg-type]  # any column


@given(acts)
def test_places_beside_a_list_of_them(some: list[tuple[str, int, int]]) -> None:
    places, kept, now = trials(half_open_max=9), dict[int, float](), 0.0
    for number, (act, eighths, which) in enumerate(some):
        now += eighths / 8  # a clock may step back
        if act == "take":
            places.acquire(number, now)
            kept[number] = now
        elif act == "leave":
            assert places.release(which) is (kept.pop(which, None) is not None)
        elif act == "expire":
            places.expire(now)
            kept = {serial: at for serial, at in kept.items() if now - at < LEASE_S}
        else:
            places.clear()
            kept.clear()
        assert len(places.acquired) == len(kept)
        assert places.count_held(now) == sum(now - at < LEASE_S for at in kept.values())


def test_no_search_while_no_lease_can_have_expired() -> None:
    places = trials(half_open_max=9)
    for serial, now in enumerate((10.0, 8.0, 9.0)):
        places.acquire(serial, now)
    found = places.acquired
    places.expire(9.875)
    assert places.acquired is found
    places.expire(10.0)
    assert (len(places.acquired), places.release(1)) == (2, False)
    found = places.acquired
    places.expire(10.875)
    assert places.acquired is found, "the oldest that is left is of 9.0"
    places.expire(30.0)
    places.acquire(7, 40.0)
    found = places.acquired
    places.expire(41.0)
    assert places.acquired is found, "and of those that are gone nothing is left"
    places.clear()
    places.acquire(8, 50.0)
    found = places.acquired
    places.expire(51.0)
    assert places.acquired is found


def test_looking_takes_no_place_away() -> None:
    places = trials(half_open_max=9)
    places.acquire(1, 0.0)
    assert (places.count_held(1.875), places.count_held(2.0), len(places.acquired)) == (1, 0, 1)
    assert places.release(1)
    assert not places.release(1)


def test_without_a_threshold_a_success_keeps_its_place() -> None:
    round_ = trials(half_open_max=2)
    round_.acquire(1, 0.0)
    assert not round_.is_full(0.0, lease_required=False)
    round_.acquire(2, 0.0)
    assert round_.is_full(0.0, lease_required=False)
    assert round_.release(1)
    assert not round_.record_success()
    assert round_.is_full(0.0, lease_required=False)
    assert round_.is_full(1.875, lease_required=False)
    assert not round_.is_full(2.0, lease_required=False)
    assert round_.record_success()


def test_with_a_threshold_a_success_gives_its_place_back() -> None:
    round_ = trials(half_open_max=1, success_threshold=3)
    for won in (False, False, True):
        round_.acquire(1, 0.0)
        assert round_.is_full(0.0, lease_required=False)
        round_.release(1)
        assert round_.record_success() is won
        assert not round_.is_full(0.0, lease_required=False)
    assert round_.successes == 3


def test_the_successes_of_a_fleet_are_counted_by_the_fleet() -> None:
    round_ = trials(half_open_max=2)
    round_.record_success()
    round_.acquire(1, 0.0)
    assert round_.is_full(0.0, lease_required=False)
    assert not round_.is_full(0.0, lease_required=True)
    round_.acquire(2, 0.0)
    assert round_.is_full(0.0, lease_required=True)


def test_new_round_has_no_successes_and_no_probes() -> None:
    round_ = trials(half_open_max=1)
    round_.acquire(1, 0.0)
    round_.record_success()
    round_.clear()
    assert (round_.successes, len(round_.acquired), round_.is_full(0.0, lease_required=False)) == (
        0,
        0,
        False,
    )


@given(
    shares=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4, unique=True).map(sorted),
    calls=st.lists(st.booleans(), max_size=200),
)
def test_ramp_admissions_stay_within_one_of_their_shares(shares: list[float], calls: list[bool]) -> None:
    ramp, owed, admitted, now = RampUp(tuple(shares), 1.0), 0.0, 0, 0.0
    ramp.start(now)
    for ends_a_step in calls:
        if ends_a_step:
            ramp.has_success = True
            now += 1.0
            if ramp.is_done(now):
                assert ramp.would_admit(now)
                return
        foreseen = ramp.would_admit(now)
        got = ramp.admit(now)
        assert got is foreseen
        owed += ramp.share
        admitted += got
        assert owed - 1 - 1e-6 < admitted <= owed + 1e-6


@pytest.mark.parametrize("every", range(2, 50))
def test_a_share_of_one_in_so_many_admits_one_in_so_many(every: int) -> None:
    ramp = RampUp((1 / every,), 5.0)
    ramp.start(0.0)
    assert [ramp.admit(0.0) for _ in range(4 * every)] == ([False] * (every - 1) + [True]) * 4


def test_a_share_that_is_as_good_as_all_admits_all() -> None:
    ramp = RampUp((1.0 - 1e-9,), 5.0)
    ramp.start(0.0)
    assert ramp.would_admit(0.0)
    assert ramp.admit(0.0)


def test_a_share_is_never_rounded_up() -> None:
    ramp = RampUp((0.4999,), 5.0)
    ramp.start(0.0)
    assert [ramp.admit(0.0) for _ in range(3)] == [False, False, True]


def test_a_step_needs_its_time_and_a_success() -> None:
    ramp = RampUp((0.25, 0.5), 5.0)
    ramp.start(100.0)
    assert ramp.share == 0.25
    ramp.admit(200.0)
    assert ramp.share == 0.25, "no success yet"
    ramp.has_success = True
    ramp.admit(104.875)
    assert ramp.share == 0.25, "not long enough"
    assert not ramp.is_done(105.0)
    ramp.admit(105.0)
    assert ramp.share == 0.5
    ramp.admit(300.0)
    assert not ramp.is_done(300.0), "a success of the step before is not one of this"
    ramp.has_success = True
    assert not ramp.is_done(109.875), "the step began when it was asked for"
    assert ramp.is_done(110.0)


def test_debt_is_carried_into_the_next_step() -> None:
    ramp = RampUp((0.25, 0.5), 5.0)
    ramp.start(0.0)
    assert [ramp.admit(0.0) for _ in range(2)] == [False, False]
    ramp.has_success = True
    assert not ramp.would_admit(4.0)
    assert ramp.would_admit(5.0)
    assert [ramp.admit(5.0) for _ in range(3)] == [True, False, True]


def test_a_ramp_begins_anew() -> None:
    ramp = RampUp((0.5, 0.75), 5.0)
    ramp.start(0.0)
    ramp.admit(0.0)
    ramp.has_success = True
    ramp.admit(5.0)
    ramp.has_success = True
    ramp.start(50.0)
    assert ramp.share == 0.5
    assert not ramp.is_done(1000.0)
    assert [ramp.admit(1000.0) for _ in range(2)] == [False, True]
    assert ramp.share == 0.5
