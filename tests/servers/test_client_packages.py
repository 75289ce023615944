"""Rejections as the packages openai, anthropic and mcp read them: exception, code, message, wait, retries."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import anthropic
import anyio
import openai
import pytest
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer

from autoglm_throttle import Priority, RoutePolicy, ThrottleMiddleware
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Reason
from tests.gateway.loopback import under_uvicorn
from tests.servers import llm_service

pytestmark = pytest.mark.server

PACKAGES: dict[str, Any] = {"openai": openai, "anthropic": anthropic}
KINDS = ("sync", "async")
QUESTION: list[Any] = [{"role": "user", "content": "a question"}]
TEXT = "".join(llm_service.TEXT)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: dict[str, list[Any]] = {
    "openai": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}],
    "anthropic": [{"name": "weather", "input_schema": SCHEMA}],
}


@dataclass
class Caller:
    """One client of a package. Its pauses before retries take no time, but the throttle's clock goes on."""

    package: str
    kind: str
    throttle: ManualThrottle
    port: int
    waits_s: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.throttle.clock.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    async def ask(self, retries: int = 2, **more: Any) -> Any:
        """One question; the text of the answer, or its tool calls."""
        return await asyncio.wait_for(self._ask(retries, **more), 30.0)

    async def _ask(self, retries: int, **more: Any) -> Any:
        name = {"openai": "OpenAI", "anthropic": "Anthropic"}[self.package]
        url = f"http://127.0.0.1:{self.port}" + ("/v1" if self.package == "openai" else "")
        make = getattr(PACKAGES[self.package], ("Async" if self.kind == "async" else "") + name)
        client = make(api_key="k", base_url=url, max_retries=retries)
        api = client.chat.completions if self.package == "openai" else client.messages
        asked = {"model": "m", "messages": QUESTION, "max_tokens": 9, **more}
        read = _openai_answer if self.package == "openai" else _anthropic_answer
        if self.kind == "sync":

            def call() -> Any:
                with client:
                    answer = api.create(**asked)
                    return read(list(answer) if more.get("stream") else answer)

            return await asyncio.to_thread(call)
        async with client:
            answer = await api.create(**asked)
            return read([part async for part in answer] if more.get("stream") else answer)


def _openai_answer(answer: Any) -> Any:
    if isinstance(answer, list):
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    message = answer.choices[0].message
    return [json.loads(call.function.arguments) for call in message.tool_calls or ()] or message.content


def _anthropic_answer(answer: Any) -> Any:
    if isinstance(answer, list):
        return "".join(one.delta.text for one in answer if one.type == "content_block_delta")
    return [part.input for part in answer.content if part.type == "tool_use"] or answer.content[0].text


@asynccontextmanager
async def caller_of(
    package: str, kind: str, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[Caller]:
    """A client of a limited service, which has sent one request."""
    settings = {"user_limit": "1/minute", "retry_jitter": 0, **settings}
    throttle = throttle_for_tests(**settings)
    async with under_uvicorn(ThrottleMiddleware(llm_service.app, throttle=throttle)) as port:
        caller = Caller(package, kind, throttle, port)
        base = PACKAGES[package]._base_client
        monkeypatch.setattr(base, "time", SimpleNamespace(**{**vars(time), "sleep": caller.sleep}))
        monkeypatch.setattr(base, "anyio", SimpleNamespace(**{**vars(anyio), "sleep": caller.sleep_async}))
        yield caller


each_client = pytest.mark.parametrize(
    ("package", "kind"), [(package, kind) for package in PACKAGES for kind in KINDS]
)


@pytest.mark.slow
@each_client
@pytest.mark.parametrize("form", ["plain", "stream", "tools"])
async def test_package_waits_as_long_as_needed_and_is_served(
    package: str, kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms: dict[str, dict[str, Any]] = {"stream": {"stream": True}, "tools": {"tools": TOOLS[package]}}
    more = forms.get(form, {})
    expected = [llm_service.ARGUMENTS] if form == "tools" else TEXT
    async with caller_of(package, kind, monkeypatch) as caller:
        assert await caller.ask(**more) == expected
        caller.throttle.clock.advance(12.25)
        assert (await caller.ask(**more), caller.waits_s) == (expected, [47.75])


@each_client
@pytest.mark.parametrize("stream", [False, True])
async def test_rejection_by_a_user_limit_is_a_rate_limit_error(
    package: str, kind: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caller_of(package, kind, monkeypatch) as caller:
        await caller.ask()
        with pytest.raises(PACKAGES[package].RateLimitError) as raised:
            await caller.ask(retries=0, stream=stream)
    error: Any = raised.value
    sentence = "Your limit user-60s is used up; try again in 60 s."
    assert sentence in error.message
    if package == "openai":
        assert (error.status_code, error.code, error.param) == (429, "user:user-60s", None)
        assert (error.type, error.body["message"]) == ("rate_limit_error", sentence)
        assert error.response.headers["x-ratelimit-reset-requests"] == "1m0s"
    else:
        assert (error.status_code, error.type) == (429, "rate_limit_error")
        assert error.body["error"]["message"] == sentence
        assert error.body["error"]["code"] == "user:user-60s"
        assert error.response.headers["anthropic-ratelimit-requests-remaining"] == "0"


@each_client
async def test_rejection_by_load_is_a_server_error_with_its_wait(
    package: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caller_of(package, kind, monkeypatch, policy="tiers") as caller:
        caller.throttle.gpu.utilization_pct = 97
        caller.throttle.tick(3)
        with pytest.raises(PACKAGES[package].InternalServerError) as raised:
            await caller.ask(retries=1)
    error: Any = raised.value
    assert (error.status_code, error.type, len(caller.waits_s)) == (503, "overloaded_error", 1)
    assert caller.waits_s[0] == 1.0
    assert "The service has no capacity left" in error.message
    if package == "openai":
        assert error.code == "gpu:overload"


@each_client
async def test_package_does_not_retry_where_a_retry_is_futile(
    package: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caller_of(package, kind, monkeypatch, user_limit="1/hour") as caller:
        await caller.ask()
        with pytest.raises(PACKAGES[package].RateLimitError) as raised:
            await caller.ask()
        assert raised.value.response.headers["x-should-retry"] == "false"
        assert raised.value.response.headers["retry-after"] == "120"
    assert caller.waits_s == []
    assert caller.throttle.snapshot().requests[Priority.MID, "limited", Reason.USER] == 1


@each_client
async def test_request_that_can_never_fit_is_not_retried(
    package: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = [RoutePolicy("/v1/*", cost=5)]
    async with caller_of(package, kind, monkeypatch, routes=routes) as caller:
        with pytest.raises(PACKAGES[package].APIStatusError) as raised:
            await caller.ask()
    error: Any = raised.value
    assert (error.status_code, error.type, caller.waits_s) == (413, "invalid_request_error", [])
    assert "at most 1." in error.message


# --- MCP ---


async def _until_rejected(call: Callable[[], Awaitable[Any]]) -> MCPError:
    for _ in range(20):
        try:
            await call()
        except MCPError as error:
            return error
    raise AssertionError("every call was admitted")


async def test_mcp_client_reads_the_rejection_and_its_session_goes_on() -> None:
    server = MCPServer("tests")

    @server.tool()
    def add(left: int, right: int) -> int:
        return left + right

    throttle = throttle_for_tests(user_limit="8/minute", retry_jitter=0)
    app = ThrottleMiddleware(server.streamable_http_app(), throttle=throttle)
    async with (
        under_uvicorn(app) as port,
        streamable_http_client(f"http://127.0.0.1:{port}/mcp") as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()

        async def call() -> Any:
            return await asyncio.wait_for(session.call_tool("add", {"left": 1, "right": 2}), 30.0)

        error = (await _until_rejected(call)).error
        assert error.code == 429
        assert error.message == "Your limit user-60s is used up; try again in 60 s."
        data: Any = error.data
        assert data == {"reason": "user:user-60s", "retry_after_s": 60}
        throttle.clock.advance(data["retry_after_s"])
        assert (await call()).content[0].text == "3"
