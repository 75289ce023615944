"""Units of a user window that were charged and not used: taken back as though they had never been charged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.limiting.log_window import CLAMPED_S
from autoglm_throttle.limiting.user_limits import NO_LIMIT, LimitSets, UserLimits
from autoglm_throttle.types import Demand, Priority, UserLimit
from tests.limiting.windows import SlidingWindow, limit

USERS = ("ann", "ben", "")
EDGE = 1e-9


@st.composite
def limit_sets(draw: st.DrawFn) -> tuple[UserLimit, ...]:
    windows = draw(st.lists(st.sampled_from([1, 2, 5, 60]), min_size=1, max_size=3, unique=True))
    return tuple(limit(draw(st.integers(1, 7)), window_s) for window_s in windows)


gaps = st.one_of(st.sampled_from([0.0, EDGE, 0.25, 1.0 - EDGE, 1.0, 2.0, 5.0, 60.0]), st.floats(0.0, 3.0))
traces = st.lists(st.tuples(gaps, st.sampled_from(USERS), st.integers(1, 3)), max_size=12)


def log_of(window: SlidingWindow, user: str) -> list[float]:
    return list(window.peek(user))


@given(
    limits=limit_sets(),
    before=traces,
    units=st.integers(1, 3),
    held=traces.map(lambda t: t[:4]),
    after=traces,
)
def test_what_is_given_back_was_never_charged(
    limits: tuple[UserLimit, ...],
    before: list[tuple[float, str, int]],
    units: int,
    held: list[tuple[float, str, int]],
    after: list[tuple[float, str, int]],
) -> None:
    tested, other, now = SlidingWindow(limits, 100), SlidingWindow(limits, 100), 1000.1
    for gap, user, spent in before:
        now += gap
        tested.hit(user, spent, now)
        other.hit(user, spent, now)
    charged_at = now
    charged = tested.hit("ann", units, charged_at).allowed
    for gap, user, spent in held:
        now += gap
        if user != "ann":  # her own requests could be refused for the sake of what is still charged
            tested.hit(user, spent, now)
            other.hit(user, spent, now)
    if charged:
        in_window = charged_at + max(limit.window_s for limit in limits) > now
        assert tested.give_back("ann", units, charged_at, now) is in_window
    for gap, user, spent in after:
        now += gap
        assert tested.hit(user, spent, now) == other.hit(user, spent, now)


@given(
    starts=st.lists(st.integers(0, 400), min_size=2, max_size=8, unique=True),
    victim=st.integers(0, 7),
    again=st.floats(0.0, 20.0),
)
def test_giving_back_twice_takes_nothing_from_others(starts: list[int], victim: int, again: float) -> None:
    tested = SlidingWindow((limit(50, 60),), 100)
    instants = sorted(1000.0 + start / 100 for start in starts)
    for instant in instants:
        tested.hit("ann", 1, instant)
    charged_at = instants[victim % len(instants)]
    assert tested.give_back("ann", 1, charged_at, instants[-1])
    kept = log_of(tested, "ann")
    assert kept == [instant for instant in instants if instant != charged_at]
    assert not tested.give_back("ann", 1, charged_at, instants[-1] + again)
    assert log_of(tested, "ann") == kept


def test_several_units_go_together() -> None:
    tested = SlidingWindow((limit(9, 60),), 100)
    for instant, units in ((1.0, 2), (2.0, 3), (3.0, 1)):
        tested.hit("ann", units, instant)
    assert tested.give_back("ann", 3, 2.0, 4.0)
    assert log_of(tested, "ann") == [1.0, 1.0, 3.0]
    assert not tested.give_back("ann", 3, 1.0, 4.0), "two units were charged then, not three"
    assert log_of(tested, "ann") == [1.0, 1.0, 3.0]


def test_a_charge_under_a_clock_that_stood_still_is_found_where_it_stood() -> None:
    tested = SlidingWindow((limit(9, 60),), 100)
    tested.hit("ann", 1, 5.0)
    tested.hit("ann", 2, 4.5)  # its thread had read the clock first and got the lock last
    assert log_of(tested, "ann") == [5.0, 5.0, 5.0]
    assert tested.give_back("ann", 2, 4.5, 5.1)
    assert log_of(tested, "ann") == [5.0]
    assert not tested.give_back("ann", 2, 4.5, 5.1)
    assert not tested.give_back("ann", 1, 4.5, 5.1), "the unit that had made the clock stand is another's"
    assert log_of(tested, "ann") == [5.0]


@given(early=st.floats(EDGE, 3.0))
def test_no_unit_is_taken_from_an_instant_too_far_away(early: float) -> None:
    tested = SlidingWindow((limit(9, 60),), 100)
    tested.hit("ann", 2, 5.0)
    tested.hit("ann", 1, 5.0 - early)
    assert tested.give_back("ann", 1, 5.0 - early, 6.0) is (5.0 - (5.0 - early) <= CLAMPED_S)


def test_units_that_have_left_the_window_are_not_sought() -> None:
    tested = SlidingWindow((limit(5, 10), limit(5, 2)), 100)
    tested.hit("ann", 1, 1.0)
    assert not tested.give_back("ann", 1, 1.0, 11.0)
    assert tested.give_back("ann", 1, 1.0, 11.0 - EDGE), "the longest window decides"


def test_evicted_user_is_refunded_nothing() -> None:
    tested = SlidingWindow((limit(5, 60),), 1)
    tested.hit("ann", 1, 1.0)
    tested.hit("ben", 1, 2.0)  # takes the only place
    assert "ann" not in tested.accounts
    assert not tested.give_back("ann", 1, 1.0, 3.0)
    assert log_of(tested, "ben") == [2.0]


@pytest.mark.parametrize("neighbourhoods", [True, False])
def test_a_charge_to_the_neighbourhood_goes_back_to_it(neighbourhoods: bool) -> None:
    limits = (limit(2, 60),)
    shared = SlidingWindow(limits, 10) if neighbourhoods else None
    tested = SlidingWindow(limits, 1, shared)
    tested.hit("ann", 2, 1.0)  # exhausted: may not be forgotten
    assert tested.hit("ben", 2, 2.0, "street").allowed
    assert not tested.hit("cid", 1, 3.0, "street").allowed
    assert tested.give_back("ben", 2, 2.0, 4.0, "street")
    assert not tested.give_back("ben", 2, 2.0, 4.0, "street")
    assert tested.hit("cid", 2, 5.0, "street").allowed


def test_the_last_unit_leaves_a_log_that_still_works() -> None:
    tested = SlidingWindow((limit(1, 60),), 10)
    tested.hit("ann", 1, 1.0)
    assert tested.give_back("ann", 1, 1.0, 1.0)
    tested.sweep(2.0, 1)
    assert len(tested) == 0
    assert tested.hit("ann", 1, 3.0).allowed


# --- the limits of a demand ---


def windows(user: int = 2, *, plan: int = 5) -> UserLimits:
    sets = LimitSets(
        [(limit(user, 60),), (limit(user, 60),), ()],
        by_plan={"gold": (limit(plan, 60),)},
        by_route={},
        address_factor=2.0,
    )
    return UserLimits(sets, 100)


def spend(tested: UserLimits, demand: Demand, now: float) -> bool:
    verdict = tested.hit(demand, now)
    assert verdict != NO_LIMIT
    return decision_of(verdict).allowed


def test_a_cost_is_rounded_up_as_it_was_charged() -> None:
    tested, demand = windows(), Demand(user="ann", cost=1.2)
    assert spend(tested, demand, 1.0)
    assert tested.give_back(demand, 1.0, 2.0)
    assert spend(tested, demand, 3.0)
    assert not tested.give_back(demand, 1.0, 4.0)


def test_the_plan_that_was_charged_gets_the_units() -> None:
    tested = windows()
    plain, gold = Demand(user="ann"), Demand(user="ann", plan="gold", cost=5.0)
    assert spend(tested, plain, 1.0)
    assert spend(tested, gold, 1.0)
    assert tested.give_back(gold, 1.0, 2.0)
    assert spend(tested, gold, 2.0)
    assert not spend(tested, Demand(user="ann", cost=2.0), 2.0)


def test_an_address_gets_its_units_with_the_caller() -> None:
    tested = windows()
    demand = Demand(user="ann", address="host", cost=2.0)
    assert spend(tested, demand, 1.0)
    assert spend(tested, Demand(user="ben", address="host", cost=2.0), 1.5)
    assert not spend(tested, Demand(user="cid", address="host"), 2.0)
    assert tested.give_back(demand, 1.0, 2.0)
    assert spend(tested, Demand(user="cid", address="host", cost=2.0), 3.0)
    assert spend(tested, Demand(user="ann", cost=2.0), 3.0)


def test_half_a_refund_is_not_called_one() -> None:
    tested = windows()
    spend(tested, Demand(user="ann"), 1.0)
    assert not tested.give_back(Demand(user="ann", address="never seen"), 1.0, 2.0)
    spend(tested, Demand(user="ben", address="host", cost=2.0), 1.0)
    assert not tested.give_back(Demand(user="never seen", address="host", cost=2.0), 1.0, 2.0)
    assert spend(tested, Demand(user="cid", address="host", cost=2.0), 2.0)
    assert spend(tested, Demand(user="dan", address="host", cost=2.0), 2.0), "the address got its own"


def test_nothing_was_charged_where_no_limit_applies() -> None:
    tested = windows()
    assert not tested.give_back(Demand(Priority.LOW, "ann"), 1.0, 2.0)
    assert tested.users == 0
