"""The table of the user window: bounded, and the guilty are not forgotten."""

from __future__ import annotations

import math
import sys
import tracemalloc
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.sliding_window import SCANNED_WHEN_FULL
from tests.limiting.windows import Limits, limit, window


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
        assert tested.neighbourhoods is not None
        assert len(tested.neighbourhoods) <= 2
        assert len(tested.names) == len(set(tested.names)) == len(tested.accounts)


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
    assert set(tested.accounts) == {"ann", "cid", "dot"}


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
    assert "new" in tested.accounts, "ann's units have left, so there is room again"


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
    assert set(tested.accounts) == {"user 7"}
    tested.sweep(20.0, 1000)
    assert len(tested) == len(tested.names) == 0
    tested.sweep(20.0, 1000)


def test_idle_neighbourhoods_are_forgotten_with_the_users() -> None:
    tested = window(limit(1, 5), max_users=1, shared=10)
    assert tested.hit("ann", 1, 0.0).allowed
    assert tested.hit("ben", 1, 0.0, "east").allowed
    assert tested.neighbourhoods is not None
    assert len(tested.neighbourhoods) == 1
    tested.sweep(5.0, 10)
    assert len(tested) == len(tested.neighbourhoods) == 0


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
    assert tested.neighbourhoods is not None
    tables = tested.tested.accounts, tested.neighbourhoods.accounts = Counting(), Counting()
    most = 0
    for n in range(3000):
        for table in tables:
            table.touched = 0
        tested.hit(f"user {n}", units, n * 0.005, f"group {n % 97}")
        most = max(most, sum(table.touched for table in tables))
    assert SCANNED_WHEN_FULL <= most <= 2 * SCANNED_WHEN_FULL + 6
    assert tested.overflowed > 0 or units == 1


@given(
    limits=st.sampled_from([(limit(16, 1),), (limit(16, 1), limit(40, 5))]),
    trace=st.lists(
        st.tuples(st.sampled_from([0.0, 1 / 16, 0.5, 1.0, 5.0]), st.sampled_from([1, 1, 1, 2, 16, 17])),
        max_size=60,
    ),
)
def test_a_log_holds_only_live_units(limits: Limits, trace: list[tuple[float, int]]) -> None:
    tested, now, longest = window(*limits), 1000.0, limits[-1]
    assert tested.hit("ann", 1, now).allowed
    for gap, units in trace:
        now += gap
        tested.hit("ann", units, now)
        log = tested.accounts["ann"]
        assert len(log) <= longest.limit
        assert all(instant + longest.window_s > now for instant in log), "also after a rejection"


def test_a_busy_log_never_grows_beyond_the_limit() -> None:
    tested = window(limit(16, 1))
    lengths = []
    for n in range(2000):
        assert tested.hit("ann", 1, n / 16).allowed
        lengths.append(len(tested.accounts["ann"]))
    assert lengths == [*range(1, 16), *[16] * 1985]


@pytest.mark.untraced
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


def test_log_of_one_unit_takes_memory_for_one() -> None:
    tested = window(limit(100, 60))
    for now in (1.0, 61.0, 200.0):
        decision = tested.hit("ann", 1, now)
        assert (decision.remaining, decision.reset_after_s) == (99, 60.0)
        assert sys.getsizeof(tested.accounts["ann"]) == sys.getsizeof(array("d", [now]))
