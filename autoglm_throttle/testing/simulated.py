"""The simulated inference service: a small ASGI application in front of a ``SimulatedGpu``.

====== ======================== =================================================================
POST   /v1/predict              optional ``context_tokens`` and ``tokens``; one JSON answer
POST   /v1/generate             the same, under another common name
POST   /v1/chat/completions     ``messages``, ``max_tokens``, ``stream``; OpenAI's format, ``usage``
GET    /healthz                 200, or 503 while the device is lost
GET    /sim/state               counters and one sample
====== ======================== =================================================================
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from autoglm_throttle.testing.simulated_engines import BatchSpec, Item, LlmSpec
from autoglm_throttle.testing.simulated_gpu import Done, SimulatedGpu, SimulatedGpuSpec

__all__ = ["BatchSpec", "Done", "Item", "LlmSpec", "SimulatedGpu", "SimulatedGpuSpec", "service"]

WORD = "word "  # Text of a generated token
CHARS_PER_TOKEN = 4  # The usual rule of thumb for English text
DEFAULT_TOKENS = 128  # About the median answer of the public Azure chat trace of 2023 (129)
STREAM_EVERY_S = 0.05  # Interval of events; tokens generated meanwhile are sent together
BODY_BYTES = 1 << 20  # A longer request body is rejected with 413

STATUS = {"memory": 500, "lost": 500, "too_large": 400}  # HTTP status of failed work, by ``Done.failed``

# Built once: the simulated service should cost little beside the code under test.
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":")).encode


def service(sim: SimulatedGpu) -> ASGIApp:
    """Build an ASGI application that serves from a simulated device.

    The device's clock must be the event loop's own or one that runs as fast. Work of a disconnected client
    continues, as on most servers.
    """
    return _SimulatedService(sim)


class _SimulatedService:
    def __init__(self, sim: SimulatedGpu) -> None:
        self._sim = sim
        self._batch_queue = BatchQueue(sim)
        self._routes: dict[str, tuple[str, Callable[[SimulatedResponse], Awaitable[None]]]] = {
            "/v1/predict": ("POST", self._predict),
            "/v1/generate": ("POST", self._predict),
            "/v1/chat/completions": ("POST", self._chat),
            "/healthz": ("GET", self._health),
            "/sim/state": ("GET", self._state),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(SimulatedResponse(scope, receive, send))
        elif scope["type"] == "lifespan":
            await run_lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, exchange: SimulatedResponse) -> None:
        method, handler = self._routes.get(exchange.path, ("", None))
        if handler is None:
            await exchange.answer(404, {"error": "no such path"})
            return
        if exchange.method != method:
            await exchange.answer(405, {"error": f"use {method}"})
            return
        try:
            await handler(exchange)
        except HTTPException as problem:
            await exchange.answer(problem.status_code, {"error": problem.detail})
        except ClientDisconnect:
            pass

    async def _predict(self, exchange: SimulatedResponse) -> None:
        body = await exchange.body()
        context = integer_field(body, "context_tokens", 0, 0)
        tokens = integer_field(body, "tokens", 1, 1)
        began_s = self._sim.clock()
        done = await self._batch_queue.submit(context, tokens)[1]
        _raise_failure(done)
        await exchange.answer(200, {"tokens": tokens, "took_s": round(done.done_s - began_s, 6)})

    async def _chat(self, exchange: SimulatedResponse) -> None:
        body = await exchange.body()
        context = prompt_tokens(body)
        tokens = integer_field(body, "max_tokens", DEFAULT_TOKENS, 1)
        usage = {"prompt_tokens": context, "completion_tokens": tokens, "total_tokens": context + tokens}
        number, future = self._batch_queue.submit(context, tokens)
        if body.get("stream") is True:
            await self._stream(exchange, number, future, usage)
            return
        _raise_failure(await future)
        message = {"role": "assistant", "content": WORD * tokens}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        await exchange.answer(200, _completion("chat.completion", number, [choice]) | {"usage": usage})

    async def _stream(
        self, exchange: SimulatedResponse, number: int, future: asyncio.Future[Done], usage: Mapping[str, int]
    ) -> None:
        kind, sent, total = "chat.completion.chunk", 0, usage["completion_tokens"]
        await exchange.begin_stream()
        while not future.done():
            await asyncio.wait((future,), timeout=STREAM_EVERY_S)
            ready = total if future.done() else self._sim.generated(number, self._sim.clock())
            if ready > sent and not (future.done() and future.result().failed):
                choice = {"index": 0, "delta": {"content": WORD * (ready - sent)}, "finish_reason": None}
                await exchange.event(_completion(kind, number, [choice]))
                sent = ready
        failed = future.result().failed
        if failed:
            await exchange.event({"error": f"the device failed: {failed}"}, last=True)
            return
        last_choice = {"index": 0, "delta": {}, "finish_reason": "length"}
        await exchange.event(_completion(kind, number, [last_choice]) | {"usage": usage})
        await exchange.event("[DONE]", last=True)

    async def _health(self, exchange: SimulatedResponse) -> None:
        lost = self._sim.state(self._sim.clock())["lost"]
        await exchange.answer(503 if lost else 200, {"status": "lost" if lost else "ok"})

    async def _state(self, exchange: SimulatedResponse) -> None:
        now = self._sim.clock()
        await exchange.answer(200, self._sim.state(now) | {"sample": asdict(self._sim.sample(now))})


def prompt_tokens(body: Mapping[str, object]) -> int:
    """Count the tokens of a chat's messages."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise HTTPException(400, "messages must be a list of objects")
    chars = sum(len(str(message.get("content", ""))) for message in messages)
    return -(-chars // CHARS_PER_TOKEN)


def _completion(kind: str, number: int, choices: list[dict[str, object]]) -> dict[str, object]:
    return {"id": f"chatcmpl-{number}", "object": kind, "model": "simulated", "choices": choices}


def _raise_failure(done: Done) -> None:
    if done.failed:
        raise HTTPException(STATUS[done.failed], f"the device failed: {done.failed}")


async def run_lifespan(receive: Receive, send: Send) -> None:
    """Answer the messages of a lifespan."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class BatchQueue:
    """Completes the futures of finished requests with one timer, set to the device's next event.

    Event loops may follow each other, as under a test client, but only one at a time may use a queue.
    """

    def __init__(self, sim: SimulatedGpu) -> None:
        self.sim = sim
        self._waiting: dict[int, asyncio.Future[Done]] = {}
        self._ids = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._armed_s = math.inf

    def submit(self, context_tokens: int, tokens: int) -> tuple[int, asyncio.Future[Done]]:
        """Submit a request and return its number and the future of its result."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._armed_s = loop, math.inf
        number = next(self._ids)
        future: asyncio.Future[Done] = loop.create_future()
        self._waiting[number] = future
        self.sim.submit(Item(number, context_tokens, tokens), self.sim.clock())
        self._set_timer()
        return number, future

    def start_next(self) -> None:
        """Complete the futures of finished requests, and set the timer."""
        for done in self.sim.advance(self.sim.clock()):
            future = self._waiting.pop(done.id)
            if not future.done():
                future.set_result(done)
        self._set_timer()

    def _set_timer(self) -> None:
        due_s = self.sim.next_event()
        if due_s is None or due_s >= self._armed_s or self._loop is None:
            return
        self._armed_s = due_s
        self._loop.call_later(max(0.0, due_s - self.sim.clock()), self._on_timer, due_s)

    def _on_timer(self, armed_s: float) -> None:
        # Timers are not cancelled: a replaced one still fires, and must not clear the newer one.
        if armed_s == self._armed_s:
            self._armed_s = math.inf
        self.start_next()


class SimulatedResponse:
    """Request and answer of one ASGI call."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> bytes | None:
        """Return a request's header field by its lower-case name."""
        return next((value for field, value in self._headers if field == name), None)

    async def disconnected(self) -> None:
        """Wait until the client has left; call it after `body`."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body(self) -> dict[str, object]:
        """Read the request's JSON object, of ``BODY_BYTES`` at most; an empty body counts as an empty one."""
        raw, more = b"", True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            raw += message.get("body", b"")
            more = message.get("more_body", False)
            if len(raw) > BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {BODY_BYTES} bytes")
        try:
            read = _decode(raw.decode()) if raw else {}
        except (ValueError, RecursionError):
            raise HTTPException(400, "the body is not JSON") from None
        if not isinstance(read, dict):
            raise HTTPException(400, "the body is not a JSON object")
        return read

    async def answer(self, status: int, content: Mapping[str, object]) -> None:
        """Send a complete JSON answer."""
        await self.answer_bytes(status, _encode(content).encode(), b"application/json")

    async def answer_bytes(self, status: int, body: bytes, content_type: bytes) -> None:
        """Send a complete answer."""
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def begin_stream(self) -> None:
        """Start an answer of server-sent events."""
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, data: Mapping[str, object] | str, *, last: bool = False) -> None:
        """Send one event; the last one ends the answer."""
        text = data if isinstance(data, str) else _encode(data)
        body = f"data: {text}\n\n".encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})


def integer_field(body: Mapping[str, object], name: str, default: int, least: int) -> int:
    """Read an integer from ``least`` to 1 000 000 from a request's body."""
    number = body.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= 1_000_000:
        raise HTTPException(400, f"{name} must be a whole number from {least} to 1000000")
    return number
