"""The additional charge: ``Depends(limit(...))``."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.routing import Mount

from autoglm_throttle import ConfigError, Outcome, Permit, Priority, Reason, ThrottleMiddleware
from autoglm_throttle.asgi.scope import permit_of
from autoglm_throttle.fastapi import limit
from autoglm_throttle.testing import ManualThrottle, assert_admitted, assert_limited, throttle_for_tests

LIMIT = "5/minute"
"""Enough for one request: 1 unit for the middleware and 4 for the dependency."""

ALMOST_TWO = "9/minute"
"""Enough for the middleware's part of a second request, but not for the dependency's."""


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


def routes(**options: Any) -> APIRouter:
    router = APIRouter()

    @router.get("/dear", dependencies=[Depends(limit(cost=4, **options))])
    async def dear() -> str:
        return "dear"

    return router


def added(throttle: ManualThrottle) -> Any:
    app = FastAPI()
    app.include_router(routes())
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


def added_behind_another(throttle: ManualThrottle) -> Any:
    app = FastAPI()
    app.include_router(routes())

    @app.middleware("http")
    async def passes(request: Request, call_next: Callable[[Request], Any]) -> Response:
        answer: Response = await call_next(request)
        return answer

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


def wrapped(throttle: ManualThrottle) -> Any:
    app = FastAPI()
    app.include_router(routes())
    return ThrottleMiddleware(app, throttle=throttle)


def mounted(throttle: ManualThrottle) -> Any:
    inner = FastAPI()
    inner.include_router(routes())
    app = Starlette(routes=[Mount("/", inner)])
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


def with_catch_all(throttle: ManualThrottle) -> Any:
    app = FastAPI()
    app.include_router(routes())

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return Response(f"{type(error).__name__}", 500)

    return ThrottleMiddleware(app, throttle=throttle)


def without_middleware(throttle: ManualThrottle) -> Any:
    app = FastAPI()
    app.include_router(routes(throttle=throttle))
    return app


INSIDE = [added, added_behind_another]
OUTSIDE = [wrapped, mounted, with_catch_all]


@pytest.mark.parametrize("attach", [*INSIDE, *OUTSIDE])
async def test_charges_the_same_caller_once_more(attach: Callable[[ManualThrottle], Any]) -> None:
    throttle = throttle_for_tests(user_limit=LIMIT)
    async with client(attach(throttle)) as caller:
        assert_admitted(await caller.get("/dear"))  # 1 by the middleware and 4 by the dependency
        assert_limited(await caller.get("/dear"), "user")
    assert throttle.snapshot().requests[Priority.MID, "limited", Reason.USER] == 1


@pytest.mark.parametrize("attach", [*INSIDE, *OUTSIDE, without_middleware])
async def test_rejected_charge_is_never_a_server_error(attach: Callable[[ManualThrottle], Any]) -> None:
    throttle = throttle_for_tests(user_limit="3/minute")
    async with client(attach(throttle)) as caller:
        answer = await caller.get("/dear")
    assert answer.status_code == 413  # 4 units never fit into 3
    assert "retry-after" not in answer.headers
    assert answer.headers["x-should-retry"] == "false"


async def rejected(app: Any) -> httpx.Response:
    """The first refusal, which must be the dependency's."""
    async with client(app) as caller:
        while (answer := await caller.get("/dear")).status_code == 200:
            pass
    return answer


@pytest.mark.parametrize("attach", INSIDE)
async def test_behind_the_middleware_the_response_is_the_middlewares(
    attach: Callable[[ManualThrottle], Any],
) -> None:
    throttle = throttle_for_tests(user_limit=ALMOST_TWO)
    answer = await rejected(attach(throttle))
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["reason"] == "user:user-60s"
    assert answer.headers["retry-after"] == "60"
    assert throttle.snapshot().requests[Priority.MID, "admitted", Reason.OK] == 2
    assert throttle.snapshot().outcomes[Priority.MID, Outcome.NEUTRAL] == 1


@pytest.mark.parametrize("attach", [*OUTSIDE, without_middleware])
async def test_elsewhere_status_and_fields_are_the_same(attach: Callable[[ManualThrottle], Any]) -> None:
    answer = await rejected(attach(throttle_for_tests(user_limit=ALMOST_TWO)))
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "60"
    assert answer.headers["retry-after-ms"] == "60000"
    assert answer.headers["ratelimit-policy"] == '"user-60s";q=9;w=60'
    assert answer.headers["ratelimit"] == '"user-60s";r=0;t=60'
    assert answer.headers["content-type"] == "application/json"
    assert "try again in 60 s" in answer.json()["detail"]
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize("attach", [*OUTSIDE, without_middleware])
async def test_elsewhere_the_sentence_is_the_same_in_each_format(
    attach: Callable[[ManualThrottle], Any],
) -> None:
    answer = await rejected(attach(throttle_for_tests(user_limit=ALMOST_TWO, errors="openai")))
    assert answer.json() == {"detail": "Your limit user-60s is used up; try again in 60 s."}
    assert answer.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert "ratelimit" not in answer.headers


async def test_without_middleware_the_caller_is_the_address() -> None:
    throttle = throttle_for_tests(user_limit=LIMIT)
    app = without_middleware(throttle)
    for address in ("192.0.2.1", "192.0.2.2"):
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as caller:
            assert [(await caller.get("/dear")).status_code for _ in range(2)] == [200, 429]


async def test_priority_is_that_of_the_request_unless_it_is_given() -> None:
    throttle = throttle_for_tests()
    app = FastAPI()

    @app.get("/same", dependencies=[Depends(limit())])
    async def same() -> None: ...

    @app.get("/high", dependencies=[Depends(limit("high", 2))])
    async def high() -> None: ...

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    async with client(app) as caller:
        await caller.get("/same", headers={"x-priority": "low"})
        await caller.get("/high", headers={"x-priority": "low"})
    tokens = throttle.snapshot().tokens
    assert tokens == {Priority.HIGH: 998.0, Priority.MID: 500.0, Priority.LOW: 97.0}


async def test_keeps_plan_route_and_address_of_the_request() -> None:
    throttle = throttle_for_tests(
        routes=[{"pattern": "/v1/*", "user_limit": "10/minute", "name": "v1"}], user_limit="1/minute"
    )
    app = FastAPI()

    @app.get("/v1/ask", dependencies=[Depends(limit(cost=4))])
    async def ask() -> None: ...

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    async with client(app) as caller:
        answers = [await caller.get("/v1/ask") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_of_two_throttles_the_innermost_is_charged() -> None:
    outer, inner = throttle_for_tests(), throttle_for_tests()
    app = FastAPI()
    app.include_router(routes())
    app.add_middleware(ThrottleMiddleware, throttle=inner)
    app.add_middleware(ThrottleMiddleware, throttle=outer)
    async with client(app) as caller:
        await caller.get("/dear")
    assert outer.snapshot().tokens[Priority.MID] == 499.0
    assert inner.snapshot().tokens[Priority.MID] == 495.0


async def test_a_throttle_of_its_own_is_charged_beside_the_middleware() -> None:
    outer, own = throttle_for_tests(), throttle_for_tests(user_limit=LIMIT)
    app = FastAPI()
    app.include_router(routes(throttle=own))
    app.add_middleware(ThrottleMiddleware, throttle=outer)
    async with client(app) as caller:
        answers = [await caller.get("/dear") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert outer.snapshot().tokens[Priority.MID] == 498.0


async def test_one_dependency_used_twice_charges_once() -> None:
    throttle = throttle_for_tests()
    once = limit(cost=4)
    app = FastAPI(dependencies=[Depends(once)])

    @app.get("/", dependencies=[Depends(once)])
    async def root() -> None: ...

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    async with client(app) as caller:
        await caller.get("/")
    assert throttle.snapshot().tokens[Priority.MID] == 495.0


async def test_without_a_throttle_the_endpoint_responds_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()
    app.include_router(routes())
    with caplog.at_level(logging.WARNING):
        async with client(app) as caller:
            assert [(await caller.get("/dear")).status_code for _ in range(3)] == [200, 200, 200]
    assert caplog.text.count("limit() charges nothing") == 1


@pytest.mark.parametrize("given", [True, False])
async def test_what_is_exempt_is_not_charged_here_either(
    given: bool, caplog: pytest.LogCaptureFixture
) -> None:
    throttle = throttle_for_tests(exempt_paths="/dear", user_limit="1/minute")
    app = FastAPI()
    app.include_router(routes(throttle=throttle if given else None))
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    async with client(app) as caller:
        assert [(await caller.get("/dear")).status_code for _ in range(3)] == [200, 200, 200]
    assert throttle.snapshot().tokens[Priority.MID] == 500.0
    assert not caplog.records


async def test_what_only_the_inner_throttle_exempts_is_charged_by_the_outer() -> None:
    outer, inner = throttle_for_tests(), throttle_for_tests(exempt_paths="/dear")
    app = FastAPI()
    app.include_router(routes())
    app.add_middleware(ThrottleMiddleware, throttle=inner)
    app.add_middleware(ThrottleMiddleware, throttle=outer)
    async with client(app) as caller:
        await caller.get("/dear")
    assert outer.snapshot().tokens[Priority.MID] == 495.0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.SUCCESS),
        (HTTPException(404), Outcome.SUCCESS),
        (HTTPException(502), Outcome.FAILURE),
        (RuntimeError("broken"), Outcome.FAILURE),
        (ClientDisconnect(), Outcome.NEUTRAL),
    ],
)
async def test_its_own_permit_is_settled_as_the_endpoint_ends(
    error: Exception | None, outcome: Outcome
) -> None:
    throttle = throttle_for_tests()
    app = FastAPI()
    seen: list[Permit] = []

    @app.get("/")
    async def root(permit: Annotated[Permit, Depends(limit("high", throttle=throttle))]) -> None:
        seen.append(permit)
        assert not permit.settled
        if error is not None:
            raise error

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as caller:
        await caller.get("/")
    assert seen[0].settled
    snapshot = throttle.snapshot()
    assert {o: snapshot.outcomes[Priority.HIGH, o] for o in Outcome} == {
        **dict.fromkeys(Outcome, 0),
        outcome: 1,
    }
    assert sum(snapshot.active.values()) == 0
    assert snapshot.stale_results == 0


async def test_rejected_second_charge_settles_the_first_neutral() -> None:
    throttle = throttle_for_tests(user_limit="3/minute")
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit("high")), Depends(limit("low", 5))])
    async def root() -> None: ...

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    async with client(app) as caller:
        assert_limited(await caller.get("/"), "too_large")
    snapshot = throttle.snapshot()
    assert snapshot.outcomes[Priority.MID, Outcome.NEUTRAL] == 1
    assert sum(snapshot.active.values()) == 0


def charging(throttle: ManualThrottle, *charges: Any) -> FastAPI:
    """A service with an endpoint that depends on charges, and one that does not."""
    app = FastAPI()

    @app.get("/dear", dependencies=[Depends(charge) for charge in charges])
    async def dear() -> str:
        return "dear"

    @app.get("/cheap")
    async def cheap() -> str:
        return "cheap"

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


# FIELD 14
@pytest.mark.parametrize(
    "settings", [{"user_limit": "5/second"}, {"rate_mid_rps": 5}, {"user_limit": "5/second;100/minute"}]
)
@pytest.mark.parametrize("charges", [[5], [2, 3]])
async def test_sum_above_a_limit_is_too_large(settings: dict[str, Any], charges: list[float]) -> None:
    throttle = throttle_for_tests(**settings)
    async with client(charging(throttle, *(limit(cost=cost) for cost in charges))) as caller:
        for _ in range(3):
            answer = await caller.get("/dear")
            assert_limited(answer, "too_large")
            assert answer.status_code == 413
            assert "retry-after" not in answer.headers
        assert [(await caller.get("/cheap")).status_code for _ in range(6)] == [200] * 5 + [429]


# FIELD 14
async def test_admitted_response_tells_the_units_after_all_charges() -> None:
    throttle = throttle_for_tests(user_limit="9/minute")
    async with client(charging(throttle, limit(cost=2.5), limit("low"))) as caller:
        assert (await caller.get("/dear")).headers["ratelimit"] == '"user-60s";r=4;t=60'
    assert throttle.snapshot().requests[Priority.MID, "admitted", Reason.OK] == 1
    assert sum(throttle.snapshot().requests.values()) == 1


# FIELD 14
async def test_rejected_charge_refunds_the_whole_request() -> None:
    throttle = throttle_for_tests(user_limit="9/minute")
    async with client(charging(throttle, limit("high", cost=2), limit(cost=3))) as caller:
        assert_admitted(await caller.get("/dear"))
        tokens = throttle.snapshot().tokens
        for _ in range(4):
            assert_limited(await caller.get("/dear"), "user")
        assert throttle.snapshot().tokens == tokens
        assert [(await caller.get("/cheap")).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert sum(throttle.snapshot().active.values()) == 0


# FIELD 14
@pytest.mark.parametrize("settings", [{"user_limit": "9/10s"}, {"rate_mid_rps": 1, "burst_s": 9}])
async def test_rejected_charge_fits_at_its_retry_after(settings: dict[str, Any]) -> None:
    throttle = throttle_for_tests(**settings, retry_jitter=0)
    async with client(charging(throttle, limit(cost=4))) as caller:
        assert_admitted(await caller.get("/dear"))
        throttle.clock.advance(0.5)
        wait_s = (await caller.get("/dear")).json()["retry_after_s"]
        throttle.clock.advance(wait_s - 0.001)
        assert_limited(await caller.get("/dear"))
        throttle.clock.advance(0.001)
        assert_admitted(await caller.get("/dear"))


# FIELD 14
async def test_charge_gives_the_permit_of_the_request() -> None:
    throttle = throttle_for_tests()
    app = FastAPI()

    @app.get("/")
    async def root(
        request: Request, one: Annotated[Permit, Depends(limit())], other: Annotated[Permit, Depends(limit())]
    ) -> bool:
        return one is other is permit_of(request.scope)

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    async with client(app) as caller:
        assert (await caller.get("/")).json() is True


# FIELD 14
async def test_dry_run_counts_a_charge_that_would_be_rejected() -> None:
    throttle = throttle_for_tests(user_limit="9/minute", dry_run=True)
    async with client(charging(throttle, limit(cost=4))) as caller:
        assert [(await caller.get("/dear")).status_code for _ in range(3)] == [200] * 3
    assert throttle.snapshot().would_reject[Priority.MID, Reason.USER] == 2
    assert sum(throttle.snapshot().active.values()) == 0


async def test_a_stream_keeps_its_permit_to_the_end_of_the_dependency() -> None:
    throttle = throttle_for_tests()
    app = FastAPI()

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    @app.get("/", dependencies=[Depends(limit())])
    async def root() -> StreamingResponse:
        return StreamingResponse(parts())

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    async with client(app) as caller:
        assert (await caller.get("/")).content == b"onetwo"
    assert sum(throttle.snapshot().active.values()) == 0


async def websocket_exchange(app: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/ws",
        "headers": [],
        "query_string": b"",
        "client": ("192.0.2.1", 1),
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("inside", [True, False])
async def test_rejected_websocket_is_closed_with_try_again_later(inside: bool) -> None:
    throttle = throttle_for_tests(user_limit=ALMOST_TWO if inside else LIMIT)
    app = FastAPI()

    @app.websocket("/ws", dependencies=[Depends(limit(cost=4, throttle=None if inside else throttle))])
    async def ws(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    if inside:
        app.add_middleware(ThrottleMiddleware, throttle=throttle)
    assert (await websocket_exchange(app))[0]["type"] == "websocket.accept"
    (rejection,) = await websocket_exchange(app)
    assert (rejection["type"], rejection["code"]) == ("websocket.close", 1013)


@pytest.mark.parametrize("options", [{"cost": 0}, {"cost": -1}, {"priority": "urgent"}])
def test_a_wrong_price_is_found_where_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        limit(**options)
