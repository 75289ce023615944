"""A further charge of an admitted request: one charge with the first, whichever way the request came in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from autoglm_throttle import Demand, Permit, Settings, Throttle
from autoglm_throttle.limiting.ticket import Ticket
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Priority
from tests.asgi.queued_clients import with_places

LIMIT = "9/minute"
ONE, FIVE, NINE = (Demand(user="alice", cost=cost, holds_slot=False) for cost in (1.0, 5.0, 9.0))


async def directly(throttle: ManualThrottle) -> Permit:
    permit = throttle.try_admit(Demand(user="alice"))
    assert isinstance(permit, Permit)
    return permit


async def after_its_body(throttle: ManualThrottle) -> Permit:
    charged = throttle.admission.try_charge(Demand(user="alice"))
    assert isinstance(charged, Ticket)
    throttle.clock.advance(3.0)
    permit = throttle.admission.try_slot(charged)
    assert isinstance(permit, Permit)
    return permit


async def from_the_queue(throttle: ManualThrottle) -> Permit:
    first = throttle.try_admit(Demand(user="bob"))
    ticket = throttle.try_admit(Demand(user="alice"))
    assert isinstance(first, Permit)
    assert isinstance(ticket, Ticket)
    throttle.clock.advance(0.5)
    first.settle()
    ((_, permit),) = throttle.called()
    assert isinstance(permit, Permit)
    return permit


WAYS = [directly, after_its_body, from_the_queue]


async def units_left(throttle: ManualThrottle | Throttle, user: str = "alice") -> float:
    verdict = await throttle.admit(Demand(user=user, holds_slot=False))
    return verdict.decision.remaining + 1 if isinstance(verdict, Permit) else 0


# FIELD 14
@pytest.mark.parametrize("admit", WAYS)
async def test_rejected_top_up_refunds_all_charges(
    admit: Callable[[ManualThrottle], Awaitable[Permit]],
) -> None:
    throttle = with_places(1, user_limit=LIMIT)
    tokens = throttle.snapshot().tokens[Priority.MID]
    permit = await admit(throttle)
    throttle.clock.advance(1.0)
    spent = throttle.try_admit(Demand(user="alice", cost=2, holds_slot=False))
    assert isinstance(spent, Permit)
    assert await throttle.admission.top_up(permit, ONE) is None
    assert permit.decision.remaining == 5.0
    for _ in range(2):  # the second finds nothing left to refund
        rejection = await throttle.admission.top_up(permit, Demand(user="alice", cost=8, holds_slot=False))
        assert rejection is not None
    permit.settle()
    throttle.clock.advance(5.0)
    assert await units_left(throttle) == 7.0
    assert throttle.snapshot().tokens[Priority.MID] == tokens - 1


# FIELD 14
async def test_top_up_over_a_store_refunds_there() -> None:
    server = FakeServer()
    settings = Settings(user_limit=LIMIT, gpu="none")
    throttle, other = (Throttle(settings, redis=lambda: FakeAsyncRedis(server=server)) for _ in range(2))
    permit = await throttle.admit(Demand(user="alice"))
    assert isinstance(permit, Permit)
    assert await throttle.admission.top_up(permit, FIVE) is None
    assert permit.decision.remaining == 3
    rejection = await throttle.admission.top_up(permit, NINE)
    assert rejection is not None
    assert rejection.decision.detail == "too_large:user-60s"
    assert await units_left(throttle) == 9
    assert await units_left(other) == 8


# FIELD 14
def priced(cost: float, priority: Priority = Priority.MID) -> Demand:
    return Demand(priority, "alice", cost, holds_slot=False)


@pytest.mark.parametrize(
    ("settings", "demand", "detail"),
    [
        ({"user_limit": "9/minute"}, priced(9), "too_large:user-60s"),
        ({"user_limit": "9/minute"}, priced(9, Priority.LOW), "too_large:user-60s"),
        ({"user_limit": "9/minute", "user_limit_low": "9/hour"}, priced(9, Priority.LOW), ""),
        ({"user_limit": "off"}, priced(9), ""),
        ({"rate_mid_rps": 9}, priced(9), "too_large:rate"),
        ({"rate_low_rps": 9}, priced(9, Priority.LOW), ""),
        ({"rate_low_rps": 9}, priced(10, Priority.LOW), "too_large:rate"),
        ({"rate_mid_rps": 9, "borrow": "any"}, priced(9), ""),
    ],
)
async def test_only_a_sum_that_never_fits_is_too_large(
    settings: dict[str, Any], demand: Demand, detail: str
) -> None:
    throttle = throttle_for_tests(**settings)
    permit = await directly(throttle)
    rejection = await throttle.admission.top_up(permit, demand)
    assert (rejection.decision.detail if rejection is not None else "") == detail


async def test_top_up_of_a_user_without_units_waits_for_them() -> None:
    throttle = throttle_for_tests(user_limit=LIMIT)
    permit = await directly(throttle)
    await directly(throttle)
    rejection = await throttle.admission.top_up(permit, Demand(user="alice", cost=8, holds_slot=False))
    assert rejection is not None
    assert rejection.decision.detail == "user:user-60s"
    assert rejection.decision.retry_after_s == 60.0
