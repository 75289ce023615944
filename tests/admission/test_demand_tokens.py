"""Tokens of a demand without a request: `Throttle.admit` reserves them, `settle_tokens` replaces them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from autoglm_throttle import Demand, Permit, Rejection, Settings, Throttle
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Reason, TokenCost
from tests.asgi.queued_clients import with_places
from tests.store.real_server import PATIENTLY


def priced(tokens: int, output: int = 0) -> Demand:
    return Demand(user="ann", tokens=TokenCost(tokens, output))


def left(throttle: ManualThrottle | Throttle, most: int = 100) -> int:
    """Return the tokens that a demand may have: those left, without a charge."""
    return next(units for units in range(most, -1, -1) if throttle.peek(priced(units)) is None)


async def admitted(throttle: ManualThrottle | Throttle, demand: Demand) -> Permit:
    permit = await throttle.admit(demand)
    assert isinstance(permit, Permit)
    return permit


async def test_tokens_are_reserved_and_settled_once() -> None:
    throttle = throttle_for_tests(tokens_limit="100/minute", user_limit="9/minute")
    permit = await admitted(throttle, priced(20, 40))
    assert left(throttle) == 40
    throttle.settle_tokens(permit, TokenCost(20, 10))
    throttle.settle_tokens(permit, TokenCost(0, 0))
    permit.settle()
    assert left(throttle) == 70
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert (counts.reserved, counts.settled, counts.given_back) == (60, 30, 30)


async def test_tokens_without_a_settlement_stay_spent() -> None:
    throttle = throttle_for_tests(tokens_limit="100/minute")
    async with throttle.slot(priced(60)):
        assert left(throttle) == 40
    assert left(throttle) == 40


async def test_rejection_and_peek_name_the_limit() -> None:
    throttle = throttle_for_tests(tokens_output_limit="100/minute")
    (await admitted(throttle, priced(0, 60))).settle()
    for verdict in (throttle.peek(priced(900, 60)), await throttle.admit(priced(900, 60))):
        assert isinstance(verdict, Rejection)
        assert verdict.decision.detail == "user:output-60s"
    assert throttle.peek(priced(900)) is None
    too_large = await throttle.admit(priced(0, 101))
    assert isinstance(too_large, Rejection)
    assert too_large.decision.reason is Reason.TOO_LARGE
    dry = throttle_for_tests(tokens_limit="1/minute", dry_run=True)
    assert dry.peek(priced(2)) is None
    assert isinstance(await dry.admit(priced(2)), Permit)


async def test_cancelled_in_the_queue_costs_nothing() -> None:
    throttle = with_places(1, tokens_limit="100/minute")
    first = await admitted(throttle, priced(10))
    queued = asyncio.ensure_future(throttle.admit(priced(20)))
    await asyncio.sleep(0)
    assert left(throttle) == 70
    queued.cancel()
    await asyncio.gather(queued, return_exceptions=True)
    assert left(throttle) == 90
    first.settle()


async def test_tokens_of_a_demand_are_shared_by_processes() -> None:
    server = FakeServer()
    values: dict[str, Any] = {"tokens_limit": "100/minute", "gpu": "none", **PATIENTLY}
    one, other = (Throttle(Settings(**values), redis=lambda: FakeAsyncRedis(server=server)) for _ in range(2))
    permit = await admitted(one, priced(60))
    assert isinstance(await other.admit(priced(41)), Rejection)
    assert other.peek(priced(41)) is None, "tokens in the store are not known"
    one.settle_tokens(permit, TokenCost(50, 0))
    await admitted(one, priced(1))  # after the settlement, which has travelled with it or before
    await admitted(other, priced(49))
    assert isinstance(await other.admit(priced(1)), Rejection)


async def test_peek_knows_the_tokens_of_this_process_during_an_outage() -> None:
    server = FakeServer()
    settings = Settings(tokens_limit="100/minute", gpu="none", redis_failures=1, redis_probe_s=60)
    throttle = Throttle(settings, redis=lambda: FakeAsyncRedis(server=server))
    server.connected = False
    await admitted(throttle, priced(60))
    assert left(throttle) == 40


async def test_demand_without_token_limits_is_admitted_as_any_other() -> None:
    permit = await admitted(throttle_for_tests(), priced(10))
    permit.settle()
    throttle_for_tests().settle_tokens(permit, TokenCost(1, 1))


@pytest.mark.parametrize(
    ("tokens", "error"),
    [((1,), TypeError), ((1, 2.5), TypeError), ((True, 1), TypeError), ((1, -1), ValueError)],
)
def test_unusable_tokens_are_an_error(tokens: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="tokens must be"):
        Demand(tokens=tokens)
