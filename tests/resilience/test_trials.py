"""Places with a lease, rounds of trials, and the steps of a ramp."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.places import Places
from autoglm_throttle.resilience.ramp import Ramp
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.trials import Trials

LEASE_S = 2.0
acts = st.lists(
    st.tuples(st.sampled_from(["take", "leave", "expire", "clear"]), st.integers(-8, 24), st.integers(0, 5)),
    max_size=40,
)


@given(acts)
def test_places_beside_a_list_of_them(some: list[tuple[str, int, int]]) -> None:
    places, kept, now = Places(LEASE_S), dict[int, float](), 0.0
    for number, (act, eighths, which) in enumerate(some):
        now += eighths / 8  # a clock may step back
        if act == "take":
            places.take(number, now)
            kept[number] = now
        elif act == "leave":
            assert places.leave(which) is (kept.pop(which, None) is not None)
        elif act == "expire":
            places.expire(now)
            kept = {serial: at for serial, at in kept.items() if now - at < LEASE_S}
        else:
            places.clear()
            kept.clear()
        assert len(places) == len(kept)
        assert places.held(now) == sum(now - at < LEASE_S for at in kept.values())


def test_while_no_lease_can_be_over_nobody_searches() -> None:
    places = Places(LEASE_S)
    for serial, now in enumerate((10.0, 8.0, 9.0)):
        places.take(serial, now)
    found = places._taken
    places.expire(9.875)
    assert places._taken is found
    places.expire(10.0)
    assert (len(places), places.leave(1)) == (2, False)
    found = places._taken
    places.expire(10.875)
    assert places._taken is found, "the oldest that is left is of 9.0"
    places.expire(30.0)
    places.take(7, 40.0)
    found = places._taken
    places.expire(41.0)
    assert places._taken is found, "and of those that are gone nothing is left"
    places.clear()
    places.take(8, 50.0)
    found = places._taken
    places.expire(51.0)
    assert places._taken is found


def test_looking_takes_no_place_away() -> None:
    places = Places(LEASE_S)
    places.take(1, 0.0)
    assert (places.held(1.875), places.held(2.0), len(places)) == (1, 0, 1)
    assert places.leave(1)
    assert not places.leave(1)


def trials(**rules: int) -> Trials:
    return Trials(Rules(trial_lease_s=LEASE_S, **rules))  # type: ignore[arg-type]


def test_without_a_threshold_a_success_keeps_its_place() -> None:
    round_ = trials(half_open_max=2)
    round_.take(1, 0.0)
    assert not round_.full(0.0, leased=False)
    round_.take(2, 0.0)
    assert round_.full(0.0, leased=False)
    assert round_.leave(1)
    assert not round_.win()
    assert round_.full(0.0, leased=False)
    assert round_.full(1.875, leased=False)
    assert not round_.full(2.0, leased=False)
    assert round_.win()


def test_with_a_threshold_a_success_gives_its_place_back() -> None:
    round_ = trials(half_open_max=1, success_threshold=3)
    for won in (False, False, True):
        round_.take(1, 0.0)
        assert round_.full(0.0, leased=False)
        round_.leave(1)
        assert round_.win() is won
        assert not round_.full(0.0, leased=False)
    assert round_.won == 3


def test_the_successes_of_a_fleet_are_counted_by_the_fleet() -> None:
    round_ = trials(half_open_max=2)
    round_.win()
    round_.take(1, 0.0)
    assert round_.full(0.0, leased=False)
    assert not round_.full(0.0, leased=True)
    round_.take(2, 0.0)
    assert round_.full(0.0, leased=True)


def test_a_new_round_has_no_successes_and_no_trials() -> None:
    round_ = trials(half_open_max=1)
    round_.take(1, 0.0)
    round_.win()
    round_.clear()
    assert (round_.won, len(round_), round_.full(0.0, leased=False)) == (0, 0, False)


@given(
    shares=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4, unique=True).map(sorted),
    calls=st.lists(st.booleans(), max_size=200),
)
def test_what_a_ramp_admits_is_within_one_of_the_sum_of_its_shares(
    shares: list[float], calls: list[bool]
) -> None:
    ramp, owed, admitted, now = Ramp(tuple(shares), 1.0), 0.0, 0, 0.0
    ramp.start(now)
    for ends_a_step in calls:
        if ends_a_step:
            ramp.succeeded()
            now += 1.0
            if ramp.ends(now):
                assert ramp.admits(now)
                return
        foreseen = ramp.admits(now)
        got = ramp.ask(now)
        assert got is foreseen
        owed += ramp.share
        admitted += got
        assert owed - 1 - 1e-6 < admitted <= owed + 1e-6


@pytest.mark.parametrize("every", range(2, 50))
def test_a_share_of_one_in_so_many_admits_one_in_so_many(every: int) -> None:
    ramp = Ramp((1 / every,), 5.0)
    ramp.start(0.0)
    assert [ramp.ask(0.0) for _ in range(4 * every)] == ([False] * (every - 1) + [True]) * 4


def test_a_share_that_is_as_good_as_all_admits_all() -> None:
    ramp = Ramp((1.0 - 1e-9,), 5.0)
    ramp.start(0.0)
    assert ramp.admits(0.0)
    assert ramp.ask(0.0)


def test_a_share_is_never_rounded_up() -> None:
    ramp = Ramp((0.4999,), 5.0)
    ramp.start(0.0)
    assert [ramp.ask(0.0) for _ in range(3)] == [False, False, True]


def test_a_step_needs_its_time_and_a_success() -> None:
    ramp = Ramp((0.25, 0.5), 5.0)
    ramp.start(100.0)
    assert ramp.share == 0.25
    ramp.ask(200.0)
    assert ramp.share == 0.25, "no success yet"
    ramp.succeeded()
    ramp.ask(104.875)
    assert ramp.share == 0.25, "not long enough"
    assert not ramp.ends(105.0)
    ramp.ask(105.0)
    assert ramp.share == 0.5
    ramp.ask(300.0)
    assert not ramp.ends(300.0), "a success of the step before is none of this"
    ramp.succeeded()
    assert not ramp.ends(109.875), "the step began when it was asked for"
    assert ramp.ends(110.0)


def test_what_is_owed_is_carried_into_the_next_step() -> None:
    ramp = Ramp((0.25, 0.5), 5.0)
    ramp.start(0.0)
    assert [ramp.ask(0.0) for _ in range(2)] == [False, False]
    ramp.succeeded()
    assert not ramp.admits(4.0)
    assert ramp.admits(5.0)
    assert [ramp.ask(5.0) for _ in range(3)] == [True, False, True]


def test_a_ramp_begins_anew() -> None:
    ramp = Ramp((0.5, 0.75), 5.0)
    ramp.start(0.0)
    ramp.ask(0.0)
    ramp.succeeded()
    ramp.ask(5.0)
    ramp.succeeded()
    ramp.start(50.0)
    assert ramp.share == 0.5
    assert not ramp.ends(1000.0)
    assert [ramp.ask(1000.0) for _ in range(2)] == [False, True]
    assert ramp.share == 0.5
