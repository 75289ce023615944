"""A model in the service's own process: requests share batches, and the load chooses the precision.

The model is a small network of ONNX, in two precisions. Less important requests get the smaller one while
the GPU is busy, and are rejected first while its memory is full. A request for text goes on to a vLLM server,
with the priority of its caller.

Run it:

    pip install ".[fastapi,httpx]" onnx onnxruntime uvicorn
    ENGINE_URL=http://localhost:8001 uvicorn examples.batched_model:app

Then ask it, with a lower precision, and for what it has learned:

    curl localhost:8000/embed --json '{"values": [0.1, 0.2, 0.3]}'
    curl localhost:8000/embed --json '{"values": [0.1, 0.2, 0.3]}' -H 'x-precision: int8'
    curl localhost:8000/batches
"""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import onnx
import onnxruntime
from fastapi import Depends, FastAPI, HTTPException
from onnxruntime.quantization import QuantType, quantize_dynamic
from pydantic import BaseModel, Field

from autoglm_throttle import Priority, RoutePolicy, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.batcher import AdaptiveBatcher, QueueFull, TooLate
from autoglm_throttle.fastapi import advice
from autoglm_throttle.types import ResourceAdvice

INPUTS, HIDDEN, OUTPUTS = 64, 512, 32

SETTINGS: dict[str, Any] = {
    "quotas": True,
    "precisions": "fp32,int8",  # the variants of the model, the best first
    "gpu_memory_ratio": 0.7,  # mid is rejected above this share of the memory
    "gpu_memory_ratio_low": 0.4,
    "routes": [RoutePolicy("/v1/completions", priority="high"), RoutePolicy("/batch/*", priority="low")],
}

Advice = Annotated[ResourceAdvice | None, Depends(advice)]


class Inputs(BaseModel):
    values: list[float] = Field(min_length=1, max_length=INPUTS)


def write_model(path: Path) -> None:
    """Write a network with one hidden layer and random weights."""
    rng = np.random.default_rng(1)
    weights = {
        "first": rng.normal(0, INPUTS**-0.5, (INPUTS, HIDDEN)).astype(np.float32),
        "second": rng.normal(0, HIDDEN**-0.5, (HIDDEN, OUTPUTS)).astype(np.float32),
    }
    node, value, float32 = onnx.helper.make_node, onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            node("MatMul", ["inputs", "first"], ["sums"]),
            node("Relu", ["sums"], ["hidden"]),
            node("MatMul", ["hidden", "second"], ["outputs"]),
        ],
        "embedding",
        [value("inputs", float32, ["batch", INPUTS])],
        [value("outputs", float32, ["batch", OUTPUTS])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def models() -> dict[str, onnxruntime.InferenceSession]:
    """Load the model in both precisions."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in ("fp32", "int8")}
        write_model(paths["fp32"])
        quantize_dynamic(paths["fp32"], paths["int8"], weight_type=QuantType.QInt8)
        return {
            name: onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            for name, path in paths.items()
        }


class Embedder:
    """Embeds in batches, with one batcher for each precision."""

    def __init__(self, throttle: Throttle) -> None:
        self.batchers: dict[str, AdaptiveBatcher[list[float], list[float]]] = {
            name: AdaptiveBatcher(partial(outputs_of, model), slo_s=0.5, throttle=throttle, name=name)
            for name, model in models().items()
        }

    async def embed(
        self, inputs: Inputs, advised: ResourceAdvice | None, priority: Priority
    ) -> dict[str, Any]:
        """Embed with the advised precision; the best while quotas are off."""
        precision = advised.precision if advised is not None else "fp32"
        try:
            outputs = await self.batchers[precision].submit(inputs.values, priority)
        except (QueueFull, TooLate) as error:
            raise HTTPException(503, str(error)) from error
        return {"precision": precision, "embedding": outputs}


def outputs_of(model: onnxruntime.InferenceSession, batch: list[list[float]]) -> list[list[float]]:
    """Run a batch; in a thread, as ONNX runs without the lock of the interpreter."""
    inputs = np.zeros((len(batch), INPUTS), np.float32)
    for row, values in zip(inputs, batch, strict=True):
        row[: len(values)] = values
    outputs: list[list[float]] = model.run(["outputs"], {"inputs": inputs})[0].tolist()
    return outputs


def create_app(throttle: Throttle | None = None, engine: httpx.AsyncClient | None = None) -> FastAPI:
    """Make the service. Tests hand in a throttle and an engine of their own."""
    throttle = throttle or Throttle(Settings.from_env(**SETTINGS))
    engine = engine or httpx.AsyncClient(base_url=os.environ.get("ENGINE_URL", "http://localhost:8001"))
    embedder = Embedder(throttle)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield
        for each in embedder.batchers.values():
            await each.aclose()

    app = FastAPI(title="Embeddings", lifespan=lifespan)

    @app.post("/embed")
    async def embed(inputs: Inputs, advised: Advice) -> dict[str, Any]:
        return await embedder.embed(inputs, advised, Priority.MID)

    @app.post("/batch/embed")
    async def embed_later(inputs: Inputs, advised: Advice) -> dict[str, Any]:
        return await embedder.embed(inputs, advised, Priority.LOW)

    @app.post("/v1/completions")
    async def complete(body: dict[str, Any], advised: Advice) -> dict[str, Any]:
        if advised is not None:  # vLLM with --scheduling-policy priority serves the lowest first
            body["priority"] = advised.compute_priority
        answer = await engine.post("/v1/completions", json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    @app.get("/batches")
    async def batches() -> dict[str, Any]:
        views = {name: each.view() for name, each in embedder.batchers.items()}
        return {name: {"items": view.items, "batches": view.batches} for name, view in views.items()}

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


app = create_app()
