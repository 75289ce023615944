"""The simulated inference service: a small ASGI application in front of a ``SimulatedGpu``.

====== ======================== =================================================================
POST   /v1/predict              optional ``context_tokens`` and ``tokens``; one JSON answer
POST   /v1/generate             the same, under another common name
POST   /v1/chat/completions     ``messages``, ``max_tokens``, ``stream``; OpenAI's format, ``usage``
GET    /healthz                 200, or 503 while the device is lost
GET    /sim/state               counters and one sample
POST   /sim/fault               ``fault`` and its number; only if allowed
====== ======================== =================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

from starlette.types import ASGIApp, Receive, Scope, Send

from autoglm_throttle.traffic.simulate.desk import Desk
from autoglm_throttle.traffic.simulate.exchange import BadRequest, ClientGone, Exchange, whole
from autoglm_throttle.traffic.simulate.gpu import SimGpu
from autoglm_throttle.traffic.simulate.spec import Done

CHARS_PER_TOKEN = 4
"""The usual rule of thumb for English text."""

DEFAULT_TOKENS = 128
"""About the median answer of the public Azure chat trace of 2023 (129)."""

STREAM_EVERY_S = 0.05
"""Interval of events; tokens generated meanwhile are sent together."""

STATUS = {"memory": 500, "lost": 500, "too_large": 400, "cancelled": 499}
"""HTTP status of failed work, by ``Done.failed``; no client sees 499."""


def service(sim: SimGpu, *, allow_faults: bool = False, cancel_on_disconnect: bool = False) -> ASGIApp:
    """Build an ASGI application that serves from a simulated device.

    Args:
        sim: the device; its clock must be the event loop's own or one that runs as fast.
        allow_faults: whether ``POST /sim/fault`` exists.
        cancel_on_disconnect: cancel the work of a disconnected client; on most servers it continues.
    """
    return _Service(sim, allow_faults=allow_faults, cancels=cancel_on_disconnect)


class _Service:
    def __init__(self, sim: SimGpu, *, allow_faults: bool, cancels: bool) -> None:
        self._sim = sim
        self._cancels = cancels
        self._desk = Desk(sim)
        self._routes: dict[str, tuple[str, Callable[[Exchange], Awaitable[None]]]] = {
            "/v1/predict": ("POST", self._predict),
            "/v1/generate": ("POST", self._predict),
            "/v1/chat/completions": ("POST", self._chat),
            "/healthz": ("GET", self._health),
            "/sim/state": ("GET", self._state),
        }
        if allow_faults:
            self._routes["/sim/fault"] = ("POST", self._fault)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(Exchange(scope, receive, send))
        elif scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)(exchange)
        except BadRequest as problem:
            await exchange.answer(problem.status, {"error": str(problem)})
        except ClientGone:
            pass

    def _handler(self, exchange: Exchange) -> Callable[[Exchange], Awaitable[None]]:
        if exchange.path not in self._routes:
            raise BadRequest(404, "no such path")
        method, handler = self._routes[exchange.path]
        if exchange.method != method:
            raise BadRequest(405, f"use {method}")
        return handler

    async def _predict(self, exchange: Exchange) -> None:
        asked = await exchange.body()
        context = whole(asked, "context_tokens", 0, 0)
        tokens = whole(asked, "tokens", 1, 1)
        began_s = self._sim.clock()
        done = await self._submit(exchange, context, tokens)[1]
        _raise_failure(done)
        await exchange.answer(200, {"tokens": tokens, "took_s": round(done.done_s - began_s, 6)})

    def _submit(
        self, exchange: Exchange, context_tokens: int, tokens: int
    ) -> tuple[int, asyncio.Future[Done]]:
        number, future = self._desk.submit(context_tokens, tokens)
        if self._cancels:
            # The future holds the watching task through its callback, and ends it.
            listening = asyncio.ensure_future(self._cancel_when_gone(exchange, number))
            future.add_done_callback(lambda _: listening.cancel())
        return number, future

    async def _cancel_when_gone(self, exchange: Exchange, number: int) -> None:
        await exchange.gone()
        self._desk.cancel(number)

    async def _chat(self, exchange: Exchange) -> None:
        asked = await exchange.body()
        context = _context_tokens(asked)
        tokens = whole(asked, "max_tokens", DEFAULT_TOKENS, 1)
        usage = {
            "prompt_tokens": context,
            "completion_tokens": tokens,
            "total_tokens": context + tokens,
        }
        number, future = self._submit(exchange, context, tokens)
        if asked.get("stream") is True:
            await self._stream(exchange, number, future, usage)
            return
        _raise_failure(await future)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": _text(tokens)},
            "finish_reason": "length",
        }
        await exchange.answer(200, _completion("chat.completion", number, [choice]) | {"usage": usage})

    async def _stream(
        self, exchange: Exchange, number: int, future: asyncio.Future[Done], usage: Mapping[str, int]
    ) -> None:
        kind, told, total = "chat.completion.chunk", 0, usage["completion_tokens"]
        await exchange.begin_stream()
        while not future.done():
            await asyncio.wait((future,), timeout=STREAM_EVERY_S)
            ready = total if future.done() else self._sim.generated(number, self._sim.clock())
            if ready > told and not (future.done() and future.result().failed):
                choice = {"index": 0, "delta": {"content": _text(ready - told)}, "finish_reason": None}
                await exchange.event(_completion(kind, number, [choice]))
                told = ready
        if future.result().failed:
            await exchange.event({"error": _complaint(future.result())}, last=True)
            return
        ending = {"index": 0, "delta": {}, "finish_reason": "length"}
        await exchange.event(_completion(kind, number, [ending]) | {"usage": usage})
        await exchange.event("[DONE]", last=True)

    async def _health(self, exchange: Exchange) -> None:
        gone = self._sim.state(self._sim.clock())["gone"]
        await exchange.answer(503 if gone else 200, {"status": "gone" if gone else "ok"})

    async def _state(self, exchange: Exchange) -> None:
        now = self._sim.clock()
        await exchange.answer(200, self._sim.state(now) | {"sample": asdict(self._sim.sample(now))})

    async def _fault(self, exchange: Exchange) -> None:
        asked = await exchange.body()
        number = asked.get("number", 1.0)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise BadRequest(400, "number must be a number")
        try:
            _plant(self._sim, str(asked.get("fault")), float(number))
        except (ValueError, OverflowError) as problem:
            raise BadRequest(400, str(problem)) from None
        self._desk.pump()
        await exchange.answer(200, self._sim.state(self._sim.clock()))


def _plant(sim: SimGpu, fault: str, number: float) -> None:
    now = sim.clock()
    faults: dict[str, Callable[[], None]] = {
        "stall": lambda: sim.stall(number, now),
        "slow": lambda: sim.slow(number, now),
        "fake_busy": lambda: sim.fake_busy(on=bool(number)),
        "lose": lambda: sim.lose(now),
        "recover": lambda: sim.recover(now),
        "hang_reads": lambda: sim.hang_reads(number, now),
    }
    if fault not in faults:
        raise ValueError(f"fault must be one of {', '.join(faults)}")
    faults[fault]()


def _context_tokens(asked: Mapping[str, object]) -> int:
    messages = asked.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadRequest(400, "messages must be a list of objects")
    chars = sum(len(str(message.get("content", ""))) for message in messages)
    return -(-chars // CHARS_PER_TOKEN)


def _text(tokens: int) -> str:
    return "word " * tokens


def _completion(kind: str, number: int, choices: list[dict[str, object]]) -> dict[str, object]:
    return {"id": f"chatcmpl-{number}", "object": kind, "model": "simulated", "choices": choices}


def _complaint(done: Done) -> str:
    return f"the device failed: {done.failed}"


def _raise_failure(done: Done) -> None:
    if done.failed:
        raise BadRequest(STATUS[done.failed], _complaint(done))


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
