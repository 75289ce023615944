"""Upstreams without a network: a transport that records each request and answers from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import httpx

from autoglm_throttle.gateway import Gateway
from tests.gateway.loopback import throttle

Field = tuple[bytes, bytes]
PLAIN: tuple[Field, ...] = ((b"Content-Type", b"text/plain"),)


class Parts(httpx.AsyncByteStream):
    """A body of these parts; ``pulled`` counts those that were read."""

    def __init__(self, parts: Iterable[bytes], *, error: Exception | None = None) -> None:
        self._parts = parts
        self._error = error
        self.pulled = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            self.pulled += 1
            yield part
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        self.closed = True


class Scripted(httpx.AsyncBaseTransport):
    """An upstream that answers each request alike.

    Args:
        outcome: the body of its responses, or what a request raises.
    """

    def __init__(
        self,
        outcome: httpx.AsyncByteStream | Exception | None = None,
        *,
        status: int = 200,
        fields: Sequence[Field] = PLAIN,
    ) -> None:
        self.outcome = Parts([b"ok"]) if outcome is None else outcome
        self.status = status
        self.fields = fields
        self.requests: list[httpx.Request] = []
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.outcome, httpx.ConnectError | httpx.ConnectTimeout):
            raise self.outcome
        self.requests.append(request)
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.bodies.append(b"".join([part async for part in request.stream]))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return httpx.Response(self.status, headers=list(self.fields), stream=self.outcome)

    def sent(self, name: str) -> list[bytes]:
        """The values of a field of the newest request, in order."""
        return [value for field, value in self.requests[-1].headers.raw if field.lower() == name.encode()]


class Frozen(httpx.AsyncBaseTransport):
    """An upstream that never answers; ``cancelled`` is set when its request is."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError("it has no answer")


def gateway(*upstreams: httpx.AsyncBaseTransport, **settings: Any) -> Gateway:
    """A gateway with these upstreams, named ``http://upstream-0.test`` and so on."""
    transports = {f"http://upstream-{number}.test": each for number, each in enumerate(upstreams)}
    return Gateway(
        list(transports),
        throttle=throttle(**settings),
        new_transport=lambda url: transports[str(url).rstrip("/")],
    )
