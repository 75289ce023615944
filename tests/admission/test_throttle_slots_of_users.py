"""``CONCURRENCY_PER_USER``: a request has a slot of its user from its charge until it ends, on every path."""

from __future__ import annotations

import asyncio
import json

import pytest

from autoglm_throttle import Demand, Permit, Rejection
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.limiting.ticket import Ticket
from autoglm_throttle.limiting.user_slots import SlottedUserLimits
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Outcome, Priority, Reason
from tests.asgi.queued_clients import with_places
from tests.asgi.run_app import http_scope, send_scope

ANN, EVENT = Demand(user="ann"), Demand(user="ann", holds_slot=False)


def used(throttle: ManualThrottle) -> int:
    limits = throttle.admission.parts.user_limits
    assert isinstance(limits, SlottedUserLimits)
    return sum(limits._users.values())


def admitted(throttle: ManualThrottle, demand: Demand = ANN) -> Permit:
    permit = throttle.try_admit(demand)
    assert isinstance(permit, Permit)
    return permit


@pytest.mark.parametrize("limit", ["off", "100/minute"])
def test_user_has_so_many_requests_in_progress(limit: str) -> None:
    throttle = throttle_for_tests(concurrency_per_user=2, user_limit=limit)
    first, _ = admitted(throttle), admitted(throttle)
    rejection = throttle.try_admit(ANN)
    assert isinstance(rejection, Rejection)
    assert rejection.decision.detail == "concurrency:user"
    peeked = throttle.peek(ANN)
    assert peeked is not None
    assert peeked.decision.reason is Reason.CONCURRENCY
    admitted(throttle, Demand(user="bob"))
    first.settle()
    first.settle()
    assert throttle.peek(ANN) is None
    admitted(throttle)
    assert isinstance(throttle.try_admit(ANN), Rejection)
    snapshot = throttle.snapshot()
    assert snapshot.requests[Priority.MID, "limited", Reason.CONCURRENCY] == 2


def test_slot_is_freed_by_a_settlement_in_the_midst_of_a_change() -> None:
    throttle = throttle_for_tests(concurrency_per_user=1)
    permit = admitted(throttle)
    with throttle.admission.parts.settlement.lock:  # as the cleanup of an abandoned coroutine
        permit.settle()
    assert used(throttle) == 0


def test_request_has_its_slot_while_it_is_queued() -> None:
    throttle = with_places(1, concurrency_per_user=2)
    first, ticket = admitted(throttle), throttle.try_admit(ANN)
    assert isinstance(ticket, Ticket)
    assert isinstance(throttle.try_admit(ANN), Rejection)
    throttle.leave(ticket)
    throttle.leave(ticket)
    assert used(throttle) == 1
    ticket = throttle.try_admit(ANN)
    assert isinstance(ticket, Ticket)
    first.settle()
    ((_, permit),) = throttle.called()
    assert isinstance(permit, Permit)
    assert used(throttle) == 1
    permit.settle(Outcome.FAILURE)
    assert used(throttle) == 0


def test_request_that_the_queue_rejects_has_no_slot() -> None:
    throttle = throttle_for_tests(concurrency_per_user=5, inflight_max=1, policy="fixed")
    permit = admitted(throttle)
    assert isinstance(throttle.try_admit(ANN), Rejection)
    assert used(throttle) == 1
    permit.settle()
    assert used(throttle) == 0


async def test_further_charge_needs_no_slot_and_its_rejection_frees_one_once() -> None:
    throttle = throttle_for_tests(concurrency_per_user=2, user_limit="4/minute")
    permit, other = admitted(throttle), admitted(throttle)
    assert await throttle.admission.top_up(permit, EVENT) is None
    assert await throttle.admission.top_up(permit, EVENT) is None
    assert await throttle.admission.top_up(permit, EVENT) is not None
    assert used(throttle) == 1
    permit.settle()
    assert used(throttle) == 1
    other.settle()
    throttle.clock.advance(60.0)
    ended = admitted(throttle)
    admitted(throttle)
    ended.settle()
    assert await throttle.admission.top_up(ended, Demand(user="ann", cost=9, holds_slot=False)) is not None
    assert used(throttle) == 1, "that of the other request"


def test_dry_run_counts_the_rejection_and_no_slot() -> None:
    throttle = throttle_for_tests(concurrency_per_user=1, dry_run=True)
    first, second = admitted(throttle), admitted(throttle)
    second.settle()
    assert used(throttle) == 1
    first.settle()
    assert used(throttle) == 0
    assert throttle.snapshot().would_reject[Priority.MID, Reason.CONCURRENCY] == 1


def test_slot_and_quota_are_held_together() -> None:
    throttle = throttle_for_tests(concurrency_per_user=1, quotas=True, precisions="fp16")
    permit = admitted(throttle)
    assert permit.advice is not None
    assert isinstance(throttle.try_admit(ANN), Rejection)
    permit.settle()
    assert used(throttle) == 0


def test_permit_of_a_slot_has_no_advice_without_quotas() -> None:
    assert admitted(throttle_for_tests(concurrency_per_user=1)).advice is None


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/", "ratelimit-policy", '"concurrency";q=1;qu="concurrent-requests"'),
        ("/", "ratelimit", '"concurrency";r=0;t=1'),
        ("/v1/chat/completions", "x-ratelimit-limit-requests", None),
    ],
)
async def test_rejection_names_the_limit_in_every_dialect(path: str, field: str, value: str | None) -> None:
    throttle = throttle_for_tests(concurrency_per_user=1, retry_jitter=0, user_limit="9/minute")
    release = asyncio.Event()

    async def app(scope: object, receive: object, send: object) -> None:
        await release.wait()

    middleware = ThrottleMiddleware(app, throttle=throttle)
    body = {"type": "http.request", "body": b"", "more_body": False}
    first = asyncio.ensure_future(send_scope(middleware, http_scope(path, "GET"), [body]))
    await asyncio.sleep(0)
    answer = await send_scope(middleware, http_scope(path, "GET"), [body])
    assert answer.status == 429
    assert answer.header("retry-after") == "1"
    assert answer.header(field) == value
    document = json.loads(answer.body)
    assert "concurrency:user" in {document.get("reason"), document.get("error", {}).get("code")}
    release.set()
    await first
    assert used(throttle) == 0
