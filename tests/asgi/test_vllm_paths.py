"""Inside vLLM: every path behaves as its kind asks, without a setting; what the user has set stays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.asgi.run_app import request, statuses
from tests.asgi.vllm_server import VllmApp, permits_of, serve, vllm_state

PROBES = (
    *("GET /health", "GET /metrics", "GET /metrics/", "GET /metricsANYTHING", "GET /ping", "POST /ping"),
    *("GET /version", "GET /v1/models", "GET /load", "GET /docs", "GET /redoc", "GET /openapi.json"),
    *("GET /kv_event_sources", "POST /is_scaling_elastic_ep"),
)
FREEING = (
    *("POST /v1/responses/resp_1/cancel", "POST /inference/v1/abort_requests", "POST /scale_elastic_ep"),
)
CHEAP = (
    *("POST /tokenize", "POST /detokenize", "POST /v1/messages/count_tokens", "POST /v1/messages/render"),
    *("POST /v1/chat/completions/render", "POST /v1/chat/completions/derender"),
    *("POST /v1/completions/render", "POST /v1/completions/derender", "POST /v1/responses/render"),
)
ENGINE = (
    *("POST /v1/chat/completions", "POST /v1/chat/completions/batch", "POST /v1/completions"),
    *("POST /v1/responses", "POST /v1/messages", "POST /invocations", "POST /inference/v1/generate"),
    *("POST /generative_scoring", "POST /v1/embeddings", "POST /pooling", "GET /v1/responses/resp_1"),
)


@pytest.mark.parametrize("line", [*PROBES, *FREEING])
async def test_probe_or_cancellation_is_never_rejected(line: str) -> None:
    method, path = line.split()
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute", queue_max=0)
    permits = permits_of(middleware, 9)
    assert await statuses(middleware, path, 3, method) == [200, 200, 200]
    assert len(permits) == 9
    assert middleware.throttle.snapshot().exempt == 3


@pytest.mark.parametrize("path", ["/v2/health", "/api/ping"])
async def test_probe_under_root_path_is_exempt(path: str) -> None:
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute")
    root = path.rpartition("/")[0]
    assert await statuses(middleware, path, 2, root_path=root) == [200, 200]


@pytest.mark.parametrize("path", ["/metrics/../v1/completions", "/metrics//x", "/v1/models/m", "/pingpong"])
async def test_path_beside_a_probe_is_limited(path: str) -> None:
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute")
    assert await statuses(middleware, path, 2) == [200, 429]


@pytest.mark.parametrize("line", CHEAP)
async def test_cheap_path_is_charged_without_a_slot(line: str) -> None:
    method, path = line.split()
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute", queue_max=0)
    permits = permits_of(middleware, 9)  # the engine is full
    assert await statuses(middleware, path, 2, method) == [200, 429]
    assert len(permits) == 9


@pytest.mark.parametrize("line", ENGINE)
async def test_engine_path_needs_a_slot(line: str) -> None:
    method, path = line.split()
    middleware = await serve(VllmApp(), vllm_state(), queue_max=0)
    assert await statuses(middleware, path, 1, method) == [200]
    permits = permits_of(middleware, 9)
    assert await statuses(middleware, path, 1, method) == [503]
    assert len(permits) == 9


async def test_own_policies_and_exempt_paths_win() -> None:
    routes = [{"pattern": "/tokenize", "exempt": True}, {"pattern": "/ping", "cost": 1}]
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute", routes=routes)
    assert await statuses(middleware, "/tokenize", 2) == [200, 200]
    assert await statuses(middleware, "/ping", 2) == [200, 429]
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute", exempt_paths="/alive")
    assert await statuses(middleware, "/alive", 2) == [200, 200]
    assert await statuses(middleware, "/version", 2) == [200, 429]
    assert (await request(middleware, "/scale_elastic_ep", "POST")).status == 200


@pytest.mark.parametrize(
    ("path", "errors", "front"),
    [
        ("/v1/chat/completions", "auto", b'{"error":{"message":'),
        ("/invocations", "auto", b'{"error":{"message":'),
        ("/tokenize", "auto", b'{"error":{"message":'),
        ("/v1/messages", "auto", b'{"type":"error","error":{'),
        ("/v1/messages/count_tokens", "auto", b'{"type":"error","error":{'),
        ("/invocations", "problem", b'{"type":"https://'),
        ("/v1/messages", "openai", b'{"error":{"message":'),
    ],
)
async def test_rejection_has_the_format_of_its_client(path: str, errors: str, front: bytes) -> None:
    chosen: dict[str, Any] = {} if errors == "auto" else {"errors": errors}
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute", **chosen)
    await request(middleware, path, "POST")
    answer = await request(middleware, path, "POST")
    assert (answer.status, answer.body.startswith(front)) == (429, True), answer.body
