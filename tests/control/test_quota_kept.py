"""What quotas make of memory that stays when requests go, and of the target of the whole device."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.control.quota import Quota
from autoglm_throttle.types import Demand, Priority, Reason
from tests.control.quotas import GB, HIGH, LOW, MID, card, new_quota, seen


def kept(used_gb: float, idle_gb: float = 0.0, held: int = 4, left: int = 0, **settings: Any) -> Quota:
    """One that knows a price, most of whose requests went while the fill stayed."""
    made = new_quota(**settings)
    made.learn(seen(card(idle_gb, 0.0)), 0.0)
    for _ in range(held):
        made.reserve(Demand())
    made.learn(seen(card(used_gb, 1.0)), 1.0)
    for _ in range(held - left):
        made.load.remove(Demand())
    made.learn(seen(card(used_gb, 2.0)), 2.0)
    assert made.view(2.0).basis is FillBasis.KEPT
    return made


def let_in(made: Quota, priority: Priority, now: float, times: int = 60) -> int:
    """How many of so many come in between two samples."""
    count = 0
    for _ in range(times):
        if made.rejection(Demand(priority), now) is None:
            made.reserve(Demand())
            count += 1
    return count


class TestKept:
    """Memory that stays when requests go: what is left beside it is shared out, and no more."""

    @pytest.mark.parametrize(("priority", "count"), [(LOW, 2), (MID, 2), (HIGH, 3)])
    def test_the_caps_are_shares_of_what_is_left(self, priority: Priority, count: int) -> None:
        made = kept(60.0, held=6, left=2)
        left = made.advice(Demand(HIGH), 2.0).memory_bytes
        assert left == pytest.approx(32 * GB, abs=2)
        assert let_in(made, priority, 2.0) == count, "10 GB each; the target leaves high 32 of 40"

    def test_a_jump_brings_the_caps_back(self) -> None:
        made = kept(90 / 1.4, 30 / 1.4)
        made.learn(seen(card(120 / 1.4, 3.0)), 3.0)
        assert made.view(3.0).basis is FillBasis.DEVICE
        assert [made.rejection(Demand(p), 3.0) is None for p in Priority] == [True, False, False]
        made.learn(seen(card(120 / 1.4, 4.0)), 4.0)
        view = made.view(4.0)
        assert view.basis is FillBasis.KEPT
        assert view.usable_bytes == pytest.approx(20 / 1.4 * GB, rel=1e-6)
        assert list(view.caps.values()) == pytest.approx([8.8 / 20] * 3)
        assert let_in(made, HIGH, 4.0) == 1, "its price is more than what is left"

    @pytest.mark.parametrize("priority", Priority)
    @pytest.mark.parametrize("used_gb", [92.0, 93.0, 100.0])
    def test_beyond_the_target_they_come_in_one_at_a_time(self, priority: Priority, used_gb: float) -> None:
        made = kept(used_gb)
        assert set(made.view(2.0).caps.values()) == {0.0}
        assert let_in(made, priority, 2.0) == 1
        assert made.view(2.0).rejecting[priority]
        refusal = made.rejection(Demand(priority), 2.0)
        assert refusal is not None
        assert (refusal.limit, refusal.remaining) == (0.0, 0.0)
        assert made.advice(Demand(priority), 2.0).memory_bytes == 0
        made.load.remove(Demand())
        assert not made.view(2.0).rejecting[priority]
        assert let_in(made, priority, 2.0) == 1

    def test_without_a_price_beyond_the_target_they_do_so_too(self) -> None:
        made = new_quota()
        made.learn(seen(card(30.0, 0.0)), 0.0)
        made.reserve(Demand())
        made.load.remove(Demand())
        for at_s in (1.0, 2.0):
            made.learn(seen(card(95.0, at_s)), at_s)
        assert made.view(2.0).slope == 0.0
        assert let_in(made, HIGH, 2.0) == 1
        assert made.view(2.0).rejecting == {HIGH: True, MID: False, LOW: False}

    def test_cost_above_the_remaining_memory_may_fit_later(self) -> None:
        made = kept(80.0, held=4, left=1)
        refusal = made.rejection(Demand(memory_bytes=30 * GB), 2.0)
        assert refusal is not None
        assert refusal.reason is Reason.GPU
        made.load.remove(Demand())
        assert made.rejection(Demand(memory_bytes=30 * GB), 2.0) is None
        too_large = made.rejection(Demand(memory_bytes=71 * GB), 2.0)
        assert too_large is not None
        assert too_large.reason is Reason.TOO_LARGE


def test_no_cap_reaches_beyond_the_target_of_the_whole_device() -> None:
    made = new_quota()
    made.learn(seen(card(80.0, 0.0)), 0.0)
    made.reserve(Demand())
    made.learn(seen(card(91.9, 1.0)), 1.0)
    assert made.view(1.0).caps == pytest.approx({HIGH: 0.6, MID: 0.6, LOW: 0.5})
    for used_gb, at_s, comes_in in ((91.9, 1.0, True), (92.1, 2.0, False)):
        made.learn(seen(card(used_gb, at_s)), at_s)
        assert (made.rejection(Demand(HIGH, cost=1e-6), at_s) is None) is comes_in
    too_large = made.rejection(Demand(HIGH, memory_bytes=13 * GB), 2.0)
    assert too_large is not None
    assert (too_large.reason, too_large.limit) == (Reason.TOO_LARGE, 12 * GB)


@given(
    levels=st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5)), max_size=8),
    stays_gb=st.floats(0, 100),
    priority=st.sampled_from(Priority),
)
def test_fill_without_requests_in_flight_rejects_nothing(
    levels: list[tuple[float, int]], stays_gb: float, priority: Priority
) -> None:
    made = new_quota()
    made.learn(seen(card(0.0, 0.0)), 0.0)
    now = 0.0
    for used_gb, come in levels:
        now += 1.0
        let_in(made, priority, now, come)
        made.learn(seen(card(used_gb, now)), now)
    while made.load.in_flight:
        made.load.remove(Demand())
    for _ in range(2):
        now += 1.0
        made.learn(seen(card(stays_gb, now)), now)
    for _ in range(3):
        assert made.rejection(Demand(priority), now) is None
        made.reserve(Demand())
        made.load.remove(Demand())
