"""The refusals in the OpenAPI document."""

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI

from autoglm_throttle import RoutePolicy, ThrottleMiddleware
from autoglm_throttle.fastapi import ThrottleProblem, add_to_openapi, exempt, limit, mark, throttle_responses
from autoglm_throttle.testing import throttle_for_tests

REFUSALS = {"413", "429", "503"}


def service() -> FastAPI:
    app = FastAPI()
    inner = APIRouter(prefix="/inner")
    outer = APIRouter()

    @app.get("/", responses={429: {"description": "my own words"}})
    async def root() -> str:
        return "root"

    @app.post("/marked")
    @mark(priority="low")
    async def marked() -> None: ...

    @app.get("/health")
    async def health() -> None: ...

    @app.get("/free")
    @exempt
    async def free() -> None: ...

    @inner.put("/{item}")
    @inner.delete("/{item}")
    async def nested(item: int) -> None: ...

    outer.include_router(inner, prefix="/outer")
    app.include_router(outer)
    return app


def operations(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method} {path}": operation
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    }


def test_every_guarded_operation_documents_rejections() -> None:
    app = service()
    before = operations(app.openapi())
    app.openapi_schema = None
    add_to_openapi(app)
    after = operations(app.openapi())
    assert after.keys() == before.keys()
    passes = {"get /health", "get /free"}
    for name, operation in after.items():
        gained = operation["responses"].keys() - before[name]["responses"].keys()
        assert gained == (set() if name in passes else REFUSALS - before[name]["responses"].keys())


def test_operation_documents_the_format_of_its_path() -> None:
    app = FastAPI()
    for path in ("/v1/chat/completions", "/chat", "/ask"):
        app.get(path)(lambda: None)
    throttle = throttle_for_tests(routes=[RoutePolicy("/ask", errors="jsonrpc")])
    add_to_openapi(app, throttle=throttle)
    found = {
        name: list(operation["responses"]["429"]["content"])
        for name, operation in operations(app.openapi()).items()
    }
    problem, other = ["application/problem+json"], ["application/json"]
    assert found == {"get /v1/chat/completions": other, "get /chat": problem, "get /ask": other}


def test_texts_of_the_user_stay() -> None:
    app = service()
    add_to_openapi(app)
    assert operations(app.openapi())["get /"]["responses"]["429"] == {"description": "my own words"}


def test_the_body_is_a_named_schema() -> None:
    app = service()
    add_to_openapi(app)
    schema = app.openapi()
    assert "violated-policies" in schema["components"]["schemas"]["ThrottleProblem"]["properties"]
    rejection = operations(schema)["post /marked"]["responses"]["429"]
    assert rejection["content"] == {
        "application/problem+json": {"schema": {"$ref": "#/components/schemas/ThrottleProblem"}}
    }


def test_calling_it_twice_changes_nothing() -> None:
    app = service()
    add_to_openapi(app)
    once = json.dumps(app.openapi())
    add_to_openapi(app)
    assert json.dumps(app.openapi()) == once
    app.openapi_schema = None
    assert json.dumps(app.openapi()) == once


def test_what_a_throttle_exempts_is_left_out() -> None:
    app = service()
    add_to_openapi(
        app,
        throttle=throttle_for_tests(exempt_paths="/marked", routes=[RoutePolicy("/outer/*", exempt=True)]),
    )
    documented = {
        name for name, operation in operations(app.openapi()).items() if "503" in operation["responses"]
    }
    assert documented == {"get /", "get /health"}


def test_only_temporary_rejections_have_retry_after() -> None:
    fields = {status: set(response["headers"]) for status, response in throttle_responses().items()}
    assert fields == {
        413: {"RateLimit", "RateLimit-Policy"},
        429: {"RateLimit", "RateLimit-Policy", "Retry-After"},
        503: {"RateLimit", "RateLimit-Policy", "Retry-After"},
    }


def test_one_route_can_be_documented_by_itself() -> None:
    app = FastAPI()

    @app.get("/", responses=throttle_responses())
    async def root() -> None: ...

    schema = app.openapi()
    assert operations(schema)["get /"]["responses"].keys() >= REFUSALS
    assert "$ref" not in json.dumps(throttle_responses())


async def test_what_openapi_json_serves_is_what_is_documented() -> None:
    app = service()
    add_to_openapi(app)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as caller:
        assert (await caller.get("/openapi.json")).json() == app.openapi()


@pytest.mark.parametrize(
    ("settings", "cost", "status"),
    [
        ({"user_limit": "3/minute"}, 1, 429),
        ({"rate_mid_rps": "3/s"}, 1, 429),
        ({"user_limit": "1/minute"}, 1, 413),
        ({"rate_mid_rps": "1/s"}, 1, 413),
        ({"user_limit": "1/minute"}, 2, 413),
        ({"tiers": "1:0"}, 1, 503),
    ],
)
async def test_real_rejections_are_as_documented(settings: dict[str, Any], cost: int, status: int) -> None:
    throttle = throttle_for_tests(**settings)
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit(cost=cost))])
    async def root() -> None: ...

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    add_to_openapi(app)
    throttle.gpu.utilization_pct = 50.0
    throttle.tick(3)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as caller:
        while (answer := await caller.get("/")).status_code == 200:
            pass
    assert answer.status_code == status
    problem = ThrottleProblem.model_validate_json(answer.content)
    assert problem.status == status
    assert not problem.model_extra
    documented = operations(app.openapi())["get /"]["responses"][str(status)]
    known = {name.lower() for name in documented["headers"]}
    assert ("retry-after" in answer.headers) is ("retry-after" in known)
    assert {name for name in answer.headers if name.startswith("ratelimit")} <= known
    assert answer.headers["content-type"] in documented["content"]


def test_the_package_itself_does_not_load_fastapi() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, autoglm_throttle; print('fastapi' in sys.modules)"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.strip() == "False"
