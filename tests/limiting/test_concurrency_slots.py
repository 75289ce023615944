"""Who gets in at once: the limit, what memory leaves of it, and that the usual path is short."""

from __future__ import annotations

import copy
import dis
import math
from collections.abc import Callable
from typing import Any

import pytest

from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter, Ticket
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import Demand, Outcome
from tests.limiting.measured_limiters import (
    HIGH,
    LOW,
    MID,
    WAITING,
    come,
    fill,
    knowing,
    limiter,
    release,
    reserve,
    start,
    wait,
)
from tests.limiting.service_plant import Plant


def test_limit_bounds_the_requests_in_flight() -> None:
    tested = limiter(inflight_start=3)
    assert [bool(start(tested, LOW, 0.1)) for _ in range(5)] == [True, True, True, False, False]
    assert tested.in_flight == 3


def test_the_hard_bound_joins_the_limit() -> None:
    tested = fill(limiter(inflight_start=64, inflight_max=5))
    assert tested.in_flight == 5
    assert tested.view(0.0).limit == 5.0


def test_lower_queue_does_not_block_a_higher_priority() -> None:
    tested = fill(knowing(100.0))
    low = wait(tested, LOW)
    release(tested, 0.0, Outcome.SUCCESS, 0.01)
    assert start(copy.deepcopy(tested), MID, 0.01)
    assert not start(copy.deepcopy(tested), LOW, 0.01)
    tested.cancel(low, 0.01)
    assert isinstance(tested.enqueue(Demand(MID), tested.work_classes[""], 0.01), Ticket)
    assert not start(copy.deepcopy(tested), LOW, 0.01), "somebody stands before it"
    assert not start(copy.deepcopy(tested), MID, 0.01)
    assert start(tested, HIGH, 0.01)


def test_reserved_queue_comes_first() -> None:
    tested = fill(knowing(100.0, min_share=0.1))
    rescued = reserve(tested, LOW, 0.5)
    assert rescued is not None
    assert rescued.state is WAITING
    release(tested, 0.0, Outcome.SUCCESS, 0.5)
    assert not start(tested, HIGH, 0.5)


@pytest.mark.parametrize(
    ("path", "calls"), [(AdaptiveConcurrencyLimiter.try_acquire, 3), (AdaptiveConcurrencyLimiter.release, 6)]
)
def test_common_path_allocates_nothing_and_calls_no_ticket(path: Callable[..., Any], calls: int) -> None:
    names = [instruction.opname for instruction in dis.get_instructions(path)]
    assert not [name for name in names if name.startswith(("BUILD", "FORMAT", "MAKE", "GET_ITER", "LIST"))]
    made = [name for name in names if name == "CALL"]
    assert len(made) == calls, "only where a period may be over, somebody waits, or what is measured changes"


def test_the_hard_bound_bounds_the_limit_so_that_littles_law_holds() -> None:
    plant = Plant(ConcurrencySettings(inflight_start=10, inflight_max=20), 100.0)
    plant.run(20.0, (500.0, 0.0, 0.0))
    assert plant.limiter.limit == 20.0
    assert plant.limiter.view(plant.now).service_rps == pytest.approx(100.0, rel=0.1)


def test_limit_grows_and_settles_at_littles_law() -> None:
    plant = Plant(ConcurrencySettings(), 200.0)
    plant.run(10.0, (100.0, 0.0, 0.0))
    assert 16.0 <= plant.limiter.limit < 64.0, "nobody found it reached, and an objective was learned"
    assert plant.limiter.view(plant.now).service_rps == pytest.approx(100.0, rel=0.3)
    plant.run(15.0, (600.0, 0.0, 0.0))
    view = plant.limiter.view(plant.now)
    assert view.service_rps == pytest.approx(200.0, rel=0.15)
    assert view.limit == pytest.approx(200.0 * 0.5, rel=0.2)
    assert view.latency_s == pytest.approx(0.5, rel=0.2)
    assert plant.served[HIGH] / plant.now == pytest.approx((10 * 100 + 15 * 200) / 25, rel=0.03)


@pytest.mark.parametrize("start", [2, 64, 500])
def test_wherever_it_starts_overload_ends_at_the_same_limit(start: int) -> None:
    plant = Plant(ConcurrencySettings(inflight_start=start), 200.0)
    plant.run(15.0, (600.0, 0.0, 0.0))
    assert plant.limiter.limit == pytest.approx(100.0, rel=0.25)


def test_a_hang_keeps_what_is_known() -> None:
    plant = Plant(ConcurrencySettings(), 200.0)
    plant.run(15.0, (600.0, 0.0, 0.0))
    tested, before = plant.limiter, plant.limiter.view(plant.now)
    now = plant.now + 0.4  # the period in which the last ones have finished
    tested.close_period(now)
    known = tested.view(now)
    for step in range(1, 100):
        come(tested, HIGH, now + step / 10)
        tested.pop_ready(now + step / 10)
    after = tested.view(now + 9.9)
    assert (after.limit, after.service_rps, after.latency_s) == (
        known.limit,
        known.service_rps,
        known.latency_s,
    )
    assert after.service_rps == pytest.approx(before.service_rps, rel=0.3)


# --- memory ---


def test_memory_caps_slots_at_once_and_the_limit_next_period() -> None:
    tested = limiter(inflight_start=64)
    tested.update_memory(0.40)
    for _ in range(10):
        start(tested, MID, 0.0)
    tested.update_memory(0.60)
    assert tested.view(0.0).limit == pytest.approx(26.0)
    assert tested.view(0.0).memory_cap == pytest.approx(26.0)
    assert tested.limit == 64.0
    fill(tested)
    assert tested.in_flight == 26
    tested.close_period(2.0)
    assert tested.limit == pytest.approx(26.0)


def test_what_is_not_known_of_the_memory_changes_nothing() -> None:
    tested = limiter()
    tested.update_memory(0.40)
    fill(tested)
    tested.update_memory(0.99)
    before = tested.view(0.0)
    tested.update_memory(None)
    assert tested.view(0.0) == before
    assert before.memory_cap < math.inf


def test_preallocating_engine_is_reported_memory_blind() -> None:
    tested = limiter()
    tested.update_memory(0.95)
    fill(tested)
    tested.update_memory(0.96)
    view = tested.view(0.0)
    assert view.memory_blind
    assert (view.memory_cap, view.limit) == (math.inf, 64.0)


def test_the_idle_fill_follows_a_model_being_loaded_but_not_work() -> None:
    tested = limiter()
    for ratio in (0.05, 0.50):
        tested.update_memory(ratio)
    fill(tested)
    tested.update_memory(0.60)
    assert tested.view(0.0).memory_cap == pytest.approx(0.42 * 64 / 0.10)
    for _ in range(64):
        release(tested, 0.0, Outcome.SUCCESS, 0.1)
    tested.close_period(0.5)
    tested.update_memory(0.80)  # an allocator keeps what work once took
    fill(tested, 0.5)
    tested.update_memory(0.85)
    assert tested.view(0.5).memory_cap == pytest.approx(0.42 * 64 / 0.35)
