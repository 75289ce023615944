"""Clients that leave: the request to the upstream ends, and does not count as its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.asgi.run_app import http_scope
from tests.gateway.loopback import STREAM_HEAD, Exchange, Front, RawUpstream, chunk, front
from tests.gateway.scripted import Frozen, Parts, Scripted, gateway

HANG_S = 60.0
GET = b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n"
UPLOAD = b"POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nfirst part"
WHOLE = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


async def soon(awaitable: Awaitable[object]) -> None:
    await asyncio.wait_for(awaitable, HANG_S)


async def available(served: Front) -> int:
    found: int = (await served.client.get("/healthz")).json()["available"]
    return found


async def stream_first(exchange: Exchange) -> None:
    await exchange.send(STREAM_HEAD + chunk(b"first"))
    await exchange.peer_closed()


async def wait_only(exchange: Exchange) -> None:
    await exchange.peer_closed()


async def test_client_that_leaves_a_stream_ends_it_upstream() -> None:
    async with RawUpstream(stream_first) as upstream, front(upstream.url, breaker_failures=1) as served:
        client = await served.open(GET)
        await client.reader.readuntil(chunk(b"first"))
        client.writer.transport.abort()
        await soon(upstream.ended.wait())
        assert await available(served) == 1


async def test_client_that_leaves_before_the_head_ends_it() -> None:
    async with RawUpstream(wait_only) as upstream, front(upstream.url, breaker_failures=1) as served:
        client = await served.open(GET)
        await soon(upstream.arrived.wait())
        client.writer.transport.abort()
        await soon(upstream.ended.wait())
        assert await available(served) == 1


async def test_client_that_leaves_its_upload_ends_it() -> None:
    async with RawUpstream(wait_only) as upstream, front(upstream.url, breaker_failures=1) as served:
        # Admission waits for 64 KiB of a body.
        client = await served.open(UPLOAD + bytes(500_000))
        await client.writer.drain()
        await soon(upstream.began.wait())
        client.writer.transport.abort()
        await soon(upstream.ended.wait())
        assert upstream.exchanges == []  # the request was never whole
        assert await available(served) == 1


async def test_left_requests_leave_no_connection_behind() -> None:
    async with RawUpstream(stream_first) as upstream, front(upstream.url) as served:
        for _ in range(20):
            upstream.ended.clear()
            client = await served.open(GET)
            await client.reader.readuntil(chunk(b"first"))
            client.writer.transport.abort()
            await soon(upstream.ended.wait())
        upstream.answer = answer_path
        answers = await asyncio.gather(*(served.client.get(f"/{number}") for number in range(20)))
        assert [answer.text for answer in answers] == [f"/{number}" for number in range(20)]
        assert served.gateway.upstreams[0].in_flight == 0


async def answer_path(exchange: Exchange) -> None:
    path = exchange.line.split()[1]
    await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(path), path))


async def test_disconnect_cancels_a_waiting_upstream() -> None:
    upstream = Frozen()
    messages = [WHOLE]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await upstream.entered.wait()
        return GONE

    await soon(gateway(upstream)(http_scope("/v1"), receive, fail_send))
    assert upstream.cancelled.is_set()


async def fail_send(message: dict[str, Any]) -> None:
    raise AssertionError(message)


async def test_client_that_left_before_is_not_forwarded() -> None:
    upstream = Scripted()

    async def receive() -> dict[str, Any]:
        return GONE

    await gateway(upstream)(http_scope("/v1", "GET", {}), receive, fail_send)
    assert upstream.requests == []


@pytest.mark.parametrize("error", [OSError("closed"), ConnectionResetError()])
async def test_send_that_fails_closes_the_upstream(error: OSError) -> None:
    body = Parts([b"one", b"two"])

    async def receive() -> dict[str, Any]:
        if not body.pulled:
            return WHOLE
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            raise error

    app = gateway(Scripted(body), breaker_failures=1)
    await app(http_scope("/v1"), receive, send)
    assert (body.pulled, body.closed) == (1, True)
    assert app.upstreams[0].in_flight == 0
    assert app.upstreams[0].guard.is_available()


async def test_receive_that_fails_ends_the_request() -> None:
    upstream = Frozen()
    messages = [WHOLE]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await upstream.entered.wait()
        raise RuntimeError("the server has stopped")

    await soon(gateway(upstream)(http_scope("/v1"), receive, fail_send))
    assert upstream.cancelled.is_set()
