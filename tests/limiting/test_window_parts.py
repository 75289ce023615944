"""A window of which others count a part elsewhere: what may be used up here, and other sizes."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.store.fallback import ReducedLimit
from autoglm_throttle.types import EXACT_AT_MOST, Decision, Reason, UserLimit
from tests.limiting.windows import SlidingWindow, limit, window

BIG = EXACT_AT_MOST + 1


@st.composite
def limit_sets(draw: st.DrawFn, most: int = 100_000) -> tuple[UserLimit, ...]:
    windows = draw(st.lists(st.sampled_from([1, 2, 5, 60]), min_size=1, max_size=3, unique=True))
    units = st.sampled_from([n for n in (1, 3, 900, EXACT_AT_MOST, BIG, 100_000) if n <= most])
    return tuple(limit(draw(units), window_s) for window_s in windows)


def of(limits: tuple[UserLimit, ...], shares: list[float]) -> list[int]:
    """Parts of limits; some are the whole of one and more."""
    return [int(each.limit * share) for each, share in zip(limits, shares, strict=False)]


parts = st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.2)), min_size=3, max_size=3)
steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 1.0, 2.0, 5.0, 60.0]),
        st.sampled_from([0.0, 0.01, 0.34, 1.0, 1.01]),
        st.none() | parts,
    ),
    max_size=12,
)


def units_of(limits: tuple[UserLimit, ...], share: float) -> int:
    """So much of the smallest limit, a unit at least."""
    return max(1, math.ceil(min(each.limit for each in limits) * share))


def ask(tested: SlidingWindow, units: int, now: float, within: list[int] | None = None) -> Decision:
    account = tested.find("ann", units, now)
    decision = tested.test(account, units, now, within)
    if decision.allowed:
        tested.charge(account, units, now)
    return decision


def left(tested: SlidingWindow, now: float, within: list[int] | None = None) -> list[int]:
    """Units of each limit that may be used up now."""
    decision = tested.test(tested.peek("ann"), 1, now, within)
    by_name = {state.name: state.remaining for state in decision.limits}
    return [by_name[each.name] + decision.allowed for each in tested.limits]


@given(limits=limit_sets(), trace=steps)
def test_no_more_than_the_part_is_left_nor_more_than_without_it(
    limits: tuple[UserLimit, ...], trace: list[tuple[float, float, list[float] | None]]
) -> None:
    tested, now = SlidingWindow(limits, 10), 1000.0
    for gap, share, shares in trace:
        now += gap
        units, within = units_of(limits, share), of(limits, shares) if shares else None
        plain = left(tested, now)
        wanted = plain
        if within is not None:
            used = [each.limit - rest for each, rest in zip(limits, plain, strict=True)]
            wanted = [
                max(0, min(rest, part - spent)) for rest, part, spent in zip(plain, within, used, strict=True)
            ]
        assert left(tested, now, within) == wanted
        assert ask(tested, units, now, within).allowed is all(units <= rest for rest in wanted)


@given(limits=limit_sets(), trace=steps, shares=parts, share=st.sampled_from([0.0, 0.34, 1.0, 1.01]))
def test_a_part_changes_nothing_but_the_answer(
    limits: tuple[UserLimit, ...],
    trace: list[tuple[float, float, list[float] | None]],
    shares: list[float],
    share: float,
) -> None:
    tested, now = SlidingWindow(limits, 10), 1000.0
    for gap, asked, _ in trace:
        now += gap
        ask(tested, units_of(limits, asked), now)
    account, units, within = tested.peek("ann"), units_of(limits, share), of(limits, shares)
    before = copy.deepcopy(tested.test(account, units, now))
    once = copy.deepcopy(tested.test(account, units, now, within))
    assert tested.test(account, units, now, within) == once
    assert tested.test(account, units, now) == before
    if all(part >= each.limit for each, part in zip(limits, within, strict=True)):
        assert once == before, "the whole of every limit is no part"


@given(
    limits=limit_sets(EXACT_AT_MOST),
    trace=steps,
    shares=parts,
    share=st.sampled_from([0.0, 0.34, 1.0, 1.01]),
)
def test_part_rejection_is_admitted_at_retry_after(
    limits: tuple[UserLimit, ...],
    trace: list[tuple[float, float, list[float] | None]],
    shares: list[float],
    share: float,
) -> None:
    """Either the part is enough by then, or what was spent elsewhere has left the window."""
    tested, now, units = SlidingWindow(limits, 10), 1000.0, units_of(limits, share)
    within = of(limits, shares)
    for gap, asked, _ in trace:
        now += gap
        ask(tested, units_of(limits, asked), now, within)
    account = tested.peek("ann")
    decision = tested.test(account, units, now, within)
    wait_s = decision.retry_after_s
    if decision.allowed or math.isinf(wait_s):
        assert decision.allowed or units > min(each.limit for each in limits)
        return
    assert 0.0 < wait_s <= max(each.window_s for each in limits)
    then = [
        each.limit if wait_s >= each.window_s else part for each, part in zip(limits, within, strict=True)
    ]
    assert tested.test(account, units, now + wait_s, then).allowed


def test_part_retry_after_is_at_most_a_window() -> None:
    tested = window(limit(10, 60))
    first = [ask(tested, 1, at, [3]) for at in (0.0, 10.0, 20.0)]
    assert [decision.remaining for decision in first] == [2, 1, 0]
    rejected = ask(tested, 1, 30.0, [3])
    assert (rejected.reason, rejected.detail) == (Reason.USER, "user:user-60s")
    assert (rejected.limit, rejected.remaining) == (10, 0)
    assert (rejected.retry_after_s, rejected.reset_after_s) == (30.0, 30.0)
    assert ask(tested, 2, 30.0, [3]).retry_after_s == 40.0
    assert ask(tested, 4, 30.0, [3]).retry_after_s == 60.0, "more than the part, not more than the limit"
    assert ask(tested, 4, 30.0).allowed


def test_part_0_without_charges_waits_for_a_full_window() -> None:
    rejected = ask(window(limit(10, 60)), 1, 0.0, [0])
    assert (rejected.remaining, rejected.retry_after_s, rejected.reset_after_s) == (0, 60, 60)


def test_more_than_the_limit_is_too_large_whatever_the_part() -> None:
    tested = window(limit(10, 60))
    assert ask(tested, 2, 0.0, [5]).allowed
    for within, remaining in (([5], 3), ([1], 0), ([10], 8)):
        rejected = ask(tested, 11, 1.0, within)
        assert (rejected.reason, rejected.retry_after_s) == (Reason.TOO_LARGE, math.inf)
        assert rejected.remaining == remaining


# --- other sizes ---


def share(whole: UserLimit, units: int) -> ReducedLimit:
    return ReducedLimit(whole.name, units, whole.window_s, whole.limit)


@pytest.mark.parametrize(
    "limits",
    [
        (limit(20, 60),),
        (limit(2000, 60),),
        (limit(20, 60), limit(15, 1)),
        (limit(2000, 60), limit(15, 1), limit(5000, 3600)),
    ],
)
def test_what_was_counted_outlives_a_change_of_size(limits: tuple[UserLimit, ...]) -> None:
    tested, spent = SlidingWindow(limits, 10), min(each.limit for each in limits) // 2
    assert ask(tested, spent, 1000.0).allowed
    small = tuple(share(each, each.limit // 5) for each in limits)
    tested.resize(small)
    assert tested.limits == small
    assert left(tested, 1000.0) == [max(0, each.limit - spent) for each in small]
    rejected = ask(tested, 1, 1000.0)
    assert not rejected.allowed
    later = copy.deepcopy(tested)
    assert later.test(later.peek("ann"), 1, 1000.0 + rejected.retry_after_s).allowed
    tested.resize(limits)
    assert left(tested, 1000.0) == [each.limit - spent for each in limits]
    assert tested.give_back("ann", spent, 1000.0, 1000.5)
    assert left(tested, 1000.5) == [each.limit for each in limits]


@given(
    whole=st.sampled_from([limit(9, 2), limit(3000, 60)]),
    trace=st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0, 30.0]), st.integers(1, 7), st.floats(0.01, 1.0)),
        max_size=30,
    ),
)
def test_no_window_holds_more_than_the_largest_size(
    whole: UserLimit, trace: list[tuple[float, int, float]]
) -> None:
    tested, now, spent = SlidingWindow((whole,), 10), 1000.0, []
    for gap, processes, asked in trace:
        now += gap
        size = -(-whole.limit // processes)
        tested.resize((share(whole, size),))
        units = max(1, int(asked * size))
        if tested.hit("ann", units, now).allowed:
            spent.append((now, units))
            assert sum(each for at, each in spent if at > now - whole.window_s) <= size


def test_cost_above_the_new_size_creates_no_account() -> None:
    tested = window(limit(10, 60))
    tested.resize((share(tested.limits[0], 2),))
    assert tested.hit("ann", 3, 0.0).reason is Reason.TOO_LARGE
    assert len(tested) == 0
    assert tested.hit("ann", 2, 0.0).allowed


def test_neighbourhoods_are_resized_and_one_that_is_exhausted_then_is_not_forgotten() -> None:
    tested = window(limit(4, 60), max_users=1, shared=1)
    assert tested.hit("ann", 4, 0.0).allowed
    assert tested.hit("ben", 1, 0.0, "street").allowed
    tested.resize((share(tested.limits[0], 2),))
    assert [tested.hit(name, 1, 1.0, "street").allowed for name in ("cid", "dot")] == [True, False]
    assert tested.hit("eve", 1, 1.0, "square").allowed
    assert not tested.hit("fay", 1, 1.0, "street").allowed
