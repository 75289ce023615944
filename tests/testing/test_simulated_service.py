"""The simulated service as an ASGI application, on a fast device."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import Message

from autoglm_throttle.testing.simulated import (
    BODY_BYTES,
    BatchSpec,
    LlmSpec,
    SimulatedGpu,
    SimulatedGpuSpec,
    service,
)
from tests.traffic.asgi_driver import ask

FAST = SimulatedGpuSpec(work=BatchSpec(max_batch=8, base_s=1e-4, capacity_rps=10_000.0))
FAST_LLM = SimulatedGpuSpec(work=LlmSpec().faster(100.0))


async def test_predict_answers_when_the_batch_is_done() -> None:
    app = service(SimulatedGpu(FAST))
    answer = await ask(app, "POST", "/v1/predict")
    assert answer.status == 200
    assert answer.headers[b"content-length"] == b"%d" % len(answer.chunks[0])
    assert answer.json["tokens"] == 1
    assert answer.json["took_s"] >= 1e-4


async def test_predict_is_called_generate_too() -> None:
    answer = await ask(service(SimulatedGpu(FAST)), "POST", "/v1/generate", b'{"tokens":2}')
    assert (answer.status, answer.json["tokens"]) == (200, 2)


async def test_many_at_once_are_batched_and_all_answered() -> None:
    sim = SimulatedGpu(FAST)
    app = service(sim)
    answers = await asyncio.gather(
        *(ask(app, "POST", "/v1/predict", b'{"tok', b'ens":3}') for _ in range(50))
    )
    assert {answer.status for answer in answers} == {200}
    assert sim.state(sim.clock())["done"] == 50


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/predict", b"", 405),
        ("POST", "/healthz", b"", 405),
        ("POST", "/nowhere", b"", 404),
        ("POST", "/v1/unknown", b"{}", 404),
        ("POST", "/v1/predict", b"{", 400),
        ("POST", "/v1/predict", b"[]", 400),
        ("POST", "/v1/predict", b"\xff", 400),
        ("POST", "/v1/predict", b"[" * 100_000, 400),
        ("POST", "/v1/predict", b'{"tokens":0}', 400),
        ("POST", "/v1/predict", b'{"tokens":true}', 400),
        ("POST", "/v1/predict", b'{"tokens":1.5}', 400),
        ("POST", "/v1/predict", b'{"tokens":1000001}', 400),
        ("POST", "/v1/predict", b'{"context_tokens":-1}', 400),
        ("POST", "/v1/predict", b" " * (BODY_BYTES + 1), 413),
        ("POST", "/v1/chat/completions", b"{}", 400),
        ("POST", "/v1/chat/completions", b'{"messages":[1]}', 400),
    ],
)
async def test_bad_requests_get_a_400(method: str, path: str, body: bytes, status: int) -> None:
    answer = await ask(service(SimulatedGpu(FAST)), method, path, body)
    assert answer.status == status
    assert answer.json["error"]


async def test_a_client_that_leaves_early_gets_no_answer() -> None:
    sim = SimulatedGpu(FAST)
    assert (await ask(service(sim), "POST", "/v1/predict", b"{", gone=True)).status == 0
    assert sim.state(sim.clock())["submitted"] == 0


async def test_work_of_a_client_that_left_goes_on() -> None:
    sim = SimulatedGpu(FAST)
    app = service(sim)
    leaving = asyncio.create_task(ask(app, "POST", "/v1/predict"))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (await ask(app, "POST", "/v1/predict")).status == 200
    assert sim.state(sim.clock())["done"] == 2


CHAT = {"messages": [{"role": "user", "content": "x" * 41}], "max_tokens": 30}


async def test_chat_answers_in_the_usual_form() -> None:
    answer = await ask(
        service(SimulatedGpu(FAST_LLM)), "POST", "/v1/chat/completions", json.dumps(CHAT).encode()
    )
    assert answer.status == 200
    assert answer.json["object"] == "chat.completion"
    assert answer.json["usage"] == {"prompt_tokens": 11, "completion_tokens": 30, "total_tokens": 41}
    assert answer.json["choices"][0]["message"]["content"].split() == ["word"] * 30


async def test_chat_streams_every_token_once_and_then_the_usage() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=LlmSpec().faster(4.0)))
    body = json.dumps(CHAT | {"stream": True}).encode()
    answer = await ask(service(sim), "POST", "/v1/chat/completions", body)
    assert answer.headers[b"content-type"] == b"text/event-stream"
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in answer.chunks)
    assert answer.chunks[-1] == b"data: [DONE]\n\n"
    events = [json.loads(chunk[6:]) for chunk in answer.chunks[:-1]]
    words = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(words).split() == ["word"] * 30
    assert sum(word != "" for word in words) >= 2
    assert events[-1]["usage"]["completion_tokens"] == 30
    assert {event["id"] for event in events} == {"chatcmpl-1"}


async def test_batching_device_streams_everything_at_the_end() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=BatchSpec(max_batch=1, base_s=0.1, capacity_rps=9.0)))
    body = json.dumps(CHAT | {"stream": True}).encode()
    answer = await ask(service(sim), "POST", "/v1/chat/completions", body)
    assert len(answer.chunks) == 3


async def test_device_lost_during_a_stream_ends_it_with_an_error() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=LlmSpec()))
    streaming = asyncio.create_task(
        ask(service(sim), "POST", "/v1/chat/completions", json.dumps(CHAT | {"stream": True}).encode())
    )
    await asyncio.sleep(0)
    assert sim.state(sim.clock())["resident"] == 1
    sim.lose(sim.clock())
    answer = await streaming
    assert json.loads(answer.chunks[-1][6:]) == {"error": "the device failed: lost"}
    assert "word" not in answer.chunks[-1].decode()


async def test_failed_work_is_a_500_and_work_that_never_fits_a_400() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=LlmSpec(kv_tokens=100).faster(100.0)))
    app = service(sim)
    assert (await ask(app, "POST", "/v1/predict", b'{"tokens":101}')).status == 400
    sim.lose(sim.clock())
    assert (await ask(app, "GET", "/sim/state")).json["lost"] is True
    answer = await ask(app, "POST", "/v1/predict")
    assert (answer.status, answer.json["error"]) == (500, "the device failed: lost")
    assert (await ask(app, "GET", "/healthz")).status == 503
    sim.recover(sim.clock())
    assert (await ask(app, "GET", "/healthz")).status == 200
    assert (await ask(app, "POST", "/v1/predict")).status == 200


async def test_the_state_shows_a_sample() -> None:
    answer = await ask(service(SimulatedGpu(FAST)), "GET", "/sim/state")
    assert answer.json["sample"]["utilization_pct"] == 0.0
    assert answer.json["resident"] == 0


def test_loops_may_follow_each_other() -> None:
    sim = SimulatedGpu(FAST)
    app = service(sim)

    async def leave_early() -> None:
        task = asyncio.create_task(ask(app, "POST", "/v1/predict"))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave_early())
    assert asyncio.run(ask(app, "POST", "/v1/predict")).status == 200


async def test_lifespan_is_answered_and_websockets_are_closed() -> None:
    app = service(SimulatedGpu(FAST))
    inbox: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    outbox: list[Message] = []

    async def receive() -> Message:
        return inbox.pop(0)

    async def send(message: Message) -> None:
        outbox.append(message)

    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket"}, receive, send)
    assert [message["type"] for message in outbox] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
        "websocket.close",
    ]
