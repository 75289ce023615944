"""The limit in front of an engine of known capacity."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import EngineCapacity, Outcome
from tests.limiting.measured_limiters import MEMORY_TARGET, Running, release, start


def batched(**settings: Any) -> AdaptiveConcurrencyLimiter:
    """A limiter in front of 8 slots that has served 4 requests at a time in 1.3 s, then 9 in 2.6 s."""
    tested = AdaptiveConcurrencyLimiter(
        ConcurrencySettings(**settings), 0.0, memory_target=MEMORY_TARGET, engine=EngineCapacity(slots=8)
    )
    now = 0.0
    for inside, rounds, lasted_s in ((4, 6, 1.3), (12, 12, 2.6)):
        for _ in range(rounds):
            running = [start(tested, now=now) for _ in range(inside)]
            now += lasted_s
            for each in running:
                if isinstance(each, Running):
                    release(tested, each.started_s, Outcome.SUCCESS, now, each.slot)
    return tested


def test_learned_objective_leaves_the_slots_of_the_engine() -> None:
    assert batched().limit == 9.0


def test_set_objective_lowers_the_limit() -> None:
    assert batched(slo_s=2.6).limit < 7.0


@pytest.mark.parametrize(("settings", "limit"), [({"inflight_max": 4}, 4.0), ({}, 2.0)])
def test_maximum_and_memory_lower_the_limit(settings: dict[str, Any], limit: float) -> None:
    tested = batched(**settings)
    if not settings:
        tested.adaptive.memory.requests = 2
    tested.close_period(1e3)
    assert tested.view(1e3).limit == limit
