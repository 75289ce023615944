"""The user window against a naive log, at its boundaries, and when its table is full."""

from __future__ import annotations

import copy
import math
import sys
import tracemalloc
from array import array
from typing import Any, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting import exact_log
from autoglm_throttle.limiting.sliding_window import SCANNED_WHEN_FULL, SlidingWindow
from autoglm_throttle.model import Reason, UserLimit
from tests.limiting.reference_log import ReferenceLog

USERS = ("ann", "ben", "")
EDGE = 1e-9


def limit(units: int, window_s: int) -> UserLimit:
    return UserLimit(f"user-{window_s}s", units, window_s)


def window(*limits: UserLimit, max_users: int = 1000, shared: int | None = None) -> SlidingWindow:
    neighbourhoods = SlidingWindow(limits, shared) if shared is not None else None
    return SlidingWindow(limits, max_users, neighbourhoods)


@st.composite
def limit_sets(draw: st.DrawFn) -> tuple[UserLimit, ...]:
    windows = draw(st.lists(st.sampled_from([1, 2, 5, 60]), min_size=1, max_size=4, unique=True))
    return tuple(limit(draw(st.integers(1, 7)), window_s) for window_s in windows)


# Gaps that land on, just before and just after the end of some window.
gaps = st.one_of(
    st.sampled_from([0.0, EDGE, 0.25, 1.0 - EDGE, 1.0, 1.0 + EDGE, 2.0, 4.5, 5.0, 60.0, 200.0]),
    st.floats(0.0, 3.0),
)
steps_back = st.sampled_from([-EDGE, -0.4, -1.0, -7.0, -100.0])
traces = st.lists(st.tuples(gaps, st.sampled_from(USERS), st.integers(1, 8)), max_size=40)


@given(limits=limit_sets(), trace=traces)
def test_it_decides_as_the_naive_log_does(
    limits: tuple[UserLimit, ...], trace: list[tuple[float, str, int]]
) -> None:
    tested, reference, now = window(*limits), ReferenceLog(limits), 1000.1
    for gap, user, units in trace:
        now += gap
        expected = reference.hit(user, units, now)
        decision = tested.hit(user, units, now)
        assert decision.allowed is expected.allowed
        assert decision.retry_after_s == pytest.approx(expected.retry_after_s, abs=1e-9)
        assert {state.name: state.remaining for state in decision.items} == expected.remaining
        for state in decision.items:
            if state.name in expected.reset_s:
                assert state.reset_s == pytest.approx(expected.reset_s[state.name], abs=1e-9)
    for user in USERS:
        for each in limits:
            assert reference.most_in_any_window(user, each.window_s) <= each.limit


@given(
    limits=limit_sets(),
    trace=st.lists(
        st.tuples(st.one_of(gaps, steps_back), st.sampled_from(USERS), st.integers(1, 4)), max_size=40
    ),
)
def test_a_clock_that_steps_back_frees_nothing_that_had_not_left_before(
    limits: tuple[UserLimit, ...], trace: list[tuple[float, str, int]]
) -> None:
    tested, reference, now, latest = window(*limits), ReferenceLog(limits), 1000.1, 1000.1
    for gap, user, units in trace:
        now += gap
        latest = max(latest, now)
        by_the_clock, by_the_latest = (reference.look(user, units, at) for at in (now, latest))
        decision = tested.hit(user, units, now)
        assert by_the_clock.allowed <= decision.allowed <= by_the_latest.allowed
        if decision.allowed:
            reference.charge(user, units, now)


@given(limits=limit_sets(), trace=traces, probe=st.integers(1, 7), share=st.floats(0.0, 0.999))
def test_refused_at_every_instant_before_the_wait_and_allowed_at_it(
    limits: tuple[UserLimit, ...], trace: list[tuple[float, str, int]], probe: int, share: float
) -> None:
    tested, now = window(*limits), 1000.1
    for gap, _, units in trace:
        now += gap
        tested.hit("ann", units, now)
    refusal = copy.deepcopy(tested).hit("ann", probe, now)
    wait = refusal.retry_after_s
    if refusal.allowed or math.isinf(wait):
        return
    assert wait > 0.0
    for earlier in (now, now + wait * share, now + wait - 1e-6):
        assert not copy.deepcopy(tested).hit("ann", probe, min(earlier, now + wait - 1e-7)).allowed
    assert tested.hit("ann", probe, now + wait).allowed


@given(
    burst=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([-EDGE, 0.0, EDGE, 0.5])), max_size=25),
    units=st.integers(1, 4),
)
def test_no_window_ever_holds_more_than_the_limit_under_boundary_attacks(
    burst: list[tuple[int, float]], units: int
) -> None:
    tested, log = window(limit(4, 1)), []
    for instant in sorted(100.3 + boundary + offset for boundary, offset in burst):
        for _ in range(3):
            if tested.hit("mallory", units, instant).allowed:
                log += [instant] * units
    for first in log:
        assert sum(first <= spent < first + 1.0 for spent in log) <= 4


def test_the_limit_is_used_in_full() -> None:
    tested = window(limit(100, 60))
    assert sum(tested.hit("ann", 1, 10.0 + n * 0.1).allowed for n in range(200)) == 100
    assert not tested.hit("ann", 1, math.nextafter(70.0, 0.0)).allowed
    assert [tested.hit("ann", 1, 70.0).allowed for _ in range(2)] == [True, False]


def test_an_admission_tells_what_is_left() -> None:
    decision = window(limit(10, 60), limit(5, 1)).hit("ann", 2, 7.0)
    assert (decision.allowed, decision.reason, decision.detail) == (True, Reason.OK, "")
    assert (decision.policy, decision.limit, decision.remaining) == ("user-1s", 5, 3), "the fuller limit"
    assert (decision.reset_after_s, decision.retry_after_s) == (1.0, 0.0)
    assert {(state.name, state.remaining) for state in decision.items} == {("user-60s", 8), ("user-1s", 3)}


def test_a_refusal_names_the_limit_with_the_longest_wait() -> None:
    tested = window(limit(2, 1), limit(2, 60))
    assert tested.hit("ann", 2, 100.0).allowed
    refusal = tested.hit("ann", 1, 100.25)
    assert (refusal.allowed, refusal.reason, refusal.detail) == (False, Reason.USER, "user:user-60s")
    assert (refusal.policy, refusal.limit, refusal.remaining) == ("user-60s", 2, 0)
    assert refusal.retry_after_s == refusal.reset_after_s == 59.75


def test_all_limits_or_none() -> None:
    tested = window(limit(1, 1), limit(3, 60))
    decisions = [tested.hit("ann", 1, 100.0 + n / 10) for n in range(10)]
    assert [decision.allowed for decision in decisions] == [True] + [False] * 9
    left = {state.name: state.remaining for state in tested.hit("ann", 1, 101.0).items}
    assert left == {"user-1s": 0, "user-60s": 1}, "nine refusals by the short limit took nothing of the long"


def test_what_can_never_fit_is_said_so_and_leaves_nothing_behind() -> None:
    tested = window(limit(100, 60), limit(5, 1))
    refusal = tested.hit("ann", 6, 0.0)
    assert (refusal.reason, refusal.detail) == (Reason.TOO_LARGE, "too_large:user-1s")
    assert (refusal.retry_after_s, refusal.limit, refusal.remaining) == (math.inf, 5, 5)
    assert len(tested) == 0
    assert tested.hit("ann", 5, 0.0).allowed
    assert tested.hit("ann", 6, 0.0).reason is Reason.TOO_LARGE, "a known user, too"


def test_a_clock_that_went_back_frees_nothing() -> None:
    tested = window(limit(2, 10))
    assert tested.hit("ann", 2, 100.0).allowed
    refusal = tested.hit("ann", 1, 50.0)
    assert not refusal.allowed
    assert refusal.retry_after_s == 60.0
    assert tested.hit("ann", 1, 110.0).allowed
    assert tested.hit("ann", 1, 40.0).allowed, "charged at 110, the last instant seen"
    assert not tested.hit("ann", 1, 115.0).allowed
    refusal = tested.hit("ann", 2, 115.0)
    assert refusal.retry_after_s == 5.0, "both at 110, so both leave at 120"
    assert tested.hit("ann", 2, 120.0).allowed


def test_empty_identities_share_one_window() -> None:
    tested = window(limit(2, 10))
    assert [tested.hit("", 1, 0.0).allowed for _ in range(3)] == [True, True, False]


# --- memory: bounded, and the guilty are not forgotten ---


@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 2.0), st.integers(0, 60), st.integers(0, 3), st.integers(1, 3)), max_size=120
    )
)
def test_the_table_never_outgrows_its_bound(steps: list[tuple[float, int, int, int]]) -> None:
    tested, now = window(limit(2, 5), max_users=8, shared=2), 0.0
    for gap, user, group, units in steps:
        now += gap
        tested.hit(f"user {user}", units, now, f"group {group}")
        assert len(tested) <= 8
        assert tested._neighbourhoods is not None
        assert len(tested._neighbourhoods) <= 2
        assert len(tested._ring) == len(set(tested._ring)) == len(tested._accounts)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([0.0, 0.0, 0.1, 0.5]), st.integers(0, 80), st.integers(1, 3)), max_size=150
    ),
    guilty=st.integers(1, 8),
)
def test_an_exhausted_user_is_never_forgotten(steps: list[tuple[float, int, int]], guilty: int) -> None:
    tested = window(limit(3, 10), max_users=8)
    for user in range(guilty):
        assert tested.hit(f"guilty {user}", 3, 100.0).allowed
    now = 100.0
    for gap, user, units in steps:
        now = min(now + gap, math.nextafter(110.0, 0.0))
        tested.hit(f"invented {user}", units, now)
    assert not any(tested.hit(f"guilty {user}", 1, now).allowed for user in range(guilty))
    assert all(tested.hit(f"guilty {user}", 1, 110.0).allowed for user in range(guilty))


def test_invented_identities_do_not_wash_away_a_nearly_exhausted_one() -> None:
    tested = window(limit(100, 60), max_users=200)
    assert tested.hit("mallory", 99, 0.0).allowed
    for n in range(5000):
        assert tested.hit(f"invented {n}", 1, 1.0).allowed
    assert tested.hit("mallory", 1, 2.0).allowed
    assert not tested.hit("mallory", 1, 2.0).allowed


def test_the_one_with_the_most_left_goes_first() -> None:
    tested = window(limit(10, 60), max_users=3)
    for user, units in (("ann", 9), ("ben", 1), ("cid", 5)):
        assert tested.hit(user, units, 0.0).allowed
    assert tested.hit("dot", 1, 1.0).allowed
    assert set(tested._accounts) == {"ann", "cid", "dot"}


def test_newcomers_share_their_neighbourhood_while_all_are_exhausted() -> None:
    tested = window(limit(3, 10), max_users=2, shared=2)
    for user in ("ann", "ben"):
        assert tested.hit(user, 3, 0.0).allowed
    east = [tested.hit(f"east {n}", 1, 1.0, "east").allowed for n in range(5)]
    west = [tested.hit(f"west {n}", 1, 1.0, "west").allowed for n in range(5)]
    assert east == west == [True] * 3 + [False] * 2
    north = [tested.hit(f"north {n}", 1, 1.0, "north").allowed for n in range(5)]
    south = [tested.hit(f"south {n}", 1, 1.0, "south").allowed for n in range(5)]
    assert north == [True] * 3 + [False] * 2, "no room for a third neighbourhood: the rest share one log"
    assert south == [False] * 5
    assert tested.overflowed == 20
    assert tested.hit("new", 1, 10.0, "east").allowed
    assert "new" in tested._accounts, "ann's units have left, so there is room again"


def test_without_neighbourhoods_all_newcomers_share_one_log() -> None:
    tested = window(limit(2, 10), max_users=1)
    assert tested.hit("ann", 2, 0.0).allowed
    assert [tested.hit(name, 1, 0.0, name).allowed for name in ("ben", "cid", "dot")] == [True, True, False]


def test_the_idle_are_forgotten_and_nothing_is_left_of_them() -> None:
    tested = window(limit(2, 5), limit(3, 10), max_users=1000, shared=100)
    for n in range(50):
        tested.hit(f"user {n}", 1, 0.0)
    tested.sweep(math.nextafter(10.0, 0.0), 1000)
    assert len(tested) == 50, "the longest window has not ended"
    tested.hit("user 7", 1, 10.0)
    tested.sweep(10.0, 20)
    assert len(tested) == 30, "no more than asked for"
    tested.sweep(10.0, 1000)
    assert set(tested._accounts) == {"user 7"}
    tested.sweep(20.0, 1000)
    assert len(tested) == len(tested._ring) == 0
    tested.sweep(20.0, 1000)


def test_idle_neighbourhoods_are_forgotten_with_the_users() -> None:
    tested = window(limit(1, 5), max_users=1, shared=10)
    assert tested.hit("ann", 1, 0.0).allowed
    assert tested.hit("ben", 1, 0.0, "east").allowed
    assert tested._neighbourhoods is not None
    assert len(tested._neighbourhoods) == 1
    tested.sweep(5.0, 10)
    assert len(tested) == len(tested._neighbourhoods) == 0


class Torn(list[str]):
    """A list of users whose thread is gone before it can take one away or put one in."""

    def pop(self, index: SupportsIndex = -1) -> str:
        raise InterruptedError

    def append(self, user: str) -> None:
        raise InterruptedError


def test_a_change_broken_off_by_a_fork_is_mended() -> None:
    tested = window(limit(1, 60), max_users=2, shared=2)
    for user in ("a", "b", "c"):
        assert tested.hit(user, 1, 0.0, "group").allowed
    shared = tested._neighbourhoods
    assert shared is not None
    for table in (tested, shared):
        table._ring = Torn(table._ring)
        with pytest.raises(InterruptedError):
            table.sweep(60.0, 1)
    tested.mend()
    newcomers = [tested.hit(f"new {number}", 1, 60.0, f"group {number}").allowed for number in range(9)]
    assert newcomers == [True] * 5 + [False] * 4, "two users, two neighbourhoods, and one log for all others"
    tested.sweep(120.0, 10)
    assert (len(tested), len(shared)) == (0, 0)


def test_arrivals_alone_make_the_idle_leave() -> None:
    tested = window(limit(2, 5), max_users=100_000)
    for n in range(500):
        tested.hit(f"early {n}", 1, 0.0)
    for n in range(500):
        tested.hit(f"late {n}", 1, 5.0)
    assert len(tested) == 500


class Counting(dict[str, Any]):
    """A table that counts how often one of its users is touched."""

    touched = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.touched += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.touched += 1
        return super().__getitem__(key)

    def __delitem__(self, key: str) -> None:
        self.touched += 1
        super().__delitem__(key)

    def __iter__(self) -> Any:
        raise AssertionError("a request must not walk over all users")

    items = values = keys = __iter__


@pytest.mark.parametrize("units", [1, 2])
def test_no_request_touches_more_than_a_few_users(units: int) -> None:
    tested = window(limit(2, 5), max_users=400, shared=40)
    assert tested._neighbourhoods is not None
    tables = tested._accounts, tested._neighbourhoods._accounts = Counting(), Counting()
    most = 0
    for n in range(3000):
        for table in tables:
            table.touched = 0
        tested.hit(f"user {n}", units, n * 0.005, f"group {n % 97}")
        most = max(most, sum(table.touched for table in tables))
    assert SCANNED_WHEN_FULL <= most <= 2 * SCANNED_WHEN_FULL + 6
    assert tested.overflowed > 0 or units == 1


def test_a_log_holds_little_more_than_the_limit() -> None:
    tested, longest, moved = window(limit(16, 1)), 0, 0
    for n in range(2000):
        before = len(tested._accounts.get("ann", ()))
        assert tested.hit("ann", 1, n / 16).allowed
        after = len(tested._accounts["ann"])
        longest = max(longest, after)
        moved += after if after <= before else 0
    assert longest <= 22
    assert moved <= 4 * 2000, "each unit is moved at most four times"


def test_100k_users_need_no_more_than_25_mb() -> None:
    """An eighth of them, since tracing is slow: a dictionary doubles, so it is as full as with all."""
    users, share = 12_500, 8
    names = [f"{n:016x}" for n in range(users)]
    tested = window(limit(100, 60), max_users=users)
    tracemalloc.start()
    try:
        for name in names:
            tested.hit(name, 1, 0.0)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    names_held = users * sys.getsizeof(names[0])
    wider_index = 4 * 2**18 - share * 2 * 2**15
    assert share * (held + names_held) + wider_index <= 25e6


@given(
    spent=st.lists(st.floats(0.0, 1e7), max_size=20).map(sorted),
    window_s=st.sampled_from([1, 3, 60, 3600]),
    pick=st.integers(0, 19),
    nudge=st.sampled_from([-1, 0, 1]),
)
def test_a_unit_leaves_at_exactly_its_instant_whatever_floats_do(
    spent: list[float], window_s: int, pick: int, nudge: int
) -> None:
    log = array("d", spent)
    now = log[pick % len(log)] + window_s if log else 5.0
    now = math.nextafter(now, math.inf * nudge) if nudge else now
    expected = sum(each + window_s <= now for each in log)
    assert exact_log.first_live(log, window_s, now) == expected


def test_rounding_does_not_keep_a_unit_in_its_window() -> None:
    """The sum of instant and window is rounded down here, so the difference lies before the instant."""
    spent, window_s = 2.2014426429991936, 3600
    now = spent + window_s
    assert now - window_s < spent
    assert exact_log.first_live(array("d", [spent, spent]), window_s, now) == 2


def test_rounding_does_not_let_a_unit_out_of_its_window() -> None:
    """A clock may count from anywhere: the difference is rounded up to the instant itself here."""
    spent, window_s, now = math.nextafter(-1.0, 0.0), 1, 9e-17
    assert now - window_s == spent
    assert spent + window_s > now
    assert exact_log.first_live(array("d", [spent]), window_s, now) == 0


@pytest.mark.parametrize(("spent", "now", "window_s"), [(0.44, 0.79, 10), (0.55, 0.94, 5), (0.04, 0.52, 5)])
def test_a_wait_that_rounding_would_cut_short_is_lengthened(spent: float, now: float, window_s: int) -> None:
    tested = window(limit(1, window_s))
    assert tested.hit("ann", 1, spent).allowed
    leaves = spent + window_s
    assert now + (leaves - now) < leaves
    assert tested.hit("ann", 1, now + tested.hit("ann", 1, now).retry_after_s).allowed


def test_it_shows_its_state() -> None:
    tested = window(limit(100, 60), limit(5, 1), max_users=10)
    tested.hit("ann", 1, 0.0)
    assert repr(tested) == "SlidingWindow(user-60s, user-1s, 1 of 10 users)"
