"""Bug 12: the start of an answer is sent once per chunk; websockets are silently unlimited."""

from __future__ import annotations

from typing import Any

import pytest

from tests.asgi.run_app import App, at_once, websocket_scope
from tests.peers_bugs.limiter import LIMIT, Make, Plain, answer, ours


def check_stream(make: Make) -> None:
    kinds = [message["type"] for message in make(answer).ask().messages]
    assert kinds == ["http.response.start", "http.response.body", "http.response.body"], "start and chunks"


class StartsEachChunk(Plain):
    async def run(self, scope: Any, receive: Any, send: Any) -> None:
        start: dict[str, Any] = {}

        async def each(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                await send(start)
                await send(message)

        await self.app(scope, receive, each)


@pytest.mark.parametrize("make", [ours, Plain.subject])
def test_answer_starts_once(make: Make) -> None:
    check_stream(make)


def test_planted_second_start_is_found() -> None:
    with pytest.raises(AssertionError, match="start and chunks"):
        check_stream(StartsEachChunk.subject)


async def accept(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})


def accepted(app: App) -> int:
    return [at_once(app, websocket_scope("/ws")).status for _ in range(LIMIT + 3)].count(101)


def check_websocket(make: Make) -> None:
    assert accepted(make(accept).app) == LIMIT, "websockets are not limited"


class HttpOnly(Plain):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)


@pytest.mark.parametrize("make", [ours, Plain.subject])
def test_websockets_are_limited(make: Make) -> None:
    check_websocket(make)


def test_planted_free_websocket_is_found() -> None:
    with pytest.raises(AssertionError, match="not limited"):
        check_websocket(HttpOnly.subject)
