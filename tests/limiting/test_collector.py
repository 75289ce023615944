"""The garbage collector gives back what a forgotten request had taken, in the midst of another's decision.

Wherever it runs, the books are as though it had run before that decision or after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autoglm_throttle.limiting import (
    bucket_window,
    instant,
    limit_decision,
    log_window,
    sliding_window,
    token_bucket,
    window_layout,
)
from autoglm_throttle.limiting.sliding_window import SlidingWindow
from autoglm_throttle.limiting.token_bucket import TokenBucket
from autoglm_throttle.types import UserLimit
from tests.gc_control import Collector

ROOMS = (log_window, window_layout, instant, sliding_window, bucket_window, token_bucket, limit_decision)
WATCHED = {str(module.__file__) for module in ROOMS}

Act = Callable[[], Any]


def everywhere(scene: Callable[[], tuple[Act, Act, Act]]) -> int:
    """Compare each moment with the two orders; a scene is the act, what is collected, and what the books say.

    Returns:
        How many moments there were.
    """
    orders = []
    for collected_first in (True, False):
        act, collect, books = scene()
        if collected_first:
            collect()
        messages = act()
        if not collected_first:
            collect()
        orders.append((messages, books()))
    moment, seen = 1, 1
    while moment <= seen:
        act, collect, books = scene()
        collector = Collector(collect, moment, WATCHED)
        messages, seen = collector.watch(act), collector.seen
        if moment <= seen:
            assert books() in [kept for _, kept in orders], f"moment {moment}"
            assert messages in [kept for kept, _ in orders], f"moment {moment}"
        moment += 1
    return seen


# --- buckets ---

ACTS: dict[str, Callable[[TokenBucket], Any]] = {
    "take": lambda bucket: bucket.take(3.0, 2.0),
    "take what is not there": lambda bucket: bucket.take(64.0, 2.0) > 0,
    "take what is there but for rounding": lambda bucket: bucket.take(8.0, 2.0),
    "give back": lambda bucket: bucket.give_back(2.0, 2.0),
    "give back when full": lambda bucket: bucket.give_back(60.0, 2.0),
    "rescale": lambda bucket: bucket.rescale(0.5, 2.0),
    "refit": lambda bucket: bucket.resize(1.0, 5.0, 2.0),
    "refit to a larger one": lambda bucket: bucket.resize(1.0, 100.0, 2.0),
}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("taken", [60.0, 56.0])
def test_a_bucket_loses_and_invents_no_token(name: str, taken: float) -> None:
    def scene() -> tuple[Act, Act, Act]:
        bucket = TokenBucket(1.0, 64.0, 0.0)
        bucket.take(taken, 0.0)
        return (
            lambda: ACTS[name](bucket),
            lambda: bucket.give_back(4.0, 2.0),
            lambda: (bucket.tokens(2.0), bucket.tokens(9.0), bucket.burst, bucket.rate),
        )

    assert everywhere(scene) >= 2


def test_where_rounding_makes_a_token_ready_early_none_is_lost() -> None:
    """Tokens just below the cost, of which the instant they are there rounds to now."""

    def scene() -> tuple[Act, Act, Act]:
        bucket = TokenBucket(10.0, 64.0, 1e6)
        bucket.take(64.0, 1e6)
        now = 1e6 + 0.1
        return (
            lambda: bucket.take(1.0, now),
            lambda: bucket.give_back(4.0, now),
            lambda: bucket.tokens(now),
        )

    assert everywhere(scene) >= 2


# --- windows ---

HOUR = UserLimit("hour", 40, 3600)
MINUTE = UserLimit("minute", 8, 60)
SECOND = UserLimit("second", 6, 1)

CHARGES = {
    "alone": [(100.0, 1)],
    "first": [(100.0, 1), (100.5, 2), (100.9, 1)],
    "last": [(99.9, 1), (99.95, 3), (100.0, 1)],
    "exhausted": [(100.0, 2), (100.2, 3), (100.3, 3)],
    "old units before it": [(20.0, 3), (39.0, 1), (100.0, 1), (100.5, 1)],
}
"""What a user was charged for; the collector gives back what was charged at 100."""

CHECKED = [(1, 101.1), (3, 100.95), (9, 101.1), (1, 160.2), (1, 100.95), (2, 100.2)]
"""Units and instants of the decision."""


def logs(window: SlidingWindow, *users: str) -> list[list[float]]:
    return [list(window.peek(user)) for user in users]


@pytest.mark.parametrize("limits", [(MINUTE,), (SECOND,), (MINUTE, SECOND), (HOUR, MINUTE, SECOND)])
@pytest.mark.parametrize("charges", CHARGES)
@pytest.mark.parametrize(("units", "now"), CHECKED)
def test_a_window_loses_and_invents_no_unit(
    limits: tuple[UserLimit, ...], charges: str, units: int, now: float
) -> None:
    given = sum(spent for at, spent in CHARGES[charges] if at == 100.0)

    def scene() -> tuple[Act, Act, Act]:
        window = SlidingWindow(limits, 100)
        for at, spent in CHARGES[charges]:
            window.hit("u", spent, at)

        def later() -> Any:
            """Compacted, so that what has left in any case is not compared."""
            return [[at for at in log if at + 60 > now] for log in logs(window, "u")], len(window._deferred)

        return (
            lambda: window.hit("u", units, now).allowed,
            lambda: window.give_back("u", given, 100.0, now),
            later,
        )

    assert everywhere(scene) >= 2


SCALE = 126
"""Makes of `MINUTE` and `HOUR` limits too large for a log, and of `SECOND` one that is not."""


@pytest.mark.parametrize(
    "limits", [(MINUTE,), (MINUTE, SECOND), (HOUR, MINUTE, SECOND)], ids=["ring", "both", "rings"]
)
@pytest.mark.parametrize("charges", CHARGES)
@pytest.mark.parametrize(("units", "now"), CHECKED)
def test_nor_does_a_window_of_large_limits(
    limits: tuple[UserLimit, ...], charges: str, units: int, now: float
) -> None:
    large = tuple(UserLimit(each.name, each.limit * SCALE, each.window_s) for each in limits)
    assert not large[0].exact
    given = sum(spent for at, spent in CHARGES[charges] if at == 100.0) * SCALE

    def scene() -> tuple[Act, Act, Act]:
        window = SlidingWindow(large, 100)
        for at, spent in CHARGES[charges]:
            window.hit("u", spent * SCALE, at)
        return (
            lambda: window.hit("u", units * SCALE, now).allowed,
            lambda: window.give_back("u", given, 100.0, now),
            lambda: (left(window, "u", now), len(window._deferred)),
        )

    assert everywhere(scene) >= 2


@pytest.mark.parametrize("scale", [1, SCALE], ids=["exact", "large"])
@pytest.mark.parametrize("charges", CHARGES)
@pytest.mark.parametrize(("units", "now"), CHECKED)
def test_nor_does_one_of_which_only_a_part_may_be_used_up(
    scale: int, charges: str, units: int, now: float
) -> None:
    limits = tuple(UserLimit(each.name, each.limit * scale, each.window_s) for each in (MINUTE, SECOND))
    given = sum(spent for at, spent in CHARGES[charges] if at == 100.0) * scale

    def scene() -> tuple[Act, Act, Act]:
        window = SlidingWindow(limits, 100)
        for at, spent in CHARGES[charges]:
            window.hit("u", spent * scale, at)

        def hit() -> list[tuple[str, int]]:
            account = window.find("u", units * scale, now)
            decision = window.test(account, units * scale, now, (5 * scale, 4 * scale))
            return [(state.name, state.remaining) for state in decision.limits]

        return (
            hit,
            lambda: window.give_back("u", given, 100.0, now),
            lambda: (left(window, "u", now), len(window._deferred)),
        )

    assert everywhere(scene) >= 2


def left(window: SlidingWindow, user: str, now: float) -> list[object]:
    """What each limit has left from now on, at instants when something may have left."""
    account, instants = window.peek(user), (now, now + 0.5, now + 1, now + 59.5, now + 60.5, now + 3700)
    return [(s.name, s.remaining) for at in instants for s in window.test(account, 1, at).limits]


def test_eviction_for_a_new_user_reads_no_changing_ring() -> None:
    def scene() -> tuple[Act, Act, Act]:
        window = SlidingWindow((UserLimit("minute", 2000, 60),), 2)
        window.hit("u", 2000, 100.0)
        window.hit("v", 1000, 100.0)
        window.hit("v", 1000, 101.0)
        return (
            lambda: window.hit("w", 1, 161.5).allowed,
            lambda: window.give_back("v", 1000, 101.0, 161.5),
            lambda: (len(window), len(window._deferred), left(window, "w", 161.5)),
        )

    assert everywhere(scene) >= 4


def test_two_requests_that_are_given_back_at_once_both_are() -> None:
    def scene() -> tuple[Act, Act, Act]:
        window = SlidingWindow((MINUTE,), 100)
        for at in (100.0, 100.1, 100.2, 100.3):
            window.hit("u", 1, at)
        return (
            lambda: window.give_back("u", 1, 100.2, 101.0),
            lambda: window.give_back("u", 1, 100.0, 101.0),
            lambda: (logs(window, "u"), len(window._deferred)),
        )

    assert everywhere(scene) >= 4


def test_eviction_for_a_new_user_reads_no_shrinking_log() -> None:
    def scene() -> tuple[Act, Act, Act]:
        window = SlidingWindow((UserLimit("minute", 2, 60),), 2)
        window.hit("u", 2, 100.0)
        window.hit("v", 1, 100.0)
        window.hit("v", 1, 101.0)
        return (
            lambda: window.hit("w", 1, 160.5).allowed,
            lambda: window.give_back("v", 1, 101.0, 160.5),
            lambda: (len(window), len(window._deferred), logs(window, "w")),
        )

    assert everywhere(scene) >= 4


def test_nothing_stays_aside_that_was_charged_to_a_neighbourhood() -> None:
    def scene() -> tuple[Act, Act, Act]:
        limits = (UserLimit("minute", 2, 60),)
        shared = SlidingWindow(limits, 1)
        window = SlidingWindow(limits, 1, shared)
        window.hit("u", 2, 150.0)  # exhausted, so that there is no room
        window.hit("v", 1, 100.0, "street")
        window.hit("v", 1, 151.0, "street")
        return (
            lambda: window.hit("w", 1, 160.5, "square").allowed,
            lambda: window.give_back("v", 1, 151.0, 160.5, "street"),
            lambda: (len(shared), len(shared._deferred), len(window._deferred), logs(shared, "square")),
        )

    assert everywhere(scene) >= 4


def test_after_a_fork_in_the_midst_of_a_decision_nothing_is_set_aside() -> None:
    window = SlidingWindow((MINUTE,), 100, SlidingWindow((MINUTE,), 10))
    window.hit("u", 1, 100.0)
    window._busy = True  # another thread was just reading
    window.repair()
    assert window.give_back("u", 1, 100.0, 101.0)
    assert logs(window, "u") == [[]]


def test_what_is_given_back_while_a_log_is_read_is_given_back_after_it() -> None:
    window = SlidingWindow((MINUTE,), 100)
    window.hit("u", 2, 100.0)
    window._busy = True
    assert window.give_back("u", 1, 100.0, 101.0), "it will be sought"
    assert logs(window, "u") == [[100.0, 100.0]]
    assert window.test(window.peek("u"), 8, 101.0).remaining == 6, "still read as it was"
    assert logs(window, "u") == [[100.0]]
