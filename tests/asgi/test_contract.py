"""The limits really apply, wherever the endpoint stands and however the throttle is attached.

Of ``LIMIT + 3`` requests exactly ``LIMIT`` pass on. What a limiter forgets here it forgets silently.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket as StarletteWebSocket

from autoglm_throttle import Priority, Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware, exempt, mark, marks
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.asgi.drive import App, connect, request, send_scope, statuses, websocket_scope

LIMIT = 3
TIMES = LIMIT + 3

Endpoint = Callable[..., Any]
Decorate = Callable[[Endpoint], Endpoint]


def plain(endpoint: Endpoint) -> Endpoint:
    return endpoint


class Site:
    """One endpoint, reached at one path in one kind of app."""

    def __init__(
        self, build: Callable[[Decorate], Any], path: str, answers: int = 200, method: str = "GET"
    ) -> None:
        self.build = build
        self.path = path
        self.answers = answers
        self.method = method


def fast_endpoint(decorate: Decorate) -> Endpoint:
    async def endpoint() -> str:
        return "ok"

    return decorate(endpoint)


def fast_direct(decorate: Decorate) -> FastAPI:
    app = FastAPI()
    app.get("/x")(fast_endpoint(decorate))
    return app


def fast_router(*prefixes: str, own: str = "", path: str = "/x") -> Callable[[Decorate], FastAPI]:
    """An endpoint in a router, included with each of the prefixes from the innermost to the outermost."""

    def build(decorate: Decorate) -> FastAPI:
        router = APIRouter(prefix=own)
        router.get(path)(fast_endpoint(decorate))
        for prefix in prefixes[:-1]:
            outer = APIRouter()
            outer.include_router(router, prefix=prefix)
            router = outer
        app = FastAPI()
        app.include_router(router, prefix=prefixes[-1])
        return app

    return build


def mounted(build: Callable[[Decorate], Any], *paths: str) -> Callable[[Decorate], Any]:
    """Another app, mounted at each of the paths from the innermost to the outermost."""

    def mount(decorate: Decorate) -> Any:
        app = build(decorate)
        for path in paths:
            outer = FastAPI()
            outer.mount(path, app)
            app = outer
        return app

    return mount


def star_endpoint(decorate: Decorate) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok")

    return decorate(endpoint)


def star_direct(decorate: Decorate) -> Starlette:
    return Starlette(routes=[Route("/x", star_endpoint(decorate))])


def star_mounted(decorate: Decorate) -> Starlette:
    inner = Mount("/in/{room}", routes=[Route("/x/{item:int}", star_endpoint(decorate))])
    return Starlette(routes=[Mount("/out", routes=[inner])])


def raw(decorate: Decorate) -> Endpoint:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("ok")(scope, receive, send)

    return decorate(app)


SITES = {
    "fastapi direct": Site(fast_direct, "/x"),
    "router, prefix at include": Site(fast_router("/in"), "/in/x"),
    "router, prefix on router": Site(fast_router("", own="/own"), "/own/x"),
    "router, both prefixes": Site(fast_router("/in", own="/own"), "/in/own/x"),
    "router, nested": Site(fast_router("/in", "/out", own="/own"), "/out/in/own/x"),
    "router, nested twice": Site(fast_router("/a", "/b", "/c"), "/c/b/a/x"),
    "router, parameters": Site(fast_router("/t/{tenant}", path="/x/{item}"), "/t/acme/x/7"),
    "mount": Site(mounted(fast_direct, "/m"), "/m/x"),
    "mount, nested": Site(mounted(fast_direct, "/m", "/n"), "/n/m/x"),
    "mount, parameters": Site(mounted(fast_direct, "/t/{tenant}"), "/t/acme/x"),
    "router in a mount": Site(mounted(fast_router("/in"), "/m"), "/m/in/x"),
    "starlette direct": Site(star_direct, "/x"),
    "starlette mount, parameters": Site(star_mounted, "/out/in/7/x/7"),
    "starlette in fastapi": Site(mounted(star_direct, "/m"), "/m/x"),
    "raw app": Site(raw, "/any/path"),
    "raw app in a mount": Site(mounted(raw, "/m"), "/m/any"),
    "head": Site(star_direct, "/x", method="HEAD"),
    "trailing slash": Site(fast_direct, "/x/", 307),
}
UNROUTED = {
    "404": Site(fast_direct, "/nowhere", 404),
    "404 in a mount": Site(mounted(fast_direct, "/m"), "/m/nowhere", 404),
    "405": Site(fast_direct, "/x", 405, "DELETE"),
    "double slash": Site(fast_direct, "//x", 404),
    "path in full": Site(star_direct, "http://other/x", 404),
    "empty path": Site(raw, "", 200),
}


def by_env(app: Any, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> App:
    for name, value in limits.items():
        monkeypatch.setenv(f"AUTOGLM_THROTTLE_{name.upper()}", str(value))
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", "none")
    if hasattr(app, "add_middleware"):
        app.add_middleware(ThrottleMiddleware)
        return app  # type: ignore[no-any-return]
    return ThrottleMiddleware(app)


def by_argument(app: Any, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> App:
    throttle = throttle_for_tests(**limits)
    if hasattr(app, "add_middleware"):
        app.add_middleware(ThrottleMiddleware, throttle=throttle)
        return app  # type: ignore[no-any-return]
    return ThrottleMiddleware(app, throttle=throttle)


def by_wrapping(app: Any, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> App:
    return ThrottleMiddleware(app, throttle=throttle_for_tests(**limits))


WAYS = {"env": by_env, "add_middleware": by_argument, "wrapping": by_wrapping}
USER: dict[str, Any] = {"user_limit": f"{LIMIT}/minute"}
BUCKET: dict[str, Any] = {"rate_mid_rps": 0.001, "burst_s": LIMIT * 1000}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("site", (SITES | UNROUTED).values(), ids=SITES | UNROUTED)
async def test_exactly_the_limit_passes(site: Site, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = way(site.build(plain), USER, monkeypatch)
    expected = [site.answers] * LIMIT + [429] * (TIMES - LIMIT)
    assert await statuses(app, site.path, TIMES, site.method) == expected


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
async def test_exactly_the_burst_passes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    app = by_argument(site.build(plain), BUCKET, monkeypatch)
    expected = [site.answers] * LIMIT + [429] * (TIMES - LIMIT)
    assert await statuses(app, site.path, TIMES, site.method) == expected


def fast_websocket(decorate: Decorate) -> FastAPI:
    app = FastAPI()

    @app.websocket("/ws")
    @decorate
    async def endpoint(websocket: WebSocket) -> None:
        await websocket.accept()

    return app


def routed_websocket(decorate: Decorate) -> FastAPI:
    inner = fast_websocket(decorate)
    app = FastAPI()
    app.include_router(inner.router, prefix="/in")
    return app


def star_websocket(decorate: Decorate) -> Starlette:
    async def endpoint(websocket: StarletteWebSocket) -> None:
        await websocket.accept()

    return Starlette(routes=[WebSocketRoute("/ws", decorate(endpoint))])


SOCKETS = {
    "fastapi": Site(fast_websocket, "/ws"),
    "router": Site(routed_websocket, "/in/ws"),
    "mount": Site(mounted(fast_websocket, "/m"), "/m/ws"),
    "starlette": Site(star_websocket, "/ws"),
    "mount, starlette": Site(mounted(star_websocket, "/t/{tenant}"), "/t/acme/ws"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("site", SOCKETS.values(), ids=SOCKETS)
async def test_exactly_the_limit_of_websockets_passes(
    site: Site, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = way(site.build(plain), USER, monkeypatch)
    answers = [await connect(app, site.path) for _ in range(TIMES)]
    assert [answer.status for answer in answers] == [101] * LIMIT + [0] * 3
    assert [answer.close_code for answer in answers[LIMIT:]] == [1013] * 3


async def test_requests_and_websockets_of_one_user_share_one_limit() -> None:
    app = fast_websocket(plain)
    app.get("/x")(fast_endpoint(plain))
    wrapped = ThrottleMiddleware(app, throttle=throttle_for_tests(**USER))
    assert (await connect(wrapped, "/ws")).status == 101
    assert await statuses(wrapped, "/x", LIMIT) == [200] * (LIMIT - 1) + [429]


async def test_one_throttle_on_several_mounts_is_one_limit() -> None:
    throttle = throttle_for_tests(**USER)
    app = FastAPI()
    for path in ("/a", "/b"):
        app.mount(path, ThrottleMiddleware(raw(plain), throttle=throttle))
    answers = [(await request(app, path)).status for path in ("/a/x", "/b/x", "/a/x", "/b/x", "/a/x")]
    assert answers == [200, 200, 200, 429, 429]


@pytest.mark.parametrize("path", ["/m/x", "/m/nowhere"])
async def test_nested_twice_is_charged_once_with_one_warning(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    throttle = throttle_for_tests(**USER)
    inner = fast_direct(plain)
    inner.add_middleware(ThrottleMiddleware, throttle=throttle)
    outer = FastAPI()
    outer.mount("/m", inner)
    app = ThrottleMiddleware(outer, throttle=throttle)
    answers = await statuses(app, path, TIMES)
    assert answers[LIMIT - 1] != 429
    assert answers[LIMIT:] == [429] * 3
    assert [record.message for record in caplog.records if "share one throttle" in record.message] == [
        "two middlewares share one throttle round the same app; the inner one passes"
    ]


async def test_nested_exempt_requests_are_counted_once_and_stay_free() -> None:
    throttle = throttle_for_tests(**USER, exempt_paths="/m/health")
    inner = ThrottleMiddleware(raw(plain), throttle=throttle)
    outer = FastAPI()
    outer.mount("/m", inner)
    app = ThrottleMiddleware(outer, throttle=throttle)
    assert await statuses(app, "/m/health", TIMES) == [200] * TIMES
    assert throttle.snapshot().exempt == TIMES
    assert await statuses(app, "/m/x", TIMES) == [200] * LIMIT + [429] * 3


async def test_two_throttles_both_charge() -> None:
    outer, inner = throttle_for_tests(**USER), throttle_for_tests(user_limit="2/minute")
    app = ThrottleMiddleware(ThrottleMiddleware(raw(plain), throttle=inner), throttle=outer)
    assert await statuses(app, "/x", TIMES) == [200, 200, 429, 429, 429, 429]
    assert admitted(outer) == LIMIT


def admitted(throttle: Throttle) -> int:
    rows = throttle.snapshot().requests
    return sum(n for (_, name, _), n in rows.items() if name == "admitted")


def by_priority(throttle: Throttle) -> list[int]:
    rows = throttle.snapshot().requests
    return [sum(n for (p, name, _), n in rows.items() if name == "admitted" and p is q) for q in Priority]


MARKED = {**SITES, **{f"websocket {name}": site for name, site in SOCKETS.items()}}
EXACT = {name: site for name, site in MARKED.items() if name != "trailing slash"}


async def ask(app: App, site: Site) -> int:
    if site.path.endswith("/ws"):
        return (await connect(app, site.path)).status
    return (await request(app, site.path, site.method)).status


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("site", EXACT.values(), ids=EXACT)
async def test_exempt_mark_frees_its_endpoint(site: Site, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = way(site.build(exempt), {"user_limit": "1/minute"}, monkeypatch)
    answers = [await ask(app, site) for _ in range(TIMES)]
    assert set(answers) <= {200, 101}, answers


@pytest.mark.parametrize("site", MARKED.values(), ids=MARKED)
async def test_priority_mark_applies_from_the_first_request_on(site: Site) -> None:
    throttle = throttle_for_tests()
    app = ThrottleMiddleware(site.build(mark(priority="low")), throttle=throttle)
    for _ in range(TIMES):
        await ask(app, site)
    assert by_priority(throttle) == [0, 0, TIMES]


@pytest.mark.parametrize("site", MARKED.values(), ids=MARKED)
async def test_configuration_wins_over_marks(site: Site) -> None:
    throttle = throttle_for_tests(**USER, routes=[RoutePolicy("/*", priority="high")])
    app = ThrottleMiddleware(site.build(exempt), throttle=throttle)
    for _ in range(TIMES):
        await ask(app, site)
    assert by_priority(throttle) == [LIMIT, 0, 0]


@pytest.mark.parametrize("build", [fast_direct, star_direct, fast_router("")])
async def test_marks_of_routes_added_after_the_wrapping_are_learned_once(build: Any) -> None:
    late = build(mark(priority="low"))
    app = Starlette() if isinstance(late, Starlette) and not isinstance(late, FastAPI) else FastAPI()
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    app.router.routes.extend(late.router.routes)
    assert await statuses(wrapped, "/x", 3) == [200] * 3
    assert by_priority(throttle) == [0, 1, 2]


async def test_cost_mark_is_charged_in_full() -> None:
    throttle = throttle_for_tests(user_limit="10/minute")
    app = ThrottleMiddleware(fast_direct(mark(cost=4)), throttle=throttle)
    assert await statuses(app, "/x", 4) == [200, 200, 429, 429]


async def test_marks_on_one_path_are_told_apart_by_method() -> None:
    app = FastAPI()
    app.get("/x")(fast_endpoint(mark(priority="high")))
    app.post("/x")(fast_endpoint(mark(priority="low")))
    app.put("/x")(fast_endpoint(plain))
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    for method in ("GET", "POST", "POST", "PUT", "PUT", "PUT"):
        assert (await request(wrapped, "/x", method)).status == 200
    assert by_priority(throttle) == [1, 3, 2]


async def test_one_marked_router_included_twice_is_marked_under_both_prefixes() -> None:
    router = APIRouter()
    router.get("/x")(fast_endpoint(mark(priority="low")))
    app = FastAPI()
    app.include_router(router, prefix="/a")
    app.include_router(router, prefix="/b")
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    for path in ("/a/x", "/b/x", "/a/x", "/b/x"):
        await request(wrapped, path)
    assert by_priority(throttle)[Priority.LOW] >= 2


def with_catch_all(first: Endpoint, last: Endpoint) -> FastAPI:
    app = FastAPI()
    app.get("/api/{name}")(first)
    app.mount("/sub", FastAPI())
    app.get("/files/{name}.json")(first)
    app.get("/{rest:path}")(last)
    return app


@pytest.mark.parametrize("path", ["/api/x", "/sub/nowhere", "/files/a.json"])
async def test_exempt_catch_all_does_not_free_the_routes_before_it(path: str) -> None:
    async def catch_all(rest: str) -> str:
        return rest

    async def named(name: str) -> str:
        return name

    app = ThrottleMiddleware(with_catch_all(named, exempt(catch_all)), throttle=throttle_for_tests(**USER))
    assert await statuses(app, "/page", TIMES) == [200] * TIMES
    assert (await statuses(app, path, TIMES))[LIMIT:] == [429] * 3


async def test_exemption_that_frees_a_route_added_later_is_withdrawn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Starlette(routes=[Mount("/m", routes=[Route("/{rest:path}", star_endpoint(exempt))])])
    throttle = throttle_for_tests(user_limit="1/minute")
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    assert await statuses(wrapped, "/m/any", 3) == [200] * 3
    hidden = _Hidden([Route("/m/secret", star_endpoint(plain))])
    app.router.routes.insert(0, hidden)
    answers = await statuses(wrapped, "/m/secret", 4)
    assert answers == [200, 200, 429, 429], "free once, then counted"
    assert [r.levelno for r in caplog.records if "covers others" in r.message] == [logging.WARNING]


class _Hidden(BaseRoute):
    """A router that shows nothing of itself, as a future framework's might."""

    def __init__(self, routes: Iterable[Any]) -> None:
        self._shy = Router(routes=list(routes))

    def matches(self, scope: Any) -> Any:
        for route in self._shy.routes:
            match, child = route.matches(scope)
            if child:
                return match, {"hidden": route, "hidden_scope": child}
        return match, {}

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        route = scope["hidden"]
        scope.update(scope["hidden_scope"])
        scope["route"] = route
        await route.handle(scope, receive, send)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def hidden_app(template: str, decorate: Decorate) -> Starlette:
    app = Starlette()
    app.router.routes.append(_Hidden([Route(template, star_endpoint(decorate))]))
    return app


async def test_hidden_marks_are_learned_from_the_first_answer() -> None:
    throttle = throttle_for_tests()
    app = ThrottleMiddleware(hidden_app("/x/{item}", mark(priority="low")), throttle=throttle)
    assert await statuses(app, "/x/1", 2) == [200, 200]
    assert await statuses(app, "/x/2", 2) == [200, 200]
    assert by_priority(throttle) == [0, 1, 3]


@pytest.mark.parametrize("root_path", ["", "/api", None])
async def test_hidden_marks_are_learned_behind_a_root_path(root_path: str | None) -> None:
    throttle = throttle_for_tests()
    app = ThrottleMiddleware(hidden_app("/x/{item}", mark(priority="low")), throttle=throttle)
    for _ in range(2):
        await request(app, f"{root_path or ''}/x/1", root_path=root_path)
    assert by_priority(throttle) == [0, 1, 1]
    assert [policy.pattern for policy in app._marks._learned] == ["/x/{part1}"]


async def test_hidden_templates_never_become_concrete_tenants() -> None:
    inner = hidden_app("/x/{item}", mark(priority="low"))
    app = Starlette(routes=[Mount("/t/{tenant}", app=_Opaque(inner))])
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    for number in range(100):
        assert (await request(wrapped, f"/t/{number}/x/{number}")).status == 200
    assert by_priority(throttle) == [0, 1, 99]
    learned = [policy.pattern for policy in wrapped._marks._learned]
    assert learned == ["/t/{part1}/x/{part3}"]


class _Opaque:
    """An app whose routes cannot be seen."""

    def __init__(self, app: App) -> None:
        self._inside = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._inside(scope, receive, send)


async def test_tenant_called_like_a_part_of_the_path_teaches_nothing_wrong() -> None:
    inner = hidden_app("/x", mark(priority="low"))
    app = Starlette(routes=[Mount("/api/{tenant}", app=_Opaque(inner))])
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    assert await statuses(wrapped, "/api/api/x", 2) == [200, 200]
    assert not wrapped._marks._learned
    assert await statuses(wrapped, "/api/acme/x", 2) == [200, 200]
    assert [policy.pattern for policy in wrapped._marks._learned] == ["/api/{part1}/x"]


async def test_what_can_never_be_learned_stops_neither_learning_nor_the_requests() -> None:
    inner = hidden_app("/x/{item}", mark(priority="low"))
    app = Starlette(routes=[Mount("/t/{tenant}", app=_Opaque(inner))])
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    uncertain = marks.WALKS_AT_MOST + 10
    assert await statuses(wrapped, "/t/t/x/1", uncertain) == [200] * uncertain
    assert wrapped._marks._walks == marks.WALKS_AT_MOST
    assert await statuses(wrapped, "/t/acme/x/1", 2) == [200, 200]
    assert by_priority(throttle) == [0, uncertain + 1, 1]


@pytest.mark.parametrize(
    ("path", "free"),
    [
        ("/health", True),
        ("/metrics", True),
        ("//metrics", False),
        ("/metrics/", False),
        ("/metrics//", False),
        ("/Metrics", False),
        ("/healthcare", False),
        ("/health/../x", False),
        ("/health\x00", False),
        ("/api//free", False),
        ("/api/free", True),
        ("/marked", True),
        ("//marked", False),
    ],
)
async def test_exempt_paths_are_exact(path: str, free: bool) -> None:
    app = fast_direct(plain)
    app.get("/marked")(fast_endpoint(exempt))
    throttle = throttle_for_tests(**USER, routes=[RoutePolicy("/api/free", exempt=True)])
    answers = await statuses(ThrottleMiddleware(app, throttle=throttle), path, TIMES)
    assert (answers[LIMIT:] == [429] * 3) is not free
    assert throttle.snapshot().exempt == (TIMES if free else 0)


async def test_options_is_free_because_browsers_ask_it_first() -> None:
    throttle = throttle_for_tests(**USER)
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    assert await statuses(app, "/x", TIMES, "OPTIONS") == [200] * TIMES
    assert await statuses(app, "/x", 1, "options") == [200], "no such method: charged"
    assert admitted(throttle) == 1


@pytest.mark.parametrize("root_path", ["/api", "/api/", ""])
async def test_root_path_is_not_part_of_the_pattern(root_path: str) -> None:
    throttle = throttle_for_tests(routes=[RoutePolicy("/x", priority="low")])
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    await request(app, root_path.rstrip("/") + "/x", root_path=root_path.rstrip("/"))
    await request(app, root_path.rstrip("/") + "/health", root_path=root_path.rstrip("/"))
    assert by_priority(throttle) == [0, 0, 1]
    assert throttle.snapshot().exempt == 1


async def test_512_concurrent_cold_requests_admit_exactly_the_limit() -> None:
    throttle = throttle_for_tests(user_limit="100/minute")
    app = ThrottleMiddleware(fast_direct(plain), throttle=throttle)
    answers = await asyncio.gather(*(request(app, "/x") for _ in range(512)))
    assert [answer.status for answer in answers].count(200) == 100
    assert throttle.snapshot().active[Priority.MID] == 0


def test_cold_requests_of_eight_event_loops_admit_exactly_the_limit() -> None:
    throttle = throttle_for_tests(user_limit="100/minute")
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    barrier = threading.Barrier(8)
    answers: list[int] = []

    def run() -> None:
        barrier.wait(5)
        answers.extend(asyncio.run(statuses(app, "/x", 64)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert answers.count(200) == 100
    assert answers.count(429) == 412


async def test_refusal_is_exact_to_the_instant() -> None:
    throttle = throttle_for_tests(**USER)
    app = ThrottleMiddleware(raw(plain), throttle=throttle)
    await statuses(app, "/x", LIMIT)
    refused = await request(app, "/x")
    wait = int(refused.header("retry-after") or 0)
    assert wait == 60
    throttle.clock.advance(wait - 0.001)
    assert (await request(app, "/x")).status == 429
    throttle.clock.advance(0.001)
    assert (await request(app, "/x")).status == 200


async def test_users_are_limited_each_for_itself() -> None:
    app = ThrottleMiddleware(raw(plain), throttle=throttle_for_tests(**USER))
    for host in ("192.0.2.1", "192.0.2.2"):
        assert await statuses(app, "/x", TIMES, client=(host, 1)) == [200] * LIMIT + [429] * 3


async def test_dead_client_address_is_still_limited() -> None:
    app = ThrottleMiddleware(raw(plain), throttle=throttle_for_tests(**USER))
    assert await statuses(app, "/x", TIMES, client=None) == [200] * LIMIT + [429] * 3


async def test_gpu_at_the_door_refuses_everything_but_the_exempt() -> None:
    throttle: ManualThrottle = throttle_for_tests()
    throttle.gpu.utilization_pct = 97
    throttle.tick(3)
    app = ThrottleMiddleware(fast_direct(plain), throttle=throttle)
    answer = await request(app, "/x")
    assert answer.status == 503
    assert (await request(app, "/health")).status == 404
    denial = await send_scope(app, websocket_scope("/ws", denial=True), [{"type": "websocket.connect"}])
    assert denial.status == 503


async def test_environment_is_not_read_where_a_throttle_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_USER_LIMIT", "nonsense")
    app = ThrottleMiddleware(raw(plain), throttle=Throttle(Settings(gpu="none", user_limit="1/minute")))
    assert await statuses(app, "/x", 2) == [200, 429]
