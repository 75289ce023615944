"""Builds providers from the setting ``GPU``."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.gpu.auto import AutoProvider
from autoglm_throttle.gpu.nvml import EXTRA, NvmlProvider
from autoglm_throttle.settings.groups.gpu import GpuItem, parse_items

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.gpu import GpuSettings
    from autoglm_throttle.types import Clock, GpuProvider


def providers(
    settings: GpuSettings,
    *,
    clock: Clock = time.monotonic,
    wall: Clock = time.time,
    manual: bool = False,
) -> tuple[GpuProvider, ...]:
    """Make the sources of samples. Never calls a driver or a server and never opens a file.

    Args:
        settings: the sources, the NVIDIA devices that count, and the label matchers of a Prometheus server.
        clock: monotonic seconds.
        wall: Unix seconds, for numbers that come with a time.
        manual: there is no sampler thread; a hang in a fake file then gives no rows instead of waiting.

    Returns:
        A provider for each source, in their order, each with a name of its own and opened at its first
        ``read``; no provider for ``none``. That of ``auto`` raises ``NoSourceError`` if it finds nothing.

    Raises:
        ValueError: ``nvml`` lacks the package it needs.
    """
    names: dict[str, int] = {}

    def made(item: GpuItem) -> GpuProvider:
        name = _unique(item.kind if item.url is None else f"{item.kind}:{item.url.place}", names)
        if item.url is not None:
            from autoglm_throttle.gpu.scrape_provider import Scrape, ScrapeProvider

            return ScrapeProvider(
                Scrape(item.kind, item.url, settings.gpu_selector), name=name, clock=clock, wall=wall
            )
        if item.kind == "fake":
            from autoglm_throttle.gpu.recorded_provider import RecordedProvider

            hang: Callable[[float], object] | None = None if manual else time.sleep
            return RecordedProvider(item.file, clock=clock, name=name, hang=hang)
        return _nvidia(item.kind, settings.gpu_devices, clock)

    return tuple(made(item) for item in parse_items(settings.gpu) if item.kind != "none")


def _nvidia(kind: str, devices: tuple[str, ...], clock: Clock) -> GpuProvider:
    nvml = NvmlProvider(devices, clock=clock)
    if kind == "auto":
        return AutoProvider([nvml])
    if importlib.util.find_spec("pynvml") is None:
        raise ValueError(f"GPU=nvml needs the Python package nvidia-ml-py: {how_to_install(EXTRA)}")
    return nvml


def _unique(name: str, names: dict[str, int]) -> str:
    """Return the name, numbered from the second of its kind on: two engines may share a host and a port."""
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}#{names[name]}"
