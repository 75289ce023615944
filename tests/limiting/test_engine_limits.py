"""Bounds by the engine behind the limit: first tokens that come late, and a cache that fills."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter, Ticket
from autoglm_throttle.limiting.engine_limits import (
    FIRST_TOKEN_LOADED,
    FIRST_TOKEN_SHARE,
    NO_ENGINE,
    STEP_DOWN,
    EngineLimits,
)
from autoglm_throttle.limiting.fixed_limit import FixedConcurrencyLimit
from autoglm_throttle.settings.groups.control import FIRST_TOKEN_BUDGET, ConcurrencySettings
from autoglm_throttle.types import Priority
from tests.limiting.measured_limiters import end, fill, knowing, limiter, rejected, reserve, wait

HIGH, MID, LOW = Priority
LONG: dict[str, Any] = {"slo_s": 60.0, "wait_budget": 0.5}
"""Only the objective of the first token limits the wait."""


def learned(engine_s: float = 0.1, *demand: float, **settings: Any) -> AdaptiveConcurrencyLimiter:
    """A full limiter whose queue moves by ten requests a second."""
    tested = fill(knowing(10.0, *demand, **(LONG | {"slo_ttft_s": 2.0} | settings)))
    assert tested.first_tokens is not None
    for number in range(41):
        tested.first_tokens.record_start(1.0, -5.0 + number * 0.1, waiting=True)
        tested.first_tokens.record_first_token(engine_s)
    return tested


def bounds(workers: int = 1, **settings: Any) -> EngineLimits:
    return EngineLimits(ConcurrencySettings(**settings), NO_ENGINE, workers)


def first_tokens(tested: EngineLimits, engine_s: float, number: int = 20) -> None:
    assert tested.first_tokens is not None
    for _ in range(number):
        tested.first_tokens.record_first_token(engine_s)


def queue(tested: AdaptiveConcurrencyLimiter, number: int, priority: Priority = HIGH) -> list[Ticket]:
    return [wait(tested, priority) for _ in range(number)]


def test_request_is_rejected_once_its_first_token_would_be_late() -> None:
    tested = learned()
    queue(tested, 15)
    assert tested.first_tokens is not None
    tested.first_tokens.rate = 5.0
    got = rejected(tested, HIGH)
    assert got.detail == "queue:first_token"
    assert got.retry_after_s == pytest.approx(15 / 5 + 0.2 - 2.0), "no whole latency on top"


def test_wait_in_the_queue_ends_when_the_first_token_would_be_late() -> None:
    tested = learned(engine_s=0.3)
    ticket = wait(tested, HIGH)
    assert ticket.max_wait_s == pytest.approx(2.0 - 2 * 0.3)
    assert tested.pop_ready(1.5) == [ticket]
    assert tested.rejection(ticket, 1.5).detail == "queue:timeout"


def test_low_is_late_where_higher_demand_takes_the_rate() -> None:
    tested = learned(0.1, 9.9)
    assert rejected(tested, LOW).retry_after_s < math.inf
    tested = learned(0.1, 5.0, slo_ttft_low_s=0.9)
    assert tested.first_tokens is not None
    tested.first_tokens.rate = 6.0
    queue(tested, 1, LOW)
    assert rejected(tested, LOW).detail == "queue:first_token"


def test_objective_of_a_priority_replaces_that_of_all() -> None:
    settings = ConcurrencySettings(slo_ttft_s=2.0, slo_ttft_high_s=0.5)
    assert settings.first_token_slos == (0.5, 2.0, 2.0)
    tested = learned(slo_ttft_s=None, slo_ttft_high_s=0.5)
    assert wait(tested, HIGH).max_wait_s == pytest.approx(0.5 - 0.2)
    assert wait(tested, LOW).max_wait_s == pytest.approx(30.0)


def test_without_an_objective_nothing_is_learned() -> None:
    tested = fill(knowing(10.0, **LONG))
    assert tested.first_tokens is None
    assert FixedConcurrencyLimit(4).first_tokens is None
    assert wait(tested, HIGH).max_wait_s == pytest.approx(30.0)


def test_starts_from_the_queue_are_counted() -> None:
    tested = fill(knowing(10.0, **(LONG | {"slo_ttft_s": 2.0})))
    queue(tested, 3)
    for now in (0.1, 0.2, 0.3):
        assert end(tested, now)
    assert tested.first_tokens is not None
    assert tested.first_tokens.started == 2, "the first one began the measurement"


def test_reserved_share_waits_no_longer_than_the_first_token_allows() -> None:
    tested = learned(min_share=0.2)
    tested.queues.take_reserved(10.0, 0.0)
    ticket = reserve(tested, LOW, 9.0)
    assert ticket is not None
    assert ticket.max_wait_s == pytest.approx(2.0 - 0.2)
    assert reserve(learned(engine_s=3.0, min_share=0.2), LOW, 9.0) is None, "no wait is short enough"


def test_limit_falls_while_the_engine_delays_first_tokens() -> None:
    tested = bounds(slo_ttft_s=2.0)
    first_tokens(tested, 0.1)
    assert tested.lowered(100.0, 90.0) == 100.0
    first_tokens(tested, 0.6, 500)
    assert tested.lowered(100.0, 90.0) == pytest.approx(90.0 * FIRST_TOKEN_SHARE * 2.0 / 0.6, rel=0.01)
    first_tokens(tested, 9.0, 500)
    assert tested.lowered(100.0, 90.0) == pytest.approx(90.0 * (1 - STEP_DOWN))
    assert tested.lowered(10.0, 90.0) == 10.0


def test_long_prompts_alone_do_not_lower_the_limit() -> None:
    tested = bounds(slo_ttft_s=2.0)
    first_tokens(tested, 1.0)
    assert tested.lowered(100.0, 90.0) == 100.0
    first_tokens(tested, 1.0 * FIRST_TOKEN_LOADED - 0.1, 500)
    assert tested.lowered(100.0, 90.0) == 100.0, "less than twice the least mean"


def test_limit_stays_before_twenty_first_tokens_and_without_an_objective() -> None:
    tested = bounds(slo_ttft_s=2.0)
    first_tokens(tested, 9.0, 19)
    assert tested.lowered(100.0, 90.0) == 100.0
    assert bounds().lowered(100.0, 90.0) == 100.0


def test_cache_bounds_the_requests_in_flight_of_all_workers() -> None:
    for workers, most in ((1, 34.0), (2, 17.0), (99, 1.0)):
        tested = bounds(workers)
        tested.cache.learn(0.5, 20)
        assert tested.cached == pytest.approx(most)
    assert bounds(inflight_max=8).most == 8.0


def test_cap_by_the_cache_applies_at_once_and_ends_with_the_samples() -> None:
    tested = limiter()
    assert tested.capacity == 64
    tested.update_cache(0.5, 20)
    assert tested.capacity == 34
    assert tested.view(0.0).limit == tested.report().limit == pytest.approx(34.0)
    tested.close_period(99.0)
    assert tested.limit == 64.0, "an idle engine lowers nothing for good"
    tested.update_cache(None, None)
    assert tested.capacity == 64


def test_first_token_objective_widens_the_budget_unless_one_is_set() -> None:
    assert ConcurrencySettings().service_share == ConcurrencySettings().latency_budget
    assert ConcurrencySettings(slo_ttft_low_s=1.0).service_share == FIRST_TOKEN_BUDGET
    assert ConcurrencySettings(slo_ttft_s=1.0, latency_budget=0.2).service_share == 0.2


def test_queue_is_as_long_as_the_first_token_allows() -> None:
    tested = learned()
    queue(tested, 18)
    assert tested.first_tokens is not None
    tested.first_tokens.rate = 99.0
    queue(tested, 1)
    assert rejected(tested, HIGH).detail == "queue:slow"
