"""Probe of this machine's GPUs through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from autoglm_throttle.gpu.provider_errors import NoSourceError
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.traffic.probes import ProbeTargetLostError
from autoglm_throttle.types import GpuProvider, GpuSample


def _utilization(device: GpuSample) -> float | None:
    return None if device.utilization_pct is None else device.utilization_pct / 100.0


def _fill(device: GpuSample) -> float | None:
    if device.memory_used_bytes is None or not device.memory_total_bytes:
        return None
    return device.memory_used_bytes / device.memory_total_bytes


_NUMBERS: Final[tuple[tuple[str, Callable[[GpuSample], float | None], bool], ...]] = (
    ("gpu_utilization_ratio", _utilization, True),
    ("gpu_memory_ratio", _fill, True),
    ("gpu_power_w", lambda info: info.power_w, False),
)
"""Number of the report, its reader for one device, and whether several devices give a mean, not a sum."""


class LocalGpuProbe:
    """Samples all devices of the driver; without a driver there are no samples.

    Args:
        provider: reads them; None: NVIDIA's driver.
    """

    def __init__(self, provider: GpuProvider | None = None) -> None:
        self.name: str = "GPUs"
        self._provider = providers(GpuSettings())[0] if provider is None else provider

    def sample(self, now: float) -> dict[str, float]:  # noqa: ARG002 - the driver reports the present
        """Return mean utilization and memory fill, and total power.

        Raises:
            ProbeTargetLostError: there is no GPU.
            Exception: the driver fails.
        """
        try:
            devices = self._provider.read()
        except NoSourceError:
            raise ProbeTargetLostError from None
        return dict(_numbers(devices))


def _numbers(devices: Sequence[GpuSample]) -> Iterable[tuple[str, float]]:
    for name, read, is_mean in _NUMBERS:
        values = [value for value in map(read, devices) if value is not None]
        if values:
            yield name, sum(values) / len(values) if is_mean else sum(values)
