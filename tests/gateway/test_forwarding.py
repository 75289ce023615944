"""Bytes that the gateway forwards: bodies part by part, fields by RFC 9110, the target as it is."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.asgi.run_app import CLIENT, http_scope, send_scope, websocket_scope
from tests.gateway.loopback import (
    END_OF_CHUNKS,
    STREAM_HEAD,
    Exchange,
    RawUpstream,
    answer_with,
    chunk,
    front,
)
from tests.gateway.scripted import Parts, Scripted, gateway

EVENTS = 1000
STREAM = b"".join(b'data: {"index": %d, "text": "w\xc3\xb6rd"}\n\n' % number for number in range(EVENTS))
WHOLE = {"type": "http.request", "body": b"", "more_body": False}
MIB = 1 << 20


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in parts that end at these places."""
    ends = [0, *sorted(set(places)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends) if start < end]


PLACES = st.lists(st.integers(1, len(STREAM) - 1), max_size=200)
EACH_BYTE = list(range(1, 3000))
EACH_EVENT = [place for place in range(1, len(STREAM)) if STREAM[place - 2 : place] == b"\n\n"]


@given(PLACES)
@example([])
@example(EACH_BYTE)
@example(EACH_EVENT)
def test_stream_is_forwarded_part_by_part(places: list[int]) -> None:
    parts = cut(STREAM, places)
    answer = asyncio.run(send_scope(gateway(Scripted(Parts(parts))), http_scope("/v1"), [WHOLE]))
    assert [message["body"] for message in answer.messages[1:]] == [*parts, b""]
    assert answer.body == STREAM


@given(PLACES)
@example(EACH_BYTE)
def test_request_body_is_forwarded_unchanged(places: list[int]) -> None:
    parts = cut(STREAM, places)
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    upstream = Scripted()
    fields = {"content-length": str(len(STREAM))}
    asyncio.run(send_scope(gateway(upstream), http_scope("/v1", "POST", fields), [*messages, WHOLE]))
    assert upstream.bodies == [STREAM]
    assert upstream.sent("content-length") == [b"%d" % len(STREAM)]
    assert not upstream.sent("transfer-encoding")


async def test_stream_over_sockets_is_the_same_bytes() -> None:
    draw = random.Random(7)
    parts = cut(STREAM, [draw.randrange(1, len(STREAM)) for _ in range(700)])

    async def stream(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        for part in parts:
            await exchange.send(chunk(part))
        await exchange.send(END_OF_CHUNKS)

    async def upload() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async with RawUpstream(stream) as upstream, front(upstream.url) as served:
        async with served.client.stream("POST", "/v1", content=upload()) as answer:
            received = b"".join([part async for part in answer.aiter_raw()])
        assert received == STREAM
        assert upstream.exchanges[0].body == STREAM


async def test_part_arrives_while_the_next_is_awaited() -> None:
    release = asyncio.Event()

    async def stream(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(b"first"))
        await release.wait()
        await exchange.send(chunk(b"last") + END_OF_CHUNKS)

    async with (
        RawUpstream(stream) as upstream,
        front(upstream.url) as served,
        served.client.stream("GET", "/v1") as answer,
    ):
        parts = answer.aiter_raw()
        assert await anext(parts) == b"first"
        release.set()
        assert await anext(parts) == b"last"


async def test_reader_that_stops_holds_at_most_one_part() -> None:
    body = Parts([bytes(64 * 1024)] * 100)
    blocked = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            blocked.set()
            await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        if not blocked.is_set():
            return WHOLE
        await asyncio.Event().wait()
        raise AssertionError

    request = asyncio.create_task(gateway(Scripted(body))(http_scope("/v1"), receive, send))
    await blocked.wait()
    assert body.pulled == 1
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert body.closed


async def test_upstream_that_stops_reading_holds_below_a_mib() -> None:
    stopped = asyncio.Event()
    received = 0

    class Stopping(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            await anext(aiter(request.stream))
            stopped.set()
            await asyncio.Event().wait()
            raise AssertionError

    async def receive() -> dict[str, Any]:
        nonlocal received
        received += 64 * 1024
        return {"type": "http.request", "body": bytes(64 * 1024), "more_body": True}

    scope = http_scope("/v1", "POST", {"transfer-encoding": "chunked"})
    request = asyncio.create_task(gateway(Stopping())(scope, receive, send_nothing))
    await stopped.wait()
    assert received < MIB
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def send_nothing(message: dict[str, Any]) -> None:
    raise AssertionError(message)


async def test_compressed_body_stays_compressed() -> None:
    data = gzip.compress(STREAM)
    upstream = Scripted(Parts([data]), fields=[(b"content-encoding", b"gzip")])
    answer = await send_scope(gateway(upstream), http_scope("/v1"), [WHOLE])
    assert answer.body == data
    assert answer.header("content-encoding") == "gzip"


async def test_hop_by_hop_fields_are_removed_both_ways() -> None:
    hops = {
        "connection": "x-private, Keep-Alive, content-length, host",
        "x-private": "1",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "proxy-authorization": "Basic eDp5",
        "upgrade": "h2c",
        "expect": "100-continue",
    }
    kept = {"authorization": "Bearer key", "content-length": "2", "cookie": "a=b"}
    returned = [(name.title().encode(), value.encode()) for name, value in hops.items()]
    cookies = [(b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2")]
    upstream = Scripted(fields=[*returned, *cookies])
    body = {"type": "http.request", "body": b"ok"}
    answer = await send_scope(gateway(upstream), http_scope("/v1", "POST", {**hops, **kept}), [body])
    for name in hops:
        assert not upstream.sent(name)
        assert answer.header(name) is None
    for name, value in kept.items():
        assert upstream.sent(name) == [value.encode()]
    assert [field for field in answer.fields if field[0] == b"set-cookie"] == [
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]


async def test_client_adds_nothing_of_httpx() -> None:
    upstream = Scripted()
    await send_scope(gateway(upstream), http_scope("/v1", headers={"host": "api.test"}), [WHOLE])
    names = [name for name, _ in upstream.requests[-1].headers.raw]
    assert names == [b"host", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"via"]


async def test_cookies_of_one_caller_reach_no_other() -> None:
    upstream = Scripted(fields=[(b"set-cookie", b"session=secret; path=/")])
    app = gateway(upstream)
    for _ in range(2):
        await send_scope(app, http_scope("/v1"), [WHOLE])
    assert not upstream.sent("cookie")


FORGED = {
    "host": "api.test",
    "forwarded": "for=1.1.1.1",
    "x-real-ip": "1.1.1.1",
    "x-forwarded-for": "1.1.1.1",
    "x-forwarded-host": "evil.test",
    "x-forwarded-proto": "https",
    "x-forwarded-user": "root",
}


async def test_forwarding_fields_of_a_client_are_replaced() -> None:
    upstream = Scripted()
    await send_scope(gateway(upstream), http_scope("/v1", headers=FORGED), [WHOLE])
    assert upstream.sent("host") == [b"upstream-0.test"]
    assert upstream.sent("x-forwarded-for") == [CLIENT[0].encode()]
    assert upstream.sent("x-forwarded-host") == [b"api.test"]
    assert upstream.sent("x-forwarded-proto") == [b"http"]
    for name in ("forwarded", "x-real-ip", "x-forwarded-user"):
        assert not upstream.sent(name)


async def test_forwarding_fields_of_a_trusted_proxy_are_kept() -> None:
    upstream = Scripted()
    app = gateway(upstream, trusted_proxies=CLIENT[0])
    await send_scope(app, http_scope("/v1", headers={**FORGED, "via": "1.1 nginx"}), [WHOLE])
    assert upstream.sent("x-forwarded-for") == [b"1.1.1.1, " + CLIENT[0].encode()]
    assert upstream.sent("x-forwarded-host") == [b"evil.test"]
    assert upstream.sent("x-forwarded-proto") == [b"https"]
    assert upstream.sent("x-forwarded-user") == [b"root"]
    assert upstream.sent("via")[0] == b"1.1 nginx"


async def test_peer_without_an_address_adds_none() -> None:
    upstream = Scripted()
    await send_scope(gateway(upstream), http_scope("/v1", client=None), [WHOLE])
    assert not upstream.sent("x-forwarded-for")


@pytest.mark.parametrize(
    ("fields", "messages", "framing"),
    [
        ({}, [WHOLE], ([], [])),
        ({"content-length": "0"}, [WHOLE], ([b"0"], [])),
        (
            {"transfer-encoding": "chunked", "content-length": "9"},
            [{**WHOLE, "body": b"ok"}],
            ([], [b"chunked"]),
        ),
        ({}, [{**WHOLE, "body": b"ok"}], ([], [b"chunked"])),  # over HTTP/2
    ],
)
async def test_framing_of_a_request(
    fields: dict[str, str], messages: list[dict[str, Any]], framing: tuple[list[bytes], list[bytes]]
) -> None:
    upstream = Scripted()
    await send_scope(gateway(upstream), http_scope("/v1", "POST", fields), messages)
    assert (upstream.sent("content-length"), upstream.sent("transfer-encoding")) == framing


@pytest.mark.parametrize(
    "target", ["/v1/a%2Fb%20c?q=%7E&r", "//double//slash", "/a/../b/./c", "/x?y=a?b|c", "/caf%C3%A9"]
)
async def test_target_is_forwarded_unchanged(target: str) -> None:
    async with RawUpstream() as upstream, front(upstream.url) as served:
        client = await served.open(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert upstream.exchanges[0].line == f"GET {target} HTTP/1.1".encode()


async def test_target_without_raw_path_is_quoted() -> None:
    upstream = Scripted()
    await send_scope(gateway(upstream), http_scope("/caf\u00e9", raw_path=None, query_string=b"q=1"), [WHOLE])
    assert upstream.requests[-1].extensions["target"] == b"/caf%C3%A9?q=1"


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("status", [b"200 OK", b"204 No Content", b"304 Not Modified"])
async def test_response_without_a_body_ends(method: str, status: bytes) -> None:
    has_length = method == "HEAD" or status.startswith(b"304")
    head = b"HTTP/1.1 " + status + (b"\r\ncontent-length: 100" if has_length else b"")
    if status.startswith(b"200") and method == "GET":
        head += b"\r\ncontent-length: 0"
    async with RawUpstream(answer_with(head + b"\r\n\r\n")) as upstream, front(upstream.url) as served:
        for _ in range(2):  # the second one on the same connection
            answer = await served.client.request(method, "/v1")
            assert (answer.status_code, answer.content) == (int(status[:3]), b"")


async def test_304_loses_the_length_of_another_response() -> None:
    upstream = Scripted(Parts([]), status=304, fields=[(b"content-length", b"100"), (b"etag", b'"1"')])
    answer = await send_scope(gateway(upstream), http_scope("/v1"), [WHOLE])
    assert answer.fields == [(b"etag", b'"1"')]


async def test_informational_response_is_not_the_answer() -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    final = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok"
    async with RawUpstream(answer_with(hint + final)) as upstream, front(upstream.url) as served:
        answer = await served.client.post("/v1", content=b"x")
        assert (answer.status_code, answer.content) == (201, b"ok")


async def test_websocket_is_rejected() -> None:
    upstream = Scripted()
    answer = await send_scope(gateway(upstream), websocket_scope("/ws"), [{"type": "websocket.connect"}])
    assert answer.close_code == 1000
    assert not upstream.requests
