"""The simulated LLM server: formats of OpenAI, streams, disconnects, metrics. The engine is a fast one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from starlette.types import Message

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.gpu.scrape.engines import parse_engine
from autoglm_throttle.gpu.scrape.exposition import parse
from autoglm_throttle.testing import LlmEngineSpec, SimulatedLlm
from autoglm_throttle.testing.simulated_llm import TokenLengths
from autoglm_throttle.traffic.inproc import VirtualClock, VirtualLoop, run_inprocess
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.types import GpuProvider
from tests.traffic.asgi_driver import ask

FAST = LlmEngineSpec().faster(1000.0)
MESSAGES: Any = [{"role": "user", "content": "x" * 41}]


def client_of(llm: SimulatedLlm) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(llm), base_url="http://engine")


@asynccontextmanager
async def sdk_of(llm: SimulatedLlm) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(llm) as client:
        http_client: Any = client  # openai's types name its own copy of httpx
        yield openai.AsyncOpenAI(
            api_key="-", base_url="http://engine/v1", http_client=http_client, max_retries=0
        )


async def post(llm: SimulatedLlm, path: str, body: object, **headers: str) -> httpx.Response:
    async with client_of(llm) as client:
        return await client.post(path, json=body, headers=headers)


async def started(llm: SimulatedLlm, count: int = 1) -> None:
    """Wait until the engine has some requests."""
    for _ in range(10_000):
        if llm.engine.running + llm.engine.waiting == count:
            return
        await asyncio.sleep(0)
    raise AssertionError("the engine has too few requests")


def events_of(response: httpx.Response) -> list[Any]:
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_sdk_reads_a_chat() -> None:
    async with sdk_of(SimulatedLlm(FAST)) as sdk:
        answer = await sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=3)
    assert answer.choices[0].message.content == "word word word "
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 3)


async def test_sdk_reads_a_stream_with_usage() -> None:
    async with sdk_of(SimulatedLlm(FAST)) as sdk:
        stream = await sdk.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "word " * 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [None, "length"]
    usage = chunks[-1].usage
    assert chunks[-1].choices == []
    assert usage is not None
    assert usage.completion_tokens == 5


async def test_sdk_reads_completions_of_sixteen_tokens_by_default() -> None:
    async with sdk_of(SimulatedLlm(FAST)) as sdk:
        answer = await sdk.completions.create(model="m", prompt="hello", extra_body={"ignore_eos": True})
        stream = await sdk.completions.create(model="m", prompt="hello", max_tokens=2, stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]
        models = (await sdk.models.list()).data
    assert answer.choices[0].text == "word " * 16
    assert "".join(texts) == "word word "
    assert [model.id for model in models] == ["simulated"]


async def test_stream_without_usage_has_an_event_for_each_token() -> None:
    body = {"messages": MESSAGES, "max_tokens": 4, "stream": True, "ignore_eos": True}
    slow = LlmEngineSpec(step_s=0.002, sequence_s=0.0001, prompt_token_s=0.0001)
    events = events_of(await post(SimulatedLlm(slow), "/v1/chat/completions", body))
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == "word " * 4
    assert all("usage" not in event for event in events)


async def test_answers_end_by_themselves_and_a_seed_repeats_them() -> None:
    body = {"messages": MESSAGES, "seed": 7}
    lengths = [
        (await post(SimulatedLlm(FAST, seed=seed), "/v1/chat/completions", {**body, **more})).json()
        for seed, more in ((0, {}), (1, {}), (0, {"seed": None}), (0, {"seed": None}), (1, {"seed": None}))
    ]
    counts = [one["usage"]["completion_tokens"] for one in lengths]
    assert counts[0] == counts[1]
    assert counts[2] == counts[3] != counts[4]
    assert {one["choices"][0]["finish_reason"] for one in lengths} == {"stop"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/nowhere", {}, 404),
        ("/health", {}, 405),
        ("/v1/chat/completions", {}, 400),
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 2}, 400),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 0}, 400),
        ("/v1/chat/completions", {"messages": MESSAGES, "priority": "first"}, 400),
        ("/v1/completions", {"prompt": 3}, 400),
        ("/v1/completions", {"prompt": "x" * 4 * 16_384}, 400),
    ],
)
async def test_bad_requests_have_the_error_body_of_vllm(path: str, body: object, status: int) -> None:
    response = await post(SimulatedLlm(FAST), path, body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["code"] == status
    assert error["message"]


async def test_full_engine_answers_503_without_retry_after() -> None:
    llm = SimulatedLlm(LlmEngineSpec(max_num_queued_reqs=1))
    body = {"messages": MESSAGES, "max_tokens": 100, "ignore_eos": True}
    first = asyncio.create_task(post(llm, "/v1/chat/completions", body))
    await started(llm)
    refused = await post(llm, "/v1/chat/completions", body)
    first.cancel()
    assert (refused.status_code, refused.headers.get("retry-after")) == (503, None)
    assert refused.json()["error"]["type"] == "Service Unavailable"


async def test_priority_field_counts_before_the_body() -> None:
    llm = SimulatedLlm(LlmEngineSpec(max_num_seqs=1, scheduling_policy="priority").faster(100.0))
    body = {"messages": MESSAGES, "max_tokens": 20, "ignore_eos": True}
    ended: list[str] = []

    async def ask(name: str, priority: int, **headers: str) -> None:
        await post(llm, "/v1/chat/completions", {**body, "priority": priority}, **headers)
        ended.append(name)

    await asyncio.gather(ask("first", 0), ask("late", 9), ask("urgent", 9, **{"x-vllm-priority": "-1"}))
    assert ended == ["first", "urgent", "late"]


@pytest.mark.parametrize("streams", [True, False])
async def test_engine_stops_when_the_client_leaves(streams: bool) -> None:
    llm = SimulatedLlm()
    gone = asyncio.Event()
    body = json.dumps({"messages": MESSAGES, "ignore_eos": True, "stream": streams}).encode()
    inbox: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    serving = asyncio.create_task(llm(scope, receive, send))
    await started(llm)
    gone.set()
    await serving
    assert (llm.engine.aborted, llm.engine.running) == (1, 0)
    assert llm.engine.kv_used_ratio == 0.0
    assert not any(message["type"] == "http.response.body" for message in sent[1:])


def test_clients_that_leave_lose_no_block_in_virtual_time() -> None:
    llm = SimulatedLlm(LlmEngineSpec(num_gpu_blocks=1024))
    chat = {"messages": [{"role": "user", "content": "x" * 2000}], "max_tokens": 40}
    bodies = [json.dumps(chat | {"stream": streams}).encode() for streams in (True, False)]
    requests = [PlannedRequest(target="/v1/chat/completions", body=body) for body in bodies]
    plan = make_plan(LoadShape.parse("fixed:20:2"), Arrivals.UNIFORM, PriorityMix(), 1)
    plan.kinds.extend(number % 2 for number in range(len(plan) - len(plan.kinds)))
    result = run_inprocess(llm, RequestSource(plan, requests), clock=VirtualClock(), abort=0.5)
    engine = llm.engine
    assert result.balanced
    assert engine.finished + engine.aborted == result.total().sent
    assert engine.aborted > 0
    assert engine.kv_used_ratio == 0.0


async def test_scrape_source_reads_its_metrics() -> None:
    llm = SimulatedLlm(FAST, model="tiny")
    await post(llm, "/v1/completions", {"prompt": "hello", "max_tokens": 1})
    async with client_of(llm) as client:
        page = await client.get("/metrics")
        assert (await client.get("/health")).status_code == 200
    row = parse_engine(parse(page.text), "vllm", source="s", now=0.0, place="localhost:8000")
    assert row is not None
    assert (row.name, row.running, row.queued, row.kv_used_ratio) == ("tiny", 0, 0, 0.0)
    assert (row.tokens_total, row.preemptions_total) == (3, 0)


async def test_throttle_reads_the_engine_as_its_provider() -> None:
    llm = SimulatedLlm(FAST)
    assert isinstance(llm, GpuProvider)
    throttle = Throttle(Settings(), gpu=llm, sampling="manual")
    llm.engine.submit(1, TokenLengths(100, 10))
    llm.engine.begin(0.0)
    throttle.tick()
    llm.reset_after_fork()
    llm.close()
    [engine] = throttle.snapshot().devices
    assert engine.running == 1


def test_event_loops_may_follow_each_other() -> None:
    llm = SimulatedLlm(FAST)
    body = {"messages": MESSAGES, "max_tokens": 50}

    async def leave_early() -> None:
        task = asyncio.create_task(post(llm, "/v1/chat/completions", body))
        await started(llm)
        task.cancel()

    asyncio.run(leave_early())
    assert asyncio.run(post(llm, "/v1/chat/completions", body)).status_code == 200


def test_timer_of_another_loop_is_ignored() -> None:
    llm = SimulatedLlm()
    body = {"messages": MESSAGES, "max_tokens": 5}

    async def begin(count: int) -> asyncio.Task[httpx.Response]:
        task = asyncio.create_task(post(llm, "/v1/chat/completions", body))
        await started(llm, count)
        return task

    async def leave(task: asyncio.Task[httpx.Response]) -> None:
        task.cancel()
        await asyncio.sleep(1.0)

    def virtual() -> VirtualLoop:
        return VirtualLoop(VirtualClock())

    with asyncio.Runner(loop_factory=virtual) as first, asyncio.Runner(loop_factory=virtual) as second:
        leaving = first.run(begin(1))
        answered = second.run(begin(2))
        first.run(leave(leaving))
        assert (llm.engine.aborted, llm.engine.waiting) == (1, 1)

        async def wait() -> httpx.Response:
            return await answered

        assert second.run(wait()).status_code == 200


async def test_client_that_leaves_before_its_body_costs_nothing() -> None:
    llm = SimulatedLlm(FAST)
    assert (await ask(llm, "POST", "/v1/completions", b"{", gone=True)).status == 0
    assert llm.engine.waiting == llm.engine.running == 0


async def test_lifespan_is_answered_and_websockets_are_closed() -> None:
    inbox: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    outbox: list[str] = []

    async def receive() -> Message:
        return inbox.pop(0)

    async def send(message: Message) -> None:
        outbox.append(message["type"])

    llm = SimulatedLlm(FAST)
    await llm({"type": "lifespan"}, receive, send)
    await llm({"type": "websocket"}, receive, send)
    assert outbox == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
