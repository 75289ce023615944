"""Rejections carry the CORS and request id fields that the app's answers to the same requests carry."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.asgi.app_fields import ANSWERS, FIRST_ANSWERS, MAX_LENGTH, MAX_ORIGINS, AppFields
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import GuardRejected
from tests.asgi.guarded_app import REFUSED, plain
from tests.asgi.run_app import Answer, App, http_scope, request

PAGE, OTHER = "https://page.example", "https://other.example"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
PATH = "/v1/chat/completions"


async def serve(scope: Any, receive: Any, send: Any) -> None:
    await plain(send, 200, b"live")


class Service:
    """An app with Starlette's CORS inside a throttle; each caller has one request a minute."""

    def __init__(self, app: App = serve, user_limit: str = "1/minute", **cors: Any) -> None:
        cors = {"allow_origins": [PAGE], "allow_methods": ["*"], "allow_headers": ["*"], **cors}
        self.throttle: ManualThrottle = throttle_for_tests(user_limit=user_limit, retry_jitter=0)
        self.app: App = ThrottleMiddleware(CORSMiddleware(app, **cors), throttle=self.throttle)

    async def preflight(self, origin: str = PAGE, path: str = PATH) -> Answer:
        return await request(self.app, path, "OPTIONS", headers={"origin": origin, **PREFLIGHT})

    async def post(self, origin: str = PAGE, path: str = PATH, **headers: str) -> Answer:
        return await request(self.app, path, "POST", headers={"origin": origin, **headers})

    async def rejected(self, origin: str = PAGE, path: str = PATH, **headers: str) -> Answer:
        """The first rejection of a caller; the requests before have no origin."""
        while (await request(self.app, "/other")).status != 429:
            pass
        answer = await self.post(origin, path, **headers)
        assert answer.status == 429
        return answer


def cors_of(answer: Answer) -> dict[str, str]:
    names = ("access-control-allow-origin", "access-control-allow-credentials", "vary")
    return {name: value for name in names if (value := answer.header(name)) is not None}


ALLOWED = {"access-control-allow-origin": PAGE, "vary": "origin"}


# --- CORS ---


async def test_preflight_passes_and_allows_its_origin_for_rejections() -> None:
    service = Service()
    await service.rejected(path="/elsewhere")
    answer = await service.preflight()
    assert (answer.status, answer.header("access-control-allow-origin")) == (200, PAGE)
    rejected = await service.rejected()
    assert cors_of(rejected) == ALLOWED
    exposed = (rejected.header("access-control-expose-headers") or "").split(", ")
    assert {"retry-after", "retry-after-ms", "x-ratelimit-reset-requests"} <= set(exposed)
    assert {name for name, _ in rejected.fields} >= {name.encode() for name in exposed}


async def test_answer_to_a_simple_request_allows_its_origin() -> None:
    service = Service()
    assert cors_of(await service.post()) == {**ALLOWED, "vary": "Origin"}
    assert cors_of(await service.rejected()) == ALLOWED


@pytest.mark.parametrize("origin", [OTHER, "null", f"{PAGE}.evil.example", "*", ""])
async def test_origin_that_the_app_did_not_allow_is_never_sent_back(origin: str) -> None:
    service = Service()
    await service.preflight(PAGE)
    await service.preflight(origin)
    assert cors_of(await service.rejected(origin)) == {}


async def test_origin_is_allowed_only_on_the_path_of_the_answer() -> None:
    service = Service()
    await service.preflight()
    assert cors_of(await service.rejected(path="/v1/embeddings")) == {}


async def test_any_origin_is_allowed_where_the_app_says_so() -> None:
    service = Service(allow_origins=["*"])
    await service.preflight(PAGE)
    assert cors_of(await service.rejected(OTHER)) == {"access-control-allow-origin": "*"}


async def test_credentials_are_allowed_where_the_app_says_so() -> None:
    service = Service(allow_credentials=True)
    await service.preflight()
    assert cors_of(await service.rejected()) == {**ALLOWED, "access-control-allow-credentials": "true"}


async def test_rejection_without_origin_has_no_cors_fields() -> None:
    service = Service(allow_origins=["*"])
    await service.preflight()
    assert not [name for name, _ in (await service.rejected("")).fields if b"access-control" in name]


async def test_origin_that_is_no_longer_allowed_is_forgotten() -> None:
    service = Service()
    await service.preflight()
    cors = service.app.app  # type: ignore[attr-defined]
    cors.allow_origins = []
    await service.preflight()
    assert cors_of(await service.rejected()) == {}


async def test_error_from_outside_of_cors_forgets_nothing() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await plain(send, 500, b"")

    service = Service(user_limit="3/minute")
    await service.preflight()
    service.app.app = fails  # type: ignore[attr-defined]
    assert (await service.post()).status == 500
    assert cors_of(await service.rejected()) == ALLOWED


async def test_cors_outside_of_the_throttle_stays_alone() -> None:
    throttle = throttle_for_tests(user_limit="1/minute")
    app = CORSMiddleware(ThrottleMiddleware(serve, throttle=throttle), allow_origins=[PAGE])
    for _ in range(2):
        answer = await request(app, PATH, headers={"origin": PAGE})
    assert answer.status == 429
    assert answer.header("access-control-allow-origin") == PAGE


# --- when answers are observed ---


async def answer_in(fields: AppFields, headers: Any, scope: dict[str, Any] | None = None) -> None:
    """Let an answer with these headers pass."""

    async def send(message: Any) -> None:
        assert message["headers"] is headers

    observed = fields.observe(scope or http_scope(PATH, headers={"origin": PAGE}), send)
    await observed({"type": "http.response.start", "status": 200, "headers": headers})


def fields_for(fields: AppFields, **scope: Any) -> list[tuple[bytes, bytes]]:
    added: list[tuple[bytes, bytes]] = []
    fields.add_to(added, {**http_scope(PATH, headers={"origin": PAGE}), **scope})
    return added


def learns(fields: AppFields) -> bool:
    return fields.is_learning


async def test_answers_are_observed_at_the_start_and_on_demand() -> None:
    fields = AppFields()
    for _ in range(FIRST_ANSWERS):
        assert learns(fields)
        await answer_in(fields, [])
    assert not learns(fields)
    fields_for(fields, headers=[])
    assert not learns(fields), "no origin"
    assert fields_for(fields) == []
    assert learns(fields)
    for _ in range(ANSWERS):
        await answer_in(fields, [])
    assert not learns(fields)
    await answer_in(fields, [(b"access-control-allow-origin", PAGE.encode())])
    assert fields_for(fields)
    assert not learns(fields), "the origin is known"


async def test_memory_of_origins_is_bounded() -> None:
    fields = AppFields()
    allow = [(b"access-control-allow-origin", b"*")]
    for number in range(MAX_ORIGINS + 1):
        await answer_in(fields, allow, http_scope(f"/{number}", headers={"origin": PAGE}))
    assert fields_for(fields, path="/0") == []
    assert fields_for(fields, path="/1")
    assert fields_for(fields, path=f"/{MAX_ORIGINS}")
    longest = "/" + "a" * MAX_LENGTH
    await answer_in(fields, allow, http_scope(longest, headers={"origin": PAGE}))
    assert fields_for(fields, path=longest) == []
    origin = "a" * (MAX_LENGTH + 1)
    await answer_in(fields, allow, http_scope("/long", headers={"origin": origin}))
    assert fields_for(fields, path="/long") == []


@pytest.mark.parametrize("headers", [None, [1], [(b"a",)], [([], b"")]])
async def test_malformed_request_gets_its_rejection(headers: Any) -> None:
    fields = AppFields()
    scope = {**http_scope(PATH), "headers": headers}
    await answer_in(fields, [], scope)
    assert fields_for(fields, headers=headers) == []


@pytest.mark.parametrize("headers", [(), None, [(b"a",)], [1], iter([(b"a", b"b")])])
async def test_headers_of_any_kind_pass_unread_or_whole(headers: Any) -> None:
    await answer_in(AppFields(), headers)
    assert not isinstance(headers, type(iter([]))) or list(headers) == [(b"a", b"b")]


# --- request ids ---


def numbered(name: str) -> App:
    """An app whose answers carry an id under this name."""
    ids = itertools.count()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        headers = [(name.encode(), b"%d" % next(ids))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return serve


@pytest.mark.parametrize("name", ["x-request-id", "request-id"])
async def test_rejection_has_an_id_under_the_name_of_the_app(name: str) -> None:
    service = Service(numbered(name))
    own = await service.rejected(**{"x-request-id": "req-7"})
    assert own.header(name) == "req-7"
    drawn = {(await service.rejected()).header(name) for _ in range(3)}
    assert len(drawn) == 3
    assert all(len(one or "") == 32 for one in drawn)


@pytest.mark.parametrize("sent", ["", "a b", "a" * 129, "caf\u00e9", "a\tb"])
async def test_unsafe_id_is_not_sent_back(sent: str) -> None:
    rejected = await Service(numbered("x-request-id")).rejected(**{"x-request-id": sent})
    assert len(rejected.header("x-request-id") or "") == 32


async def test_app_without_ids_has_rejections_without_ids() -> None:
    rejected = await Service().rejected(**{"x-request-id": "req-7"})
    assert rejected.header("x-request-id") is None


# --- behind a breaker ---


async def test_rejection_by_a_guard_in_a_mount_has_the_format_of_the_whole_path() -> None:
    def endpoint(_: Request) -> PlainTextResponse:
        raise GuardRejected(REFUSED.rejection)

    inner = Mount("/v1", routes=[Route("/chat", endpoint)])
    for breaker in (None, "app"):
        app = ThrottleMiddleware(
            Starlette(routes=[inner]).router, throttle=throttle_for_tests(), breaker=breaker
        )
        answer = await request(app, "/v1/chat")
        assert answer.status == 503
        assert json.loads(answer.body)["error"]["code"] == "breaker:vectors"
