"""Marks apply to their own endpoint, from the first or the second request on, and to no other."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route, Router

from autoglm_throttle import Priority
from autoglm_throttle.asgi import ThrottleMiddleware, exempt, mark, marks
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.testing import throttle_for_tests
from tests.asgi.attachments import (
    LIMIT,
    SITES,
    SOCKETS,
    TIMES,
    USER,
    WAYS,
    Decorate,
    Endpoint,
    Site,
    by_priority,
    fast_direct,
    fast_endpoint,
    fast_router,
    plain,
    star_direct,
    star_endpoint,
)
from tests.asgi.run_app import App, connect, request, statuses

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
async def test_marks_of_later_routes_are_learned_once(build: Any) -> None:
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


async def test_marks_on_one_path_differ_by_method() -> None:
    app = FastAPI()
    app.get("/x")(fast_endpoint(mark(priority="high")))
    app.post("/x")(fast_endpoint(mark(priority="low")))
    app.put("/x")(fast_endpoint(plain))
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    for method in ("GET", "POST", "POST", "PUT", "PUT", "PUT"):
        assert (await request(wrapped, "/x", method)).status == 200
    assert by_priority(throttle) == [1, 3, 2]


async def test_router_included_twice_is_marked_under_both_prefixes() -> None:
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
    assert [r.levelno for r in caplog.records if "matches other endpoints" in r.message] == [logging.WARNING]


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


async def test_parameter_equal_to_path_part_teaches_nothing_wrong() -> None:
    inner = hidden_app("/x", mark(priority="low"))
    app = Starlette(routes=[Mount("/api/{tenant}", app=_Opaque(inner))])
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    assert await statuses(wrapped, "/api/api/x", 2) == [200, 200]
    assert not wrapped._marks._learned
    assert await statuses(wrapped, "/api/acme/x", 2) == [200, 200]
    assert [policy.pattern for policy in wrapped._marks._learned] == ["/api/{part1}/x"]


async def test_unlearnable_mark_stops_neither_learning_nor_requests() -> None:
    inner = hidden_app("/x/{item}", mark(priority="low"))
    app = Starlette(routes=[Mount("/t/{tenant}", app=_Opaque(inner))])
    throttle = throttle_for_tests()
    wrapped = ThrottleMiddleware(app, throttle=throttle)
    uncertain = marks.MAX_WALKS + 10
    assert await statuses(wrapped, "/t/t/x/1", uncertain) == [200] * uncertain
    assert wrapped._marks._walks == marks.MAX_WALKS
    assert await statuses(wrapped, "/t/acme/x/1", 2) == [200, 200]
    assert by_priority(throttle) == [0, uncertain + 1, 1]


class OddRoute:
    """A route with a method that no pattern can express."""

    path, methods = "/odd", ("GE T",)

    @staticmethod
    def endpoint() -> None:
        """Nothing calls it."""


def test_route_that_no_pattern_expresses_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    known = Route("/known", star_endpoint(mark(priority="low")), methods=["POST"])
    app: Any = SimpleNamespace(routes=[OddRoute, known])
    assert [policy.pattern for policy in marks.visible_routes(app)] == ["/known"]
    assert "no pattern can represent the route /odd" in caplog.text


def test_policies_of_marks_are_named_after_methods_and_pattern() -> None:
    routes = [
        Route("/a/{x}", star_endpoint(mark(priority="low")), methods=["POST", "PUT"]),
        Route("/b", star_endpoint(plain), methods=["POST"]),
    ]
    assert [policy.name for policy in marks.visible_routes(Starlette(routes=routes))] == [
        "mark POST,PUT /a/{part1}",
        "POST /b",
    ]
