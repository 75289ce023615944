"""Requests that pause: they give their slot back, and take it again at once."""

from __future__ import annotations

import pytest

from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.limiting.work_class import (
    PAUSED,
    QUIET,
    RESUMED,
)
from autoglm_throttle.types import Outcome
from tests.limiting.measured_limiters import (
    FROZEN,
    HIGH,
    knowing,
    limiter,
    rejected,
    start,
    wait,
)


def serve(
    tested: AdaptiveConcurrencyLimiter, now: float, lasted_s: float, work_class: str = "", number: int = 1
) -> None:
    """So many are admitted one after another, and answered."""
    for _ in range(number):
        one = start(tested, HIGH, now, work_class)
        assert one
        tested.release(one, Outcome.SUCCESS, now + lasted_s)
        now += lasted_s


def test_a_paused_request_gives_its_slot_to_the_next_and_takes_it_back_at_once() -> None:
    tested = knowing(100.0, limit=2)
    one, other = start(tested, HIGH, 0.0), start(tested, HIGH, 0.0)
    assert one
    assert other
    ticket = wait(tested, HIGH, 0.1)
    tested.pause(one, 0.2)
    tested.pause(one, 0.2)
    assert (one.slot, tested.in_flight, tested.paused, tested.view(0.2).paused) == (PAUSED, 1, 1, 1)
    assert list(tested.pop_ready(0.2)) == [ticket]
    tested.resume(one, 0.5)
    tested.resume(one, 0.5)
    assert (one.slot, tested.in_flight, tested.paused) == (RESUMED, 3, 0), "above the limit"
    assert wait(tested, HIGH, 0.5) not in tested.pop_ready(0.5), "newcomers wait for it"
    tested.release(one, Outcome.SUCCESS, 0.6)
    assert one.work_class.total_s == pytest.approx(0.3), "the clock stood still during the pause"
    tested.pause(one, 0.7)
    tested.resume(one, 0.7)
    assert (tested.in_flight, tested.paused) == (2, 0), "it has ended"


def test_a_request_that_ends_in_its_pause_counts_what_it_ran() -> None:
    tested = knowing(100.0, limit=2)
    one = start(tested, HIGH, 0.0)
    assert one
    tested.pause(one, 0.25)
    tested.release(one, Outcome.SUCCESS, 9.0)
    assert one.work_class.total_s == pytest.approx(0.25)
    assert (tested.in_flight, tested.paused, one.work_class.in_flight) == (0, 0, 0)


def test_a_paused_request_proves_no_unloaded_latency() -> None:
    tested = limiter(**FROZEN)
    serve(tested, 0.0, 0.1)
    one = start(tested, HIGH, 0.2)
    assert one
    assert one.slot == QUIET
    tested.pause(one, 0.3)
    tested.resume(one, 0.4)
    tested.release(one, Outcome.SUCCESS, 0.5)
    assert not one.work_class.unloaded


def test_too_many_paused_requests_end_admission() -> None:
    tested = limiter(paused_max=2, inflight_start=8)
    held = [start(tested, HIGH, 0.0) for _ in range(3)]
    for one in held[:2]:
        assert one
        tested.pause(one, 0.1)
    got = rejected(tested, HIGH, 0.1)
    assert (got.detail, got.limit, got.remaining) == ("queue:paused", 0, 0)
    assert got.retry_after_s > 0.0
    assert tested.report().confirmed
    first = held[0]
    assert first
    tested.resume(first, 0.2)
    assert start(tested, HIGH, 0.2)


def test_paused_requests_keep_their_memory() -> None:
    tested = limiter(inflight_start=64)
    tested.update_memory(0.40)
    held = [start(tested, HIGH, 0.0) for _ in range(10)]
    tested.update_memory(0.60)
    assert tested.capacity == 26
    for one in held[:4]:
        assert one
        tested.pause(one, 0.1)
    assert tested.capacity == 22
    tested.update_memory(0.60)
    assert tested.view(0.1).memory_cap == pytest.approx(26.0), "paused ones have filled it, too"
