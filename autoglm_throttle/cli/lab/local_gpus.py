"""Probe of this machine's GPUs through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from autoglm_throttle.gpu.none import NoSourceError
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.model import GpuProvider, GpuSample
from autoglm_throttle.traffic.watch import Gone


def _utilization(card: GpuSample) -> float | None:
    return None if card.utilization_pct is None else card.utilization_pct / 100.0


def _fill(card: GpuSample) -> float | None:
    if card.memory_used_bytes is None or not card.memory_total_bytes:
        return None
    return card.memory_used_bytes / card.memory_total_bytes


_NUMBERS: Final[tuple[tuple[str, Callable[[GpuSample], float | None], bool], ...]] = (
    ("gpu_utilization_ratio", _utilization, True),
    ("gpu_memory_ratio", _fill, True),
    ("gpu_power_w", lambda card: card.power_w, False),
)
"""Number of the report, its reader for one device, and whether several devices give a mean, not a sum."""


class LocalGpus:
    """Samples all devices of the driver; without a driver there are no samples.

    Args:
        provider: reads them; None: NVIDIA's driver.
    """

    def __init__(self, provider: GpuProvider | None = None) -> None:
        self.name: str = "GPUs"
        self._provider = providers(["auto"])[0] if provider is None else provider

    def look(self, now: float) -> dict[str, float]:  # noqa: ARG002 - the driver reports the present
        """Return mean utilization and memory fill, and total power.

        Raises:
            ProbeTargetLostError: there is no GPU.
            Exception: the driver fails.
        """
        try:
            cards = self._provider.read()
        except NoSourceError:
            raise Gone from None
        return dict(_numbers(cards))


def _numbers(cards: Sequence[GpuSample]) -> Iterable[tuple[str, float]]:
    for name, read, is_mean in _NUMBERS:
        told = [value for value in map(read, cards) if value is not None]
        if told:
            yield name, sum(told) / len(told) if is_mean else sum(told)
