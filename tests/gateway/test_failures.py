"""Upstreams that fail, over real sockets: no request hangs, none is sent twice, the others are served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from tests.gateway.loopback import (
    END_OF_CHUNKS,
    OK,
    STREAM_HEAD,
    Exchange,
    RawUpstream,
    answer_with,
    chunk,
    front,
)

GET = b"GET /stream HTTP/1.1\r\nhost: gateway.test\r\n\r\n"


def closed_url() -> str:
    """The URL of a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def close_at_once(exchange: Exchange) -> None:
    exchange.writer.close()
    await exchange.writer.wait_closed()


async def never_answer(exchange: Exchange) -> None:
    await exchange.peer_closed()


async def test_refused_connection_sends_to_another_upstream() -> None:
    async with RawUpstream() as living, front(closed_url(), living.url) as served:
        answers = [await served.client.post("/work", content=b"work") for _ in range(4)]
        assert [answer.content for answer in answers] == [b"ok"] * 4
        assert [exchange.body for exchange in living.exchanges] == [b"work"] * 4


async def test_streamed_body_goes_to_another_upstream_whole() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            yield part

    async with RawUpstream() as living, front(closed_url(), living.url) as served:
        for _ in range(2):  # each of the two is first once
            await served.client.post("/work", content=parts())
        assert [exchange.body for exchange in living.exchanges] == [b"one two three"] * 2


async def test_all_refused_is_503_with_a_wait() -> None:
    async with front(closed_url(), closed_url()) as served:
        answer = await served.client.get("/work")
        assert answer.status_code == 503
        assert 1 <= int(answer.headers["retry-after"]) <= 2
        assert int(answer.headers["retry-after-ms"]) >= 1000


async def test_open_breakers_are_503_without_an_address() -> None:
    async with RawUpstream(close_at_once) as broken, front(broken.url, breaker_failures=2) as served:
        statuses = [(await served.client.get("/work")).status_code for _ in range(2)]
        assert statuses == [502, 502]
        answer = await served.client.get("/work")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 9
        assert "127.0.0.1" not in answer.text
        assert len(broken.exchanges) == 2


async def test_killed_upstream_gets_a_request_once() -> None:
    async with RawUpstream(close_at_once) as broken, RawUpstream() as living:
        async with front(broken.url, living.url, breaker_failures=1) as served:
            answers = [await served.client.post("/work", content=b"%d" % n) for n in range(5)]
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 502]
        sent = [exchange.body for exchange in broken.exchanges + living.exchanges]
        assert sorted(sent) == [b"0", b"1", b"2", b"3", b"4"]


async def test_reused_connection_that_closes_is_not_retried() -> None:
    counts = iter((OK, b""))

    async def answer_once(exchange: Exchange) -> None:
        await exchange.send(next(counts))
        if len(upstream.exchanges) == 2:
            exchange.writer.close()

    async with RawUpstream(answer_once) as upstream, front(upstream.url) as served:
        assert (await served.client.post("/work", content=b"1")).status_code == 200
        assert (await served.client.post("/work", content=b"2")).status_code == 502
        first, second = upstream.exchanges
        assert first.writer is second.writer
        assert [first.body, second.body] == [b"1", b"2"]


async def test_frozen_upstream_is_504_and_others_serve() -> None:
    async with RawUpstream(never_answer) as frozen, RawUpstream() as living:
        async with front(frozen.url, living.url, breaker_timeout_s=0.2, breaker_failures=1) as served:
            first = asyncio.create_task(served.client.post("/work", content=b"frozen"))
            await frozen.arrived.wait()
            # It has a request in flight, so the other one is next.
            assert (await served.client.get("/work")).status_code == 200
            assert (await first).status_code == 504
            for _ in range(4):
                assert (await served.client.get("/work")).status_code == 200
        assert [exchange.body for exchange in frozen.exchanges] == [b"frozen"]
        assert len(living.exchanges) == 5


async def test_silent_stream_ends_without_its_last_chunk() -> None:
    async def send_half(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await exchange.peer_closed()

    async with RawUpstream(send_half) as upstream, front(upstream.url, breaker_stream_idle_s=0.2) as served:
        client = await served.open(GET)
        received = await client.reader.read()
        assert received.endswith(chunk(b"data: 1\n\n"))


@pytest.mark.parametrize("length", [b"transfer-encoding: chunked", b"content-length: 100"])
async def test_half_a_response_is_seen_as_such(length: bytes) -> None:
    part = chunk(b"data: 1\n\n")

    async def send_half(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n" + part)
        exchange.writer.close()

    async with RawUpstream(send_half) as upstream, front(upstream.url, breaker_failures=1) as served:
        client = await served.open(GET)
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert body == part
        assert (await served.client.get("/healthz")).json()["available"] == 0


async def test_slow_stream_passes_each_part_and_others_serve() -> None:
    step = asyncio.Event()

    async def send_slowly(exchange: Exchange) -> None:
        if exchange.line.startswith(b"GET /stream"):
            await exchange.send(STREAM_HEAD)
            for number in range(3):
                await exchange.send(chunk(b"data: %d\n\n" % number))
                await step.wait()
                step.clear()
            await exchange.send(END_OF_CHUNKS)
        else:
            await exchange.send(OK)

    async with RawUpstream(send_slowly) as upstream, front(upstream.url) as served:
        client = await served.open(GET)
        await client.reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            part = chunk(b"data: %d\n\n" % number)
            assert await client.reader.readexactly(len(part)) == part
            assert (await served.client.get("/short")).content == b"ok"
            step.set()
        assert await client.reader.readexactly(len(END_OF_CHUNKS)) == END_OF_CHUNKS


async def test_busy_upstream_gets_a_wait_and_no_failure() -> None:
    busy = answer_with(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")
    async with RawUpstream(busy) as full, front(full.url, breaker_failures=1) as served:
        for _ in range(3):
            answer = await served.client.get("/work")
            assert (answer.status_code, answer.content) == (503, b"busy")
            assert 1 <= int(answer.headers["retry-after"]) <= 2
        assert len(full.exchanges) == 3


async def test_busy_upstream_is_avoided_while_it_asks_so() -> None:
    busy = answer_with(b"HTTP/1.1 503 Busy\r\nretry-after: 60\r\ncontent-length: 4\r\n\r\nbusy")
    async with RawUpstream(busy) as full, RawUpstream() as living, front(full.url, living.url) as served:
        answers = [await served.client.get("/work") for _ in range(6)]
        assert [answer.status_code for answer in answers].count(503) == 1
        assert len(full.exchanges) == 1
        assert [a.headers["retry-after"] for a in answers if a.status_code == 503] == ["60"]


async def test_429_without_a_wait_gets_one() -> None:
    limited = answer_with(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")
    async with RawUpstream(limited) as upstream, front(upstream.url, breaker_failures=1) as served:
        answers = [await served.client.get("/work") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [429, 429]
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)


async def test_upstream_that_speaks_no_http_is_502() -> None:
    other = answer_with(b"SSH-2.0-server\r\n\r\n")
    async with RawUpstream(other) as upstream, front(upstream.url) as served:
        answer = await served.client.get("/work")
        assert answer.status_code == 502
        assert answer.json()["title"] == "Bad Gateway"


async def test_gateway_in_front_of_itself_is_508() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with front(f"http://127.0.0.1:{port}") as outer, RawUpstream(port=port) as relay:

        async def send_back(exchange: Exchange) -> None:
            fields = [line for line in exchange.head.split(b"\r\n") if line.lower().startswith(b"via")]
            back = await outer.open(b"GET /work HTTP/1.1\r\nhost: x\r\n" + fields[0] + b"\r\n\r\n")
            head = await back.reader.readuntil(b"\r\n\r\n")
            await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n" + head[:12])

        relay.answer = send_back
        assert (await outer.client.get("/work")).content == b"HTTP/1.1 508"
