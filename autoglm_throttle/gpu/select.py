"""Builds providers from the setting ``GPU``."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from autoglm_throttle._runtime.install_hint import how_to_install
from autoglm_throttle.gpu.auto import AutoProvider
from autoglm_throttle.gpu.nvml import EXTRA, NvmlProvider
from autoglm_throttle.gpu.recorded_provider import RecordedProvider
from autoglm_throttle.settings.gpu_items import ALLOWED_ITEMS, GpuItem, parse_items

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock, GpuProvider

_DEVICE: Final = re.compile(r"\d+|(GPU|MIG)-[\w/-]+", re.IGNORECASE | re.ASCII)


def providers(
    items: Sequence[str],
    *,
    devices: Sequence[str] = (),
    selector: str = "",
    clock: Clock = time.monotonic,
    wall: Clock = time.time,
    manual: bool = False,
) -> tuple[GpuProvider, ...]:
    """Make the sources of samples. Never calls a driver or a server and never opens a file.

    Args:
        items: each ``auto`` (NVIDIA's driver if there is one), ``nvml`` (there must be one), ``dcgm:URL``,
            ``prometheus:URL``, ``vllm:URL``, ``sglang:URL`` (read over HTTP), ``fake:FILE`` (a recording or
            a live state file, CSV or JSONL), or ``none`` alone.
        devices: NVIDIA devices by index or UUID; empty means those visible to CUDA.
        selector: PromQL label matchers that choose the series of ``prometheus:URL``.
        clock: monotonic seconds.
        wall: Unix seconds, for numbers that come with a time.
        manual: there is no sampler thread; a hang in a fake file then gives no rows instead of waiting.

    Returns:
        A provider for each item, in their order, each with a name of its own and opened at its first
        ``read``; no provider for ``none``. That of ``auto`` raises ``NoSourceError`` if it finds nothing.

    Raises:
        ValueError: an item has an unknown form, a device is malformed, or ``nvml`` lacks the
            package it needs. All faults of the items are listed, no passwords.
    """
    try:
        sources = parse_items(items)
    except ValueError as error:
        raise ValueError(f"GPU is a list of {ALLOWED_ITEMS}: {error}") from None
    entries = _entries(devices)
    names: dict[str, int] = {}

    def made(item: GpuItem) -> GpuProvider:
        name = _unique(item.kind if item.url is None else f"{item.kind}:{item.url.place}", names)
        if item.url is not None:
            from autoglm_throttle.gpu.scrape_provider import Scrape, ScrapeProvider

            return ScrapeProvider(Scrape(item.kind, item.url, selector), name=name, clock=clock, wall=wall)
        if item.kind == "fake":
            hang: Callable[[float], object] | None = None if manual else time.sleep
            return RecordedProvider(item.file, clock=clock, name=name, hang=hang)
        return _nvidia(item.kind, entries, clock)

    return tuple(made(item) for item in sources if item.kind != "none")


def _entries(devices: Sequence[str]) -> tuple[str, ...]:
    entries = tuple(entry.strip() for entry in devices if entry.strip())
    wrong = [entry for entry in entries if not _DEVICE.fullmatch(entry)]
    if wrong:
        raise ValueError(f"not a GPU: {', '.join(wrong)}; a device is an index, a GPU-<uuid> or a MIG-<uuid>")
    return entries


def _nvidia(kind: str, entries: tuple[str, ...], clock: Clock) -> GpuProvider:
    nvml = NvmlProvider(entries, clock=clock)
    if kind == "auto":
        return AutoProvider([nvml])
    if importlib.util.find_spec("pynvml") is None:
        raise ValueError(f"GPU=nvml needs the Python package nvidia-ml-py: {how_to_install(EXTRA)}")
    return nvml


def _unique(name: str, names: dict[str, int]) -> str:
    """Return the name, numbered from the second of its kind on: two engines may share a host and a port."""
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}#{names[name]}"
