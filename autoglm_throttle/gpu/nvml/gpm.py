"""Reads NVIDIA's GPM: activity of the device's parts, on Hopper and later, for devices and MIG instances.

A metric is the difference of two samples, which the library fills into memory of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from autoglm_throttle.gpu.nvml.calls import NO_PERMISSION, CallResult, Handle, NvmlCalls, raw_attribute

_log = logging.getLogger("autoglm_throttle")
GAP_S: Final = 0.1  # Least time between two samples: NVIDIA says that closer ones make no metric
PER_CENT: Final = 100.0
MIB: Final = 2.0**-20

# ``NVML_GPM_METRIC_*`` -> name in a `GpuSample`, and the divisor that converts per cents, or MiB.
MIG_METRICS: Final[dict[int, tuple[str, float]]] = {
    1: ("graphics_active_ratio", PER_CENT),
    2: ("sm_active_ratio", PER_CENT),
    3: ("sm_occupancy_ratio", PER_CENT),
    5: ("tensor_active_ratio", PER_CENT),
    10: ("dram_active_ratio", PER_CENT),
}

DEVICE_METRICS: Final = MIG_METRICS | {60: ("nvlink_rx_bps", MIB), 61: ("nvlink_tx_bps", MIB)}
SAMPLE_CALL: Final = "nvmlGpmSampleGet"
SUPPORT_CALL: Final = "nvmlGpmQueryDeviceSupport"


class GpmReader:
    """Fills two samples of one device in turn, and compares them; they are allocated once.

    ``support`` queries whether the device has GPM at all, ``fill_sample`` fills a sample.
    """

    def __init__(
        self,
        calls: NvmlCalls,
        wanted: Mapping[int, tuple[str, float]],
        *,
        support: Callable[[], CallResult],
        fill_sample: Callable[[Handle], object],
    ) -> None:
        self._calls = calls
        self._wanted = wanted
        self._support = support
        self._fill_sample = fill_sample
        self._samples: list[Handle] = []  # The older one first
        self._request: Any = None
        self._metrics: list[Any] = []
        self._taken_at_s: float | None = None
        self._last: dict[str, float] = {}

    def read(self, now: float) -> dict[str, float]:
        """Fill the older sample and compare it with the other; nothing at the first reading, or without GPM.

        Sooner than `GAP_S` after the last sample, its result is returned again.
        """
        if SUPPORT_CALL in self._calls.unsupported or (not self._samples and not self._open()):
            return {}
        if self._taken_at_s is not None and now - self._taken_at_s < GAP_S:
            return self._last
        self._last = {}
        if self._allowed(SAMPLE_CALL, lambda: self._fill_sample(self._samples[0]) or True) is None:
            return {}
        is_first, self._taken_at_s = self._taken_at_s is None, now
        # The sample just filled becomes the newer one; the other is overwritten next.
        self._samples.reverse()
        self._last = {} if is_first else self._compare()
        return self._last

    def restart(self) -> None:
        """Discard the previous sample: the next read has no result."""
        self._taken_at_s = None

    def close(self) -> None:
        """Free the samples."""
        nvml, samples = self._calls.nvml, self._samples
        self._samples = []
        for sample in samples:
            try:
                nvml.nvmlGpmSampleFree(sample)
            except nvml.NVMLError as error:
                _log.debug("a GPM sample was not freed: %s", error)

    def _open(self) -> bool:
        support = self._allowed(SUPPORT_CALL, self._support)
        if support is not None and support.isSupportedDevice:
            self._allowed("nvmlGpmSampleAlloc", self._allocate)
        elif support is not None:
            reason = "only Hopper devices and later report how busy their parts are"
            self._calls.mark_unsupported(SUPPORT_CALL, reason)
        return bool(self._samples)

    def _allocate(self) -> None:
        nvml = self._calls.nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._wanted)
        metrics = request.metrics[: len(self._wanted)]
        for metric, number in zip(metrics, self._wanted, strict=True):
            metric.metricId = number
        self._request, self._metrics = request, metrics
        try:
            self._samples = [nvml.nvmlGpmSampleAlloc()]
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        except nvml.NVMLError:
            self.close()
            raise

    def _compare(self) -> dict[str, float]:
        request = self._request
        request.sample1, request.sample2 = self._samples
        if self._calls.call("nvmlGpmMetricsGet", request) is None:
            return {}
        return {
            name: raw_attribute(metric, "value") / divisor
            for metric, (name, divisor) in zip(self._metrics, self._wanted.values(), strict=True)
            if not raw_attribute(metric, "nvmlReturn")
        }

    def _allowed(self, name: str, call: Callable[[], CallResult]) -> CallResult:
        """Make a guarded call that the administrator may have forbidden for good."""

        def unless_forbidden() -> CallResult:
            try:
                return call()
            except self._calls.nvml.NVMLError as error:
                if error.value != NO_PERMISSION:
                    raise
                reason = f"{name}: {error}; the administrator keeps GPM for root"
                self._calls.mark_unsupported(SUPPORT_CALL, reason)
                return None

        return self._calls.run(name, unless_forbidden)
