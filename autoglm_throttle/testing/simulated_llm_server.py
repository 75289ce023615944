"""A simulated LLM server: the HTTP interface of OpenAI and vLLM in front of an `LlmEngine`, in real time.

====== ======================== =================================================================
POST   /v1/chat/completions     ``messages``; streams with ``"stream": true``
POST   /v1/completions          ``prompt``; the same
GET    /v1/models               the one model
GET    /health                  200
GET    /metrics                 the gauges and counters of vLLM that ``GPU=vllm:http://HOST:PORT`` reads
====== ======================== =================================================================

Four characters count as a token. An answer ends by itself after a drawn number of tokens, unless
``ignore_eos`` is true; equal seeds give equal lengths. Work for a client that leaves is aborted.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from autoglm_throttle.testing.simulated import (
    CHARS_PER_TOKEN,
    WORD,
    SimulatedResponse,
    integer_field,
    prompt_tokens,
    run_lifespan,
)
from autoglm_throttle.testing.simulated_llm import LlmEngine, LlmEngineSpec, TokenLengths, draw_lengths
from autoglm_throttle.types import Clock, GpuSample

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETION_TOKENS: Final = 16  # vLLM's default of /v1/completions; that of a chat is the whole context

# The ``type`` of vLLM's error bodies, by status.
ERROR_TYPES: Final = {400: "BadRequestError", 404: "NotFoundError", 503: "Service Unavailable"}

# Type, name and value of the metrics, without the prefix ``vllm:``.
METRICS: Final[tuple[tuple[str, str, Callable[[LlmEngine], float]], ...]] = (
    ("gauge", "num_requests_running", lambda engine: engine.running),
    ("gauge", "num_requests_waiting", lambda engine: engine.waiting),
    ("gauge", "kv_cache_usage_perc", lambda engine: engine.kv_used_ratio),
    ("counter", "num_preemptions_total", lambda engine: engine.preemptions),
    ("counter", "prompt_tokens_total", lambda engine: engine.prompt_tokens),
    ("counter", "generation_tokens_total", lambda engine: engine.generation_tokens),
)


class SimulatedLlm:
    """An ASGI application that behaves as a server of vLLM, and a `GpuProvider` of its engine's load.

    One event loop at a time may use it. ``seed`` draws the lengths of answers.
    """

    name = "simulated-llm"
    min_interval_s: float = 0.05

    def __init__(
        self,
        spec: LlmEngineSpec | None = None,
        *,
        model: str = "simulated",
        seed: int = 0,
        clock: Clock = time.monotonic,
    ) -> None:
        self.engine: LlmEngine = LlmEngine(spec)
        self.model: str = model
        self._seed = seed
        self._clock = clock
        self._numbers = itertools.count(1)
        self._generations: dict[int, _Generation] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._routes: dict[str, tuple[str, Callable[[SimulatedResponse], Awaitable[None]]]] = {
            CHAT_PATH: ("POST", self._complete),
            "/v1/completions": ("POST", self._complete),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", lambda exchange: exchange.answer_bytes(200, b"", b"text/plain")),
            "/metrics": ("GET", self._metrics),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(SimulatedResponse(scope, receive, send))
        else:
            await send({"type": "websocket.close", "code": 1000})

    def read(self) -> tuple[GpuSample]:
        """Return one sample of the engine, as a scrape of ``/metrics`` would."""
        engine = self.engine
        sample = GpuSample(
            device=self.name,
            index=0,
            taken_at_s=self._clock(),
            source=self.name,
            kind="engine",
            name=self.model,
            running=engine.running,
            queued=engine.waiting,
            kv_used_ratio=engine.kv_used_ratio,
            tokens_total=engine.prompt_tokens + engine.generation_tokens,
            preemptions_total=engine.preemptions,
        )
        return (sample,)

    def close(self) -> None:
        """Do nothing: there is no driver to release."""

    def reset_after_fork(self) -> None:
        """Do nothing: there are no handles to drop."""

    async def _serve(self, exchange: SimulatedResponse) -> None:
        method, handler = self._routes.get(exchange.path, ("", None))
        if handler is None:
            await _send_error(exchange, 404, "Not Found")
        elif exchange.method != method:
            await _send_error(exchange, 405, "Method Not Allowed")
        else:
            try:
                await handler(exchange)
            except HTTPException as problem:
                await _send_error(exchange, problem.status_code, problem.detail)
            except ClientDisconnect:
                pass

    async def _complete(self, exchange: SimulatedResponse) -> None:
        body, number = await exchange.body(), next(self._numbers)
        generation = self._generation(number, body, is_chat=exchange.path == CHAT_PATH)
        if not self.engine.submit(number, generation.lengths, _priority(body, exchange)):
            raise HTTPException(503, "The server is overloaded: too many requests are queued")
        self._generations[number] = generation
        self._begin(asyncio.get_running_loop().time())
        watch = asyncio.ensure_future(generation.watch(exchange))
        try:
            await (self._stream if generation.streams else self._answer)(exchange, generation)
        finally:
            watch.cancel()
            del self._generations[number]
            self.engine.abort(number)

    def _generation(self, number: int, body: Mapping[str, Any], *, is_chat: bool) -> _Generation:
        """Read the request: vLLM's defaults, and a drawn length of the answer."""
        given = {name: value for name, value in body.items() if value is not None}
        if given.get("n", 1) != 1:
            raise HTTPException(400, "n must be 1")
        prompt, limit = _prompt_tokens(given, is_chat=is_chat), self.engine.spec.max_model_len
        if prompt >= limit:
            raise HTTPException(400, f"the prompt has {prompt} tokens; prompt and answer may have {limit}")
        name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
        most = integer_field(given, name, limit if is_chat else COMPLETION_TOKENS, 1)
        output = most = min(most, limit - prompt)
        if given.get("ignore_eos") is not True:
            rng = random.Random(str(given.get("seed", f"{self._seed} {number}")))
            output = min(most, draw_lengths(rng).output)
        options = given.get("stream_options")
        return _Generation(
            head={"id": f"{'chatcmpl' if is_chat else 'cmpl'}-{number}", "created": 0, "model": self.model},
            lengths=TokenLengths(prompt, output),
            is_chat=is_chat,
            finish_reason="length" if output == most else "stop",
            streams=given.get("stream") is True,
            includes_usage=isinstance(options, dict) and options.get("include_usage") is True,
        )

    async def _answer(self, exchange: SimulatedResponse, generation: _Generation) -> None:
        await generation.changed.wait()
        if not generation.is_abandoned:
            await exchange.answer(200, generation.answer())

    async def _stream(self, exchange: SimulatedResponse, generation: _Generation) -> None:
        await exchange.begin_stream()
        sent = 0
        while sent < generation.lengths.output:
            await generation.changed.wait()
            generation.changed.clear()
            if generation.is_abandoned:
                return
            ready = generation.ready
            for chunk in generation.chunks(sent, ready):
                await exchange.event(chunk)
            sent = ready
        if generation.includes_usage:
            await exchange.event(generation.chunk() | {"usage": generation.usage})
        await exchange.event("[DONE]", last=True)

    def _begin(self, now: float) -> None:
        """Begin a step, if there is work and none runs, and set the timer for its end."""
        loop = asyncio.get_running_loop()
        if self.engine.ends_s is None or loop is not self._loop:
            self._loop = loop
            ends_s = self.engine.begin(now)
            if ends_s is not None:
                loop.call_at(ends_s, self._finish, loop, ends_s)

    def _finish(self, loop: asyncio.AbstractEventLoop, ends_s: float) -> None:
        if loop is not self._loop:  # a timer of the loop before
            return
        for event in self.engine.finish():
            if event.kind == "finished":
                generation = self._generations[event.id]
                generation.ready = generation.lengths.output
                generation.changed.set()
        for number in self.engine.decoding_ids:
            generation = self._generations[number]
            generation.ready += 1
            if generation.streams:
                generation.changed.set()
        # Not the present time: a GPU is no slower where this loop is busy.
        self._begin(ends_s)

    async def _models(self, exchange: SimulatedResponse) -> None:
        limit = self.engine.spec.max_model_len
        model = {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "max_model_len": limit,
        }
        await exchange.answer(200, {"object": "list", "data": [model]})

    async def _metrics(self, exchange: SimulatedResponse) -> None:
        labels = f'{{engine="0",model_name="{self.model}"}}'
        lines = [
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{labels} {float(value(self.engine))}\n"
            for kind, name, value in METRICS
        ]
        await exchange.answer_bytes(200, "".join(lines).encode(), b"text/plain; version=0.0.4")


@dataclass(slots=True, kw_only=True, eq=False)
class _Generation:
    """The answer to a request, in the format of OpenAI."""

    head: dict[str, object]  # Fields of every object
    lengths: TokenLengths
    is_chat: bool
    finish_reason: str
    streams: bool
    includes_usage: bool
    ready: int = 0  # Tokens generated so far
    is_abandoned: bool = False  # Whether the client has left
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # Set when there is more to send

    @property
    def usage(self) -> dict[str, int]:
        """The counted tokens."""
        prompt, output = self.lengths
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    async def watch(self, exchange: SimulatedResponse) -> None:
        """Wait until the client leaves."""
        await exchange.disconnected()
        self.is_abandoned = True
        self.changed.set()

    def answer(self) -> dict[str, object]:
        """Return the whole answer."""
        text = WORD * self.lengths.output
        content = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        kind = "chat.completion" if self.is_chat else "text_completion"
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": self.finish_reason}
        return {**self.head, "object": kind, "choices": [choice], "usage": self.usage}

    def chunks(self, sent: int, ready: int) -> Iterator[dict[str, object]]:
        """Return the chunks of new tokens: one, and before the first one of a chat that of the role."""
        if self.is_chat and not sent:
            yield self.chunk({"delta": {"role": "assistant", "content": ""}})
        text = WORD * (ready - sent)
        content = {"delta": {"content": text}} if self.is_chat else {"text": text}
        yield self.chunk(content, self.finish_reason if ready == self.lengths.output else None)

    def chunk(
        self, content: Mapping[str, object] | None = None, reason: str | None = None
    ) -> dict[str, object]:
        """Return one chunk; without content there is no choice in it."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        choices = [{"index": 0, **content, "logprobs": None, "finish_reason": reason}] if content else []
        return {**self.head, "object": kind, "choices": choices}


def _prompt_tokens(body: Mapping[str, Any], *, is_chat: bool) -> int:
    if is_chat:
        return max(1, prompt_tokens(body))
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise HTTPException(400, "prompt must be a string")
    return max(1, -(-len(prompt) // CHARS_PER_TOKEN))


def _priority(body: Mapping[str, Any], exchange: SimulatedResponse) -> int:
    """Return the priority, a smaller one earlier: the header field counts before the body."""
    value = exchange.header(b"x-vllm-priority") or body.get("priority") or 0
    try:
        return int(value)
    except (TypeError, ValueError):
        raise HTTPException(400, "priority must be a whole number") from None


async def _send_error(exchange: SimulatedResponse, status: int, message: str) -> None:
    error = {"message": message, "type": ERROR_TYPES.get(status, message), "param": None, "code": status}
    await exchange.answer(status, {"error": error})
