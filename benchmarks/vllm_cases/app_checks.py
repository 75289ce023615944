"""Checks of vLLM's own app over a stub of its engine.

Run: ``python -m benchmarks.vllm --vllm FOLDER --check``. They stand beside the benchmark and not among the
tests: without the 2.5 GB of that environment nothing could run them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.vllm_cases.engine import ENVIRONMENT, ROOT, free_port

OPTIONS = (
    *("--served-model-name", "m", "--dtype", "bfloat16", "--max-num-seqs", "2", "--max-num-queued-reqs", "4"),
    *("--scheduling-policy", "priority", "--middleware", "autoglm_throttle.ThrottleMiddleware"),
)
START_S = 240.0
EXEMPT = (
    *("/health", "/ping", "/version", "/v1/models", "/load", "/docs", "/redoc", "/openapi.json"),
    *("/metrics", "/metrics/", "/metricsANYTHING"),
)


def started(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(f"{url}/health", timeout=5.0)
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    pytest.fail("vLLM's app does not answer")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the app, with the middleware and no setting but the trust in stated priorities."""
    python, model = Path(os.environ["VLLM_ENV"]) / "bin" / "python", tmp_path_factory.mktemp("vllm") / "model"
    subprocess.run([python, ROOT / "benchmarks" / "vllm_cases" / "make_model.py", model], check=True)
    port = free_port()
    settings = {"AUTOGLM_THROTTLE_PRIORITY_HEADER_TRUST": "any", "PYTHONPATH": str(ROOT)}
    stub = Path(__file__).with_name("stub.py")
    command = [str(python), str(stub), str(model), str(port), *OPTIONS]
    with subprocess.Popen(command, env=dict(os.environ) | ENVIRONMENT | settings) as process:
        try:
            started(process, f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def body(tokens: int, *, stream: bool = True) -> dict[str, object]:
    message = {"role": "user", "content": "The service answers requests"}
    return {"model": "m", "messages": [message], "max_tokens": tokens, "stream": stream}


async def ask(client: httpx.AsyncClient, tokens: int, **headers: str) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body(tokens), headers=headers)


def words(answer: httpx.Response) -> list[str]:
    """The words of a stream, which ended as it should."""
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    parts = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert parts[-1]["finish_reason"] == "length"
    return [part["delta"]["content"] for part in parts[1:]]


async def metric(client: httpx.AsyncClient, *names: str) -> float:
    """The sum of metrics of ours on the page of vLLM."""
    lines = (await client.get("/metrics")).text.splitlines()
    pairs = dict(line.split() for line in lines if line.startswith("autoglm_throttle") and "{" not in line)
    return sum(float(pairs[f"autoglm_throttle_{name}"]) for name in names)


async def test_whole_stream_passes_and_states_our_priority(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        answer = await ask(client, 1000, **{"x-priority": "low", "x-vllm-priority": "-9"})
        assert words(answer) == ["2", *[" word"] * 999]


async def test_full_engine_rejects_nothing_that_was_admitted(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        asked = [asyncio.create_task(ask(client, 100)) for _ in range(64)]
        await asyncio.sleep(0.2)
        probes = [(await client.get(path)).status_code for path in EXEMPT]
        answers = await asyncio.gather(*asked)
    assert probes == [200] * len(EXEMPT)
    served = [answer for answer in answers if answer.status_code == 200]
    assert [len(words(answer)) for answer in served] == [100] * len(served)
    rejected = [answer for answer in answers if answer.status_code != 200]
    assert {(answer.status_code, "retry-after-ms" in answer.headers) for answer in rejected} == {(503, True)}
    assert all("queue" in answer.text for answer in rejected)  # vLLM's own rejections do not say so


async def test_client_that_leaves_frees_its_slot(url: str) -> None:
    held = ("inflight_requests", "paused_requests")  # paused: on a busy machine two tokens may be far apart
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        async with client.stream("POST", "/v1/chat/completions", json=body(2000)) as answer:
            lines = answer.aiter_lines()  # kept: without this generator httpx closes the stream
            await anext(lines)
            assert await metric(client, *held) == 1.0
        for _ in range(100):
            if not await metric(client, *held):
                break
            await asyncio.sleep(0.05)
        assert await metric(client, *held) == 0.0
        assert await metric(client, "inflight_limit") == 3.0
