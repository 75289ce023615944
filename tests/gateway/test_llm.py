"""The openai client through the gateway to simulated LLM servers: streams, rejections, disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from autoglm_throttle.testing import LlmEngineSpec, SimulatedLlm
from tests.gateway.loopback import Front, front, under_uvicorn

FAST = LlmEngineSpec().faster(1000.0)
MESSAGES: Any = [{"role": "user", "content": "a question"}]
TOKENS = 100
HANG_S = 60.0


@asynccontextmanager
async def sdk_of(served: Front, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    base_url = f"http://127.0.0.1:{served.port}/v1"
    # Each test has its own connections: openai would reuse those of a closed event loop.
    http_client: Any = httpx.AsyncClient(trust_env=False, timeout=HANG_S)
    async with http_client:
        yield openai.AsyncOpenAI(
            **{"api_key": "-", "base_url": base_url, "http_client": http_client, "max_retries": 0, **options}
        )


async def test_sdk_reads_a_stream_with_its_usage() -> None:
    async with under_uvicorn(SimulatedLlm(FAST)) as port, front(f"http://127.0.0.1:{port}") as served:
        async with sdk_of(served) as sdk:
            stream = await sdk.chat.completions.create(
                model="m",
                messages=MESSAGES,
                max_tokens=TOKENS,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            chunks = [part async for part in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == TOKENS
        assert "".join(part.choices[0].delta.content or "" for part in chunks[:-1]) == "word " * TOKENS


async def test_sdk_that_leaves_a_stream_frees_the_engine() -> None:
    llm = SimulatedLlm()
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await llm(scope, receive, send)
        finally:
            if scope["type"] == "http":
                left.set()

    async with under_uvicorn(app) as port, front(f"http://127.0.0.1:{port}") as served:
        async with sdk_of(served) as sdk:
            stream = await sdk.chat.completions.create(
                model="m", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
            )
            await anext(stream)
            assert llm.engine.running == 1
            await stream.close()
            await asyncio.wait_for(left.wait(), HANG_S)
        assert (llm.engine.aborted, llm.engine.running) == (1, 0)
        assert llm.engine.kv_used_ratio == 0.0


async def test_sdk_reads_the_wait_of_a_full_engine() -> None:
    full = SimulatedLlm(LlmEngineSpec(max_num_queued_reqs=1))
    async with under_uvicorn(full) as port, front(f"http://127.0.0.1:{port}") as served:
        async with sdk_of(served) as sdk:
            create = sdk.chat.completions.create
            stream = await create(model="m", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True})
            with pytest.raises(openai.InternalServerError) as caught:
                await create(model="m", messages=MESSAGES)
            await stream.close()
        assert caught.value.status_code == 503
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 2
        assert (await served.client.get("/healthz")).json() == {"upstreams": 1, "available": 1}


async def test_sdk_reads_the_limit_of_its_user() -> None:
    settings: dict[str, Any] = {"user_limit": "1/hour", "identity": "bearer"}
    async with (
        under_uvicorn(SimulatedLlm(FAST)) as port,
        front(f"http://127.0.0.1:{port}", **settings) as served,
        sdk_of(served) as sdk,
    ):
        await sdk.completions.create(model="m", prompt="x", max_tokens=1)
        with pytest.raises(openai.RateLimitError) as caught:
            await sdk.completions.create(model="m", prompt="x", max_tokens=1)
        assert int(caught.value.response.headers["retry-after"]) > 60


async def test_tokens_of_each_user_are_limited_behind_the_gateway() -> None:
    limits: Any = {"tokens_output_limit": f"{2 * TOKENS}/hour", "identity": "bearer"}
    async with (
        under_uvicorn(SimulatedLlm(FAST)) as port,
        front(f"http://127.0.0.1:{port}", **limits) as served,
        sdk_of(served, api_key="one") as sdk,
    ):
        for max_tokens in (TOKENS, TOKENS, 1):
            request = sdk.chat.completions.create(
                model="m", messages=MESSAGES, max_tokens=max_tokens, extra_body={"ignore_eos": True}
            )
            if max_tokens > 1:
                answer = await request
                assert answer.usage is not None
                assert answer.usage.completion_tokens == TOKENS
            else:
                with pytest.raises(openai.RateLimitError) as caught:
                    await request
        assert caught.value.code == "user:output-3600s"
        async with sdk_of(served, api_key="another") as other:
            await other.chat.completions.create(model="m", messages=MESSAGES, max_tokens=1)
    counts = served.gateway.throttle.snapshot().token_counts
    assert counts is not None
    assert counts.by_result["overrun"] == 0
