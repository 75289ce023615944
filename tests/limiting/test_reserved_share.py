"""The guaranteed share of mid and low."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.concurrency_limiter import FAST_PERIOD_S
from autoglm_throttle.limiting.queue import BURST, BURST_S, PriorityQueues
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import Outcome
from tests.limiting.measured_limiters import (
    CALLED,
    HIGH,
    LOW,
    MID,
    WAITING,
    end,
    fill,
    knowing,
    limiter,
    release,
    reserve,
    wait,
)
from tests.limiting.service_plant import Plant


def test_it_grows_with_time_at_its_part_of_the_rate() -> None:
    tested = PriorityQueues(0.03, 0.0, fair=False)
    assert not tested.take_reserved(100.0, 0.0)
    assert not tested.take_reserved(100.0, 0.33)
    assert tested.take_reserved(100.0, 0.34)
    assert not tested.take_reserved(100.0, 0.66)
    assert tested.take_reserved(100.0, 0.68)


@pytest.mark.parametrize(("rate", "saved"), [(1000.0, 90), (100.0, 9), (20.0, 2), (1.0, 2)])
def test_so_much_is_saved_up(rate: float, saved: int) -> None:
    tested = PriorityQueues(0.03, 0.0, fair=False)
    assert sum(tested.take_reserved(rate, 1000.0) for _ in range(200)) == saved


def test_no_share_is_strict_priority() -> None:
    tested = PriorityQueues(0.0, 0.0, fair=False)
    assert not any(tested.take_reserved(1e6, float(second)) for second in range(1000))


@given(
    share=st.floats(0.0, 0.2),
    rates=st.lists(st.floats(0.1, 1000.0), min_size=1, max_size=30),
    gaps=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=300),
)
def test_no_flood_takes_more_than_its_share(share: float, rates: list[float], gaps: list[float]) -> None:
    tested, now, taken = PriorityQueues(share, 0.0, fair=False), 0.0, 0
    highest = max(rates) * share
    for step, gap in enumerate(gaps):
        now += gap
        taken += tested.take_reserved(rates[step % len(rates)], now)
        assert taken <= max(BURST, BURST_S * highest) + highest * now + 1e-6


# --- at the gate ---


def test_high_and_unmeasured_services_have_no_reserved_share() -> None:
    tested = knowing(100.0, min_share=0.1)
    assert reserve(tested, HIGH, 9.0) is None
    assert reserve(limiter(), LOW, 9.0) is None


def test_reserved_request_gets_a_free_slot_at_once() -> None:
    tested = knowing(100.0, min_share=0.1)
    ticket = reserve(tested, LOW, 1.0)
    assert ticket is not None
    assert (ticket.state, ticket.called_s, tested.in_flight) == (CALLED, 1.0, 1)
    tested.cancel(ticket, 1.1)
    assert tested.in_flight == 0


def test_reserved_request_waits_first_for_half_of_its_slo() -> None:
    tested = fill(knowing(100.0, 100.0, min_share=0.1))
    first = wait(tested, LOW, 1.0)
    second = wait(tested, MID, 1.0, slo_s=8.0)
    assert (first.state, first.queue_index, first.max_wait_s) == (WAITING, 0, 1.0)
    assert (second.queue_index, second.max_wait_s) == (0, 4.0)
    assert tested.view(1.0).waiting == (0, 1, 1)
    release(tested, 0.0, Outcome.SUCCESS, 1.0)
    third = reserve(tested, LOW, 1.0)
    assert third is not None
    assert third.state is WAITING, "two stand before it"


def test_reserved_request_without_a_slot_reaches_the_limit() -> None:
    tested = fill(knowing(100.0, min_share=0.1, period_s=0.5))
    reserve(tested, LOW, 0.3)
    end(tested, 0.4)
    end(tested, 0.4)
    tested.close_period(0.5)
    assert tested.service.measured


def test_reserved_request_that_reaches_the_limit_ends_the_period_early() -> None:
    tested = fill(knowing(100.0, min_share=0.1, period_s=0.5, period_completions=2), now=0.2)
    assert reserve(tested, LOW, 0.3)
    for _ in range(2):
        release(tested, 0.2, Outcome.SUCCESS, 0.3)
    tested.close_period(0.3 + FAST_PERIOD_S)
    assert tested.period.opened_s == 0.3 + FAST_PERIOD_S


@pytest.mark.untraced
@pytest.mark.parametrize(
    "share",
    [0.01, pytest.param(0.02, marks=pytest.mark.slow), pytest.param(0.05, marks=pytest.mark.slow), 0.2],
)
@pytest.mark.parametrize(
    ("high", "mid", "low"), [(1.2, 9.0, 0.0), (2.0, 1.0, 3.0), (10.0, 0.0, 0.5), (5.0, 0.02, 0.02)]
)
def test_mid_and_low_get_their_share_in_any_overload(
    high: float, mid: float, low: float, share: float
) -> None:
    rate = 100.0
    plant, load = Plant(ConcurrencySettings(min_share=share), rate), (high * rate, mid * rate, low * rate)
    plant.run(10.0, (0.2 * rate, 0.1 * rate, 0.1 * rate))
    plant.run(5.0, load)
    plant.forget()
    plant.run(30.0, load)
    got = plant.served[MID] + plant.served[LOW]
    assert got >= 0.9 * 30.0 * min((mid + low) * rate, share * rate)
    assert plant.served[HIGH] >= (0.93 - share) * 30.0 * rate


def test_a_share_as_great_as_the_demand_serves_nearly_all_of_it() -> None:
    rate = 100.0
    plant = Plant(ConcurrencySettings(min_share=0.03), rate)
    plant.run(10.0, (2 * rate, 0.03 * rate, 0.0))
    plant.forget()
    plant.run(30.0, (2 * rate, 0.03 * rate, 0.0))
    assert plant.served[MID] >= 0.9 * plant.offered[MID]


def test_a_sudden_flood_of_low_does_not_push_high_aside() -> None:
    rate = 200.0
    plant = Plant(ConcurrencySettings(), rate)
    plant.run(10.0, (0.9 * rate, 0.0, 0.0))
    plant.forget()
    plant.run(1.0, (0.9 * rate, 0.0, 50 * rate))
    assert plant.refused[HIGH] == 0
    assert plant.served[HIGH] >= 0.85 * plant.offered[HIGH]


@pytest.mark.untraced
def test_without_a_share_priority_is_strict() -> None:
    rate = 200.0
    plant = Plant(ConcurrencySettings(min_share=0.0), rate)
    plant.run(10.0, (3 * rate, rate, rate))
    plant.forget()
    plant.run(10.0, (3 * rate, rate, rate))
    assert plant.served[MID] == plant.served[LOW] == 0
