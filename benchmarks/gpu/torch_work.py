"""Real work with PyTorch: the forward pass of a transformer, and kernels with known telemetry."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.work import MAX_BATCH, STEP_S


@dataclass(frozen=True)
class Size:
    """Sizes of the work."""

    width: int
    heads: int
    tokens: int
    layers: int
    """Number of different layers, used in turn: together larger than any cache."""
    product: int
    """Rows and columns of the large matrix product."""
    small: int
    rows: int
    columns: int
    """Columns of the weights of the decoding kernel."""
    weights: int


SIZES = {
    "cuda": Size(4096, 32, 256, 4, 8192, 256, 16_384, 8_192, 4),
    "cpu": Size(64, 2, 8, 2, 64, 16, 128, 64, 2),
}
"""Sizes by device: on a GPU 1.6 GB of layers and 1 GB of weights; on a processor small ones."""

SPIN_CYCLES = 10_000_000
"""Cycles of one launch: about 5 ms at 2 GHz."""


class TorchWork:
    """Computes on a device.

    Args:
        device: ``cuda`` or ``cpu``.
        depth: layers that each request passes through.
    """

    def __init__(self, device: str, depth: int) -> None:
        torch: Any = importlib.import_module("torch")
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU; --work cpu shows that the program works, without figures")
        self._torch = torch
        self._device = device
        self._depth = depth
        self._size = SIZES[device]
        self._layers = [self._layer() for _ in range(self._size.layers)]
        self._input = self._random(MAX_BATCH, self._size.tokens, self._size.width)
        self._kernels: dict[str, Callable[[], Callable[[], Any]]] = {
            "spin": self._spin,
            "small": lambda: self._square(self._size.small),
            "decode": self._decode,
            "gemm": lambda: self._square(self._size.product),
        }

    def batch(self, count: int) -> None:
        """Compute ``count`` sequences through the layers."""
        with self._torch.inference_mode():
            values = self._input[:count]
            for layer in itertools.islice(itertools.cycle(self._layers), self._depth):
                values = self._through(layer, values)
        self._wait()

    def kernel(self, name: str) -> Callable[[], None]:
        """Prepare a kernel and calibrate its launches per step."""
        if name == "idle":
            return lambda: time.sleep(STEP_S)
        once = self._kernels[name]()
        launches = 1
        while self._seconds(once, launches) < STEP_S:
            launches *= 2
        return lambda: self._launch(once, launches)

    def close(self) -> None:
        """Wait for the running kernels."""
        self._wait()

    def _random(self, *shape: int) -> Any:
        return self._torch.randn(shape, device=self._device, dtype=self._torch.bfloat16)

    def _layer(self) -> tuple[Any, ...]:
        width = self._size.width
        shapes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
        return tuple(self._random(*shape) * shape[1] ** -0.5 for shape in shapes)

    def _through(self, layer: tuple[Any, ...], values: Any) -> Any:
        inward, outward, up, down = layer
        functional = self._torch.nn.functional
        count, tokens, width = values.shape
        normal = functional.layer_norm(values, (width,))
        split = functional.linear(normal, inward).view(count, tokens, 3, self._size.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        with_telemetry = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + functional.linear(
            with_telemetry.transpose(1, 2).reshape(count, tokens, width), outward
        )
        normal = functional.layer_norm(values, (width,))
        return values + functional.linear(functional.gelu(functional.linear(normal, up)), down)

    def _spin(self) -> Callable[[], Any]:
        """Build a kernel of one thread of one block, a test kernel of torch that needs no compiler."""
        if self._device == "cpu":
            return lambda: time.sleep(STEP_S)
        return lambda: self._torch.cuda._sleep(SPIN_CYCLES)

    def _square(self, size: int) -> Callable[[], Any]:
        left, right, into = (self._random(size, size) for _ in range(3))
        return lambda: self._torch.matmul(left, right, out=into)

    def _decode(self) -> Callable[[], Any]:
        size = self._size
        weights = itertools.cycle([self._random(size.columns, size.rows) for _ in range(size.weights)])
        rows = self._random(8, size.columns)
        return lambda: self._torch.matmul(rows, next(weights))

    def _seconds(self, once: Callable[[], Any], launches: int) -> float:
        self._launch(once, 1)
        begun_s = time.perf_counter()
        self._launch(once, launches)
        return time.perf_counter() - begun_s

    def _launch(self, once: Callable[[], Any], launches: int) -> None:
        with self._torch.inference_mode():
            for _ in range(launches):
                once()
        self._wait()

    def _wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()
