"""The example with a model in process: shared batches, precision by load and memory, and vLLM's priority."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from autoglm_throttle import Demand, Permit, Priority
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, assert_shed, throttle_for_tests
from examples import batched_model

GB = 10**9


@pytest.fixture
def throttle() -> ManualThrottle:
    clock = ManualClock()
    gpu = FakeGpu(clock=clock)
    gpu.memory_total_bytes = 100 * GB
    made = throttle_for_tests(clock=clock, gpu=gpu, **batched_model.SETTINGS)
    made.tick()
    return made


@pytest.fixture
def sent() -> list[dict[str, Any]]:
    """What the engine was sent."""
    return []


@pytest.fixture
async def app(throttle: ManualThrottle, sent: list[dict[str, Any]]) -> AsyncIterator[FastAPI]:
    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": []})

    engine = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine")
    made = batched_model.create_app(throttle, engine)
    async with made.router.lifespan_context(made):
        yield made


def caller(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


def fill(throttle: ManualThrottle, more_gb: int) -> None:
    """Let a request take so much more of the memory."""
    permit = throttle.try_admit(Demand(Priority.HIGH, memory_bytes=more_gb * GB))
    assert isinstance(permit, Permit)
    throttle.gpu.memory_used_bytes += more_gb * GB
    throttle.tick()


async def test_concurrent_requests_share_batches(app: FastAPI) -> None:
    async with caller(app) as client:
        inputs = [{"values": [float(number), 1.0]} for number in range(40)]
        answers = await asyncio.gather(*(client.post("/embed", json=each) for each in inputs))
        found = [answer.json()["embedding"] for answer in answers]
        assert {len(outputs) for outputs in found} == {batched_model.OUTPUTS}
        seen = (await client.get("/batches")).json()["fp32"]
        assert seen["items"] == 40
        assert seen["batches"] < 40
        alone = (await client.post("/embed", json=inputs[7])).json()["embedding"]
    np.testing.assert_allclose(alone, found[7], atol=1e-5)


async def test_a_client_may_ask_for_the_smaller_variant(app: FastAPI) -> None:
    async with caller(app) as client:
        inputs = {"values": [0.5] * batched_model.INPUTS}
        best = (await client.post("/embed", json=inputs)).json()
        small = (await client.post("/embed", json=inputs, headers={"x-precision": "int8"})).json()
    assert (best["precision"], small["precision"]) == ("fp32", "int8")
    assert best["embedding"] != small["embedding"]
    np.testing.assert_allclose(small["embedding"], best["embedding"], atol=0.1)


async def test_memory_lowers_the_precision_and_then_rejects(app: FastAPI, throttle: ManualThrottle) -> None:
    async with caller(app) as client:
        inputs = {"values": [1.0]}
        fill(throttle, 45)
        assert_shed(await client.post("/batch/embed", json=inputs), "gpu")
        assert (await client.post("/embed", json=inputs)).json()["precision"] == "fp32"
        fill(throttle, 40)
        assert_shed(await client.post("/embed", json=inputs), "gpu")
        assert (await client.post("/v1/completions", json={"prompt": "hi"})).status_code == 200


async def test_the_engine_gets_the_priority_of_the_caller(app: FastAPI, sent: list[dict[str, Any]]) -> None:
    async with caller(app) as client:
        await client.post("/v1/completions", json={"prompt": "hi"})
    assert sent == [{"prompt": "hi", "priority": 0}]


async def test_input_of_a_wrong_length_is_rejected(app: FastAPI) -> None:
    async with caller(app) as client:
        for values in ([], [0.0] * (batched_model.INPUTS + 1)):
            assert (await client.post("/embed", json={"values": values})).status_code == 422
