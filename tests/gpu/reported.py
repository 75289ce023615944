"""Rows of devices, as one source or several report them."""

from typing import Any

from hypothesis import strategies as st

from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import AggregateMode, GpuSample

GIB = 2**30


def aggregator(how: AggregateMode, order: tuple[str, ...] = (), **settings: Any) -> Aggregator:
    return Aggregator(GpuSettings(gpu_aggregate=how, **settings), order)


def device(
    index: int,
    utilization_pct: float | None = 50.0,
    *,
    memory: int | None = 80 * GIB,
    used: int | None = None,
    power_w: float | None = None,
    at: float = 1.0,
) -> GpuSample:
    return GpuSample(
        device=f"GPU-{index}",
        index=index,
        taken_at_s=at,
        source="test",
        utilization_pct=utilization_pct,
        memory_total_bytes=memory,
        memory_used_bytes=used,
        power_w=power_w,
        power_limit_w=None if power_w is None else 700.0,
    )


def lost(index: int, at: float = 1.0) -> GpuSample:
    return GpuSample(device=f"GPU-{index}", index=index, taken_at_s=at, source="test", health="lost")


UUIDS = [f"GPU-4f0c2a3e-9b1d-4c57-8a66-0123456789{n:02d}" for n in range(8)]


def report(source: str, index: int = 0, *, at: float = 1.0, **values: Any) -> GpuSample:
    """A device with a UUID."""
    device = {"device": UUIDS[index], "index": index, "taken_at_s": at, "source": source}
    return GpuSample(**{**device, **values})


PERCENT = st.none() | st.floats(0.0, 100.0)
