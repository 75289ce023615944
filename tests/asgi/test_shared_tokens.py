"""Tokens of requests on a shared store: reserved with the user window, settled once without a wait."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import anyio
import pytest
from fakeredis import FakeAsyncRedis, FakeRedis, FakeServer
from starlette.requests import ClientDisconnect

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.token_meter import EXTENSION_TOKENS
from autoglm_throttle.settings import Settings
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Priority, Reason
from tests.asgi.run_app import Answer, Message, http_scope, send_scope
from tests.asgi.test_token_paths import (
    BODY,
    INPUT,
    OUTPUT,
    PATH,
    PATHS,
    REPORTED,
    TOKEN,
    USAGE,
    App,
    app_of,
    part,
    start,
    wait_for_disconnect,
)
from tests.store.polling import eventually
from tests.store.real_server import PATIENTLY

ABORTS = 300
ENDED = app_of(start(), part(USAGE, more=False))


def limited(server: FakeServer, **settings: Any) -> Throttle:
    """Return one of several processes on one store."""
    values: dict[str, Any] = {"tokens_limit": "1000/minute", "gpu": "none", "retry_jitter": 0, **PATIENTLY}
    return Throttle(Settings(**values | settings), redis=lambda: FakeAsyncRedis(server=server))


async def post(throttle: Throttle, app: App, body: bytes = BODY, *more: Message) -> Answer:
    scope = http_scope(PATH, "POST", {"content-length": str(len(body))})
    first = {"type": "http.request", "body": body, "more_body": False}
    return await send_scope(ThrottleMiddleware(app, throttle=throttle), scope, [first, *more])


def used(server: FakeServer, kind: str = "tokens.user") -> int:
    """Return the units that the store counts under the limits of a kind."""
    client: Any = FakeRedis(server=server)
    return sum(int.from_bytes(client.get(key)[6:10]) for key in client.keys(f"*:{kind}:b*"))


def requests(server: FakeServer) -> int:
    """Return the requests that the store counts."""
    client: Any = FakeRedis(server=server)
    return sum(client.llen(key) for key in client.keys("*:user:l60:*"))


async def settled(throttle: Throttle) -> None:
    store = throttle.snapshot().store
    assert store is not None
    await eventually(lambda: not throttle.snapshot().store.stats.waiting, "settlements are sent")  # type: ignore[union-attr]


def counts(throttle: Throttle) -> Any:
    tokens = throttle.admission.parts.token_limits
    assert tokens is not None
    return tokens.counts


@pytest.mark.parametrize("name", PATHS)
async def test_tokens_are_settled_once_on_every_path(name: str) -> None:
    steps, spent, _ = PATHS[name]
    server = FakeServer()
    throttle = limited(server, user_limit="5/minute")
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(used(server))
        await app_of(*steps)(scope, receive, send)

    gone = [{"type": "http.disconnect"}] if wait_for_disconnect in steps else []
    with contextlib.suppress(RuntimeError, ClientDisconnect, asyncio.CancelledError):
        await post(throttle, app, BODY, *gone)
    await settled(throttle)
    assert seen == [INPUT + OUTPUT]
    assert used(server) == sum(spent)
    assert (counts(throttle).reserved, counts(throttle).settled) == (INPUT + OUTPUT, sum(spent))


async def test_tokens_are_reserved_in_the_call_of_the_user_window() -> None:
    server = FakeServer()
    throttle = limited(server, user_limit="5/minute", tokens_output_limit="900/minute")
    answer = await post(throttle, ENDED)
    assert answer.header("x-ratelimit-remaining-requests") == "4"
    assert answer.header("x-ratelimit-remaining-tokens") == str(1000 - INPUT - OUTPUT)
    await settled(throttle)
    store = throttle.snapshot().store
    assert store is not None
    assert (store.stats.calls, store.stats.sent) == (2, 1)  # the second one is the settlement
    assert used(server, "output.user") == REPORTED[1]


async def test_processes_share_a_limit_all_or_none() -> None:
    server = FakeServer()
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await app_of(start(), part(TOKEN * 40), part(b"", more=False))(scope, receive, send)

    workers = [limited(server, tokens_limit="200/minute", user_limit="50/minute") for _ in range(4)]
    tasks = [asyncio.create_task(post(worker, app)) for worker in workers for _ in range(5)]
    await eventually(lambda: sum(task.done() for task in tasks) == 17, "rejections are answered")
    release.set()
    answers = await asyncio.gather(*tasks)
    assert sorted(answer.status for answer in answers) == [200] * 3 + [429] * 17
    rejected = next(answer for answer in answers if answer.status == 429)
    assert b"user:tokens-60s" in rejected.body
    for worker in workers:
        await settled(worker)
    assert used(server) == 3 * (INPUT + OUTPUT)
    assert requests(server) == 3


async def test_too_many_tokens_are_no_denial_of_fewer() -> None:
    server = FakeServer()
    throttle = limited(server, tokens_limit="100/minute", user_limit="3/minute")
    small = BODY.replace(b'"max_tokens": 40', b'"max_tokens": 5')
    assert (await post(throttle, app_of(start(), part(TOKEN * 40, more=False)))).status == 200
    await settled(throttle)
    assert (await post(throttle, ENDED)).status == 429
    assert (await post(throttle, app_of(start(422), part(b"", more=False)), small)).status == 422
    assert (await post(throttle, app_of(start(422), part(b"", more=False)), small)).status == 422
    rejected = await post(throttle, ENDED, small)
    assert (rejected.status, b"user:user-60s" in rejected.body) == (429, True)
    hits = throttle.snapshot().store
    assert hits is not None
    assert hits.deny_cache_hits == 0
    assert (await post(throttle, ENDED, small)).status == 429
    assert throttle.snapshot().store.deny_cache_hits == 1  # type: ignore[union-attr]


async def test_request_that_never_fits_is_too_large() -> None:
    server = FakeServer()
    answer = await post(limited(server, tokens_output_limit="39/minute"), app_of(RuntimeError()))
    assert answer.status == 413
    assert used(server) == 0


async def test_output_beyond_the_reservation_is_charged_while_it_grows() -> None:
    server = FakeServer()
    throttle = limited(server, tokens_limit=(), tokens_default_output=0, tokens_output_limit="900/minute")
    seen = []

    async def look(_: Any) -> None:
        await settled(throttle)
        seen.append(used(server, "output.user"))

    body = BODY.replace(b', "max_tokens": 40', b"")
    steps = [start(), look, part(TOKEN), look, part(TOKEN * EXTENSION_TOKENS), look, part(b"", more=False)]
    await post(throttle, app_of(*steps), body)
    await settled(throttle)
    assert seen == [0, 0, EXTENSION_TOKENS]
    assert used(server, "output.user") == EXTENSION_TOKENS + 1


async def test_reservations_of_random_aborts_are_all_settled() -> None:
    server, chance = FakeServer(), random.Random(7)
    throttle = limited(
        server, tokens_limit="10000000/minute", user_limit="1000/minute", slo_s=5, concurrency_per_user=15
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in (start(), part(TOKEN), part(USAGE, more=False)):
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            await send(message)

    async def client() -> None:
        task = asyncio.create_task(post(throttle, app))
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    for _ in range(ABORTS // 20):
        await asyncio.gather(*(client() for _ in range(20)))
    await settled(throttle)
    assert 0 < counts(throttle).settled == used(server) < ABORTS * sum(REPORTED)
    assert throttle.snapshot().requests[Priority.MID, "limited", Reason.CONCURRENCY] > 0
    assert FakeRedis(server=server).keys("*:concurrency.user:*") == []


async def test_settlement_of_a_lost_store_is_counted_and_its_tokens_are_charged_locally() -> None:
    server = FakeServer()
    settings = {"tokens_default_output": 9, "redis_failures": 1, "redis_probe_s": 60}
    throttle = limited(server, tokens_limit="200/minute", **settings)

    async def lose(_: Any) -> None:
        server.connected = False
        with contextlib.suppress(AssertionError):
            await post(throttle, app_of(start(422), part(b"", more=False)))

    ended = app_of(start(), lose, part(TOKEN * 200, more=False))
    assert (await post(throttle, ended, BODY.replace(b', "max_tokens": 40', b""))).status == 200
    await settled(throttle)
    store = throttle.snapshot().store
    assert store is not None
    assert store.stats.lost == 1
    assert sum(store.fallbacks.values()) == 1
    assert (await post(throttle, ENDED)).status == 429


async def test_store_that_is_lost_before_leaves_each_process_its_share_of_the_rest() -> None:
    server = FakeServer()
    throttle = limited(server, tokens_limit="200/minute", redis_failures=1, redis_probe_s=60, workers=2)
    seen = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        seen.append(counts(throttle).reserved)
        await ENDED(scope, receive, send)

    assert (await post(throttle, note)).status == 200
    server.connected = False
    answers = [(await post(throttle, note)).status for _ in range(3)]
    assert answers == [200, 429, 429]  # half of 135, then less than 65
    assert counts(throttle).settled == 2 * sum(REPORTED)


def test_there_a_request_is_decided_without_the_store() -> None:
    server = FakeServer()
    throttle = limited(server, tokens_limit="100/minute")

    async def twice() -> list[int]:
        return [
            (await post(throttle, app_of(start(), part(TOKEN * 40, more=False)))).status for _ in range(2)
        ]

    assert anyio.run(twice, backend="trio") == [200, 429]
    assert used(server) == 0
    assert counts(throttle).settled == INPUT + OUTPUT


async def test_request_that_is_rejected_after_its_admission_gives_all_back() -> None:
    server = FakeServer()
    gate = {"policy": "concurrency", "inflight_start": 1, "inflight_floor": 1, "inflight_max": 1}
    throttle = limited(server, user_limit="9/minute", slo_s=5, wait_budget=0.01, **gate)
    release = asyncio.Event()

    async def wait(_: Any) -> None:
        await release.wait()

    first = asyncio.create_task(post(throttle, app_of(start(), wait, part(USAGE, more=False))))
    await eventually(lambda: used(server) == INPUT + OUTPUT, "the first one runs")
    assert (await post(throttle, ENDED)).status == 503
    await settled(throttle)
    assert used(server) == INPUT + OUTPUT
    release.set()
    await first
    await settled(throttle)
    assert used(server) == sum(REPORTED)
    assert requests(server) == 1


async def test_route_with_a_limit_of_its_own_costs_tokens() -> None:
    server = FakeServer()
    routes = [{"pattern": "/own/{id}", "tokens_output_limit": "100/minute"}]
    throttle = limited(server, tokens_limit=(), routes=routes)
    for path in ("/own/1", PATH, "/other"):
        scope = http_scope(path, "POST", {"content-length": str(len(BODY))})
        message = {"type": "http.request", "body": BODY, "more_body": False}
        await send_scope(ThrottleMiddleware(ENDED, throttle=throttle), scope, [message])
        await settled(throttle)
        assert used(server, "*") == REPORTED[1], path
