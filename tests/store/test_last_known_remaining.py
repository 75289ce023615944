"""Remaining units of a user at the start of an outage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.store.fallback import LastKnownRemaining, fair_share
from autoglm_throttle.types import UserLimit

MINUTE = (UserLimit("user-60s", 100, 60),)
BOTH = (UserLimit("user-1s", 5, 1), UserLimit("user-3600s", 1000, 3600))


def test_user_starts_with_share_of_remaining() -> None:
    seen = LastKnownRemaining(100)
    seen.record("user", "ann", (50,), 100.0)
    assert [seen.seed("user", "ann", MINUTE, processes, 101.0) for processes in (1, 4, 51)] == [
        (50,),
        (12,),
        (0,),
    ]


def test_the_newest_note_counts() -> None:
    seen = LastKnownRemaining(100)
    seen.record("user", "ann", (50,), 100.0)
    seen.record("user", "ann", (7,), 110.0)
    assert seen.seed("user", "ann", MINUTE, 1, 169.0) == (7,)
    assert len(seen) == 1


@pytest.mark.parametrize(("now", "expected"), [(159.999, (50,)), (160.0, None)])
def test_user_unseen_within_window_starts_fresh(now: float, expected: tuple[int] | None) -> None:
    seen = LastKnownRemaining(100)
    seen.record("user", "ann", (50,), 100.0)
    assert seen.seed("user", "ann", MINUTE, 1, now) == expected


def test_limit_after_its_window_is_full() -> None:
    seen = LastKnownRemaining(100)
    seen.record("user", "ann", (0, 300), 100.0)
    assert seen.seed("user", "ann", BOTH, 2, 100.5) == (0, 150)
    assert seen.seed("user", "ann", BOTH, 2, 101.0) == (3, 150)
    assert seen.seed("user", "ann", BOTH, 2, 3700.0) is None


def test_kinds_and_users_stand_apart() -> None:
    seen = LastKnownRemaining(100)
    seen.record("user", "ann", (50,), 100.0)
    assert seen.seed("address", "ann", MINUTE, 1, 100.0) is None
    assert seen.seed("user", "ben", MINUTE, 1, 100.0) is None


@given(
    left=st.integers(0, 16_777_215),
    over=st.integers(0, 1000),
    processes=st.integers(1, 100),
    age_s=st.floats(0.0, 59.0),
)
def test_all_processes_together_give_no_more_than_was_left(
    left: int, over: int, processes: int, age_s: float
) -> None:
    limits = (UserLimit("user-60s", max(1, left + over), 60),)
    seen = LastKnownRemaining(100)
    seen.record("user", "ann", (left,), 100.0)
    seed = seen.seed("user", "ann", limits, processes, 100.0 + age_s)
    assert seed is not None
    assert left - processes < seed[0] * processes <= left
    assert seed[0] <= fair_share(limits, processes)[0].limit


@given(size=st.integers(2, 12), notes=st.lists(st.integers(0, 15), max_size=80))
def test_cache_holds_between_half_and_full_size(size: int, notes: list[int]) -> None:
    seen, last = LastKnownRemaining(size), dict[int, int]()
    for n, user in enumerate(notes):
        seen.record("user", str(user), (n,), float(n))
        last.pop(user, None)
        last[user] = n
        assert len(seen) <= size
        for recent in list(last)[::-1][: size // 2]:
            assert seen.seed("user", str(recent), (UserLimit("user-60s", 100, 6000),), 1, n) == (
                last[recent],
            )


def test_an_older_note_of_a_user_never_comes_back() -> None:
    seen = LastKnownRemaining(4)
    for user, left in (("ann", 9), ("ben", 9), ("ann", 1), ("cyd", 9)):
        seen.record("user", user, (left,), 100.0)
    assert seen.seed("user", "ann", MINUTE, 1, 100.0) == (1,)
