"""Metrics of the devices: every quantity that any source reports, and the verdicts.

An unknown quantity has no series, and neither has an outdated one. Units are
the base units of Prometheus; counters are the device's own and restart with its driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.gpu.sanity import THROTTLE_BITS
from autoglm_throttle.observe.device_label import labelled
from autoglm_throttle.observe.metric import PREFIX, Labels, MetricsInput, MetricSpec, Rows
from autoglm_throttle.types import GpuCondition, GpuSample, GpuVerdict

Read = Callable[[GpuSample], float | None]

_HEALTHS: Final = ("ok", "degraded", "lost")


def reported_by(inputs: MetricsInput, *, engines: bool = False) -> Iterator[tuple[str, GpuSample]]:
    """Yield the GPUs, or the engines, with a measurement that is recent enough, and their labels."""
    view = inputs.snapshot.view
    if view is None:
        return
    settings, now = inputs.settings, inputs.snapshot.taken_at_s
    ladder = Staleness(settings.gpu)
    for label, device in labelled(view.devices):
        blind_s = ladder.for_intervals(view.interval_s, device.period_s).blind_s
        age_s = now - device.taken_at_s + device.age_s
        if (device.kind == "engine") is engines and age_s <= blind_s:
            yield label, device


def _each(read: Read) -> Callable[[MetricsInput], Rows]:
    """Make a series for each device that reports the quantity."""

    def rows(inputs: MetricsInput) -> Iterator[tuple[Labels, float]]:
        for label, device in reported_by(inputs):
            value = read(device)
            if value is not None:
                yield (label,), value

    return rows


def _both_ways(receive: Read, transmit: Read) -> Callable[[MetricsInput], Rows]:
    """Make a series for each device and direction."""

    def rows(inputs: MetricsInput) -> Iterator[tuple[Labels, float]]:
        for label, device in reported_by(inputs):
            for direction, read in (("receive", receive), ("transmit", transmit)):
                value = read(device)
                if value is not None:
                    yield (label, direction), value

    return rows


def _scaled(read: Read, factor: float) -> Read:
    def scaled(device: GpuSample) -> float | None:
        value = read(device)
        return None if value is None else value * factor

    return scaled


def _throttle(inputs: MetricsInput) -> Rows:
    for label, device in reported_by(inputs):
        if device.throttle is not None:
            for bit in sorted(THROTTLE_BITS):
                yield (label, bit), float(bit in device.throttle)


def _current_verdicts(inputs: MetricsInput) -> Iterator[tuple[str, GpuVerdict]]:
    """Yield every device with a verdict; that of a lost one does not grow old."""
    view = inputs.snapshot.view
    if view is None:
        return
    believed = {label for label, _ in reported_by(inputs)}
    for label, device in labelled(view.devices):
        verdict = view.verdicts.get((device.host, device.device))
        # A lost device has no recent measurement, and its verdict must stay visible.
        if verdict is not None and (label in believed or device.health == "lost"):
            yield label, verdict


def _verdict(inputs: MetricsInput) -> Rows:
    for label, verdict in _current_verdicts(inputs):
        for condition in GpuCondition:
            yield (label, condition.value), float(condition is verdict.condition)


def _confidence(inputs: MetricsInput) -> Rows:
    return [((label,), verdict.confidence) for label, verdict in _current_verdicts(inputs)]


def _fake_busy(inputs: MetricsInput) -> Rows:
    return [((label,), float(verdict.fake_busy)) for label, verdict in _current_verdicts(inputs)]


def _gpus(inputs: MetricsInput) -> list[tuple[str, GpuSample]]:
    return [(label, device) for label, device in labelled(inputs.snapshot.devices) if device.kind != "engine"]


def _devices(inputs: MetricsInput) -> Rows:
    healths = [device.health for _, device in _gpus(inputs)]
    return [((health,), healths.count(health)) for health in _HEALTHS] if healths else []


def _info(inputs: MetricsInput) -> Rows:
    return [((label, device.device, device.name, device.kind), 1) for label, device in _gpus(inputs)]


def _capacity(inputs: MetricsInput) -> Rows:
    view = inputs.snapshot.view
    return [] if view is None or not _gpus(inputs) else [((), view.capacity)]


def _gauge(name: str, read: Read, text: str) -> MetricSpec:
    return MetricSpec(PREFIX + name, "gauge", ("gpu",), text, _each(read))


def _counter(name: str, read: Read, text: str) -> MetricSpec:
    return MetricSpec(PREFIX + name, "counter", ("gpu",), text, _each(read))


def _link(name: str, receive: Read, transmit: Read, text: str) -> MetricSpec:
    kind: Final = "counter" if name.endswith("_bytes") else "gauge"
    return MetricSpec(PREFIX + name, kind, ("gpu", "direction"), text, _both_ways(receive, transmit))


GPU_METRICS: Final[tuple[MetricSpec, ...]] = (
    _gauge(
        "gpu_utilization_ratio",
        _scaled(lambda device: device.utilization_pct, 0.01),
        "Share of time in which any kernel ran, 0 to 1: a duty cycle, not load. A MIG instance has none.",
    ),
    _gauge(
        "gpu_graphics_active_ratio",
        lambda device: device.graphics_active_ratio,
        "Share of time with any work on the device, 0 to 1: a MIG instance has it instead of utilization.",
    ),
    _gauge(
        "gpu_sm_active_ratio",
        lambda device: device.sm_active_ratio,
        "Share of the multiprocessors that had work, 0 to 1.",
    ),
    _gauge(
        "gpu_sm_occupancy_ratio",
        lambda device: device.sm_occupancy_ratio,
        "Share of the threads that the multiprocessors could hold, 0 to 1.",
    ),
    _gauge(
        "gpu_tensor_active_ratio",
        lambda device: device.tensor_active_ratio,
        "Share of time in which the tensor cores worked, 0 to 1.",
    ),
    _gauge(
        "gpu_dram_active_ratio",
        lambda device: device.dram_active_ratio,
        "Share of time in which device memory moved data, 0 to 1; about 0.8 is the most in practice.",
    ),
    _gauge(
        "gpu_memory_busy_ratio",
        _scaled(lambda device: device.memory_busy_pct, 0.01),
        "Share of time in which device memory was read or written, 0 to 1: not its fill.",
    ),
    _gauge("gpu_memory_used_bytes", lambda device: device.memory_used_bytes, "Device memory in use."),
    _gauge("gpu_memory_total_bytes", lambda device: device.memory_total_bytes, "Device memory there is."),
    _gauge("gpu_power_watts", lambda device: device.power_w, "Power drawn."),
    _gauge(
        "gpu_power_limit_watts",
        lambda device: device.power_limit_w,
        "Power at which the device is slowed down.",
    ),
    _gauge(
        "gpu_power_limit_default_watts",
        lambda device: device.power_limit_default_w,
        "Default power limit of the device; one set below it slows the device down.",
    ),
    _counter(
        "gpu_energy_joules",
        lambda device: device.energy_j,
        "Energy used; its rate is the mean power, better than single readings of it.",
    ),
    _gauge("gpu_temperature_celsius", lambda device: device.temperature_c, "Temperature of the chip."),
    _gauge(
        "gpu_temperature_margin_celsius",
        lambda device: device.temperature_margin_c,
        "Degrees left until the device slows itself down; negative above that.",
    ),
    _gauge(
        "gpu_sm_clock_hertz",
        _scaled(lambda device: device.sm_clock_mhz, 1e6),
        "Clock of the multiprocessors.",
    ),
    _gauge(
        "gpu_sm_clock_max_hertz",
        _scaled(lambda device: device.sm_clock_max_mhz, 1e6),
        "Highest clock of the multiprocessors.",
    ),
    MetricSpec(
        PREFIX + "gpu_throttle",
        "stateset",
        ("gpu", "reason"),
        "1 for each reason why the device runs below its requested clock: "
        f"{', '.join(sorted(THROTTLE_BITS))}. Several may hold, or none.",
        _throttle,
    ),
    _counter(
        "gpu_throttled_seconds",
        _scaled(lambda device: device.throttled_ns, 1e-9),
        "Time spent slowed down by power or heat.",
    ),
    _link(
        "gpu_pcie_bytes",
        lambda device: device.pcie_rx_bytes,
        lambda device: device.pcie_tx_bytes,
        "Data over PCIe, by direction: receive, transmit.",
    ),
    _link(
        "gpu_pcie_bytes_per_second",
        lambda device: device.pcie_rx_bps,
        lambda device: device.pcie_tx_bps,
        "Data over PCIe, as reported by the source, or since the previous reading.",
    ),
    _link(
        "gpu_nvlink_bytes",
        lambda device: device.nvlink_rx_bytes,
        lambda device: device.nvlink_tx_bytes,
        "Data over all NVLinks, by direction: receive, transmit.",
    ),
    _link(
        "gpu_nvlink_bytes_per_second",
        lambda device: device.nvlink_rx_bps,
        lambda device: device.nvlink_tx_bps,
        "Data over all NVLinks, as reported by the source, or since the previous reading.",
    ),
    _counter(
        "gpu_nvlink_errors",
        lambda device: device.nvlink_errors,
        "Errors on all NVLinks: checksums, replays, recoveries.",
    ),
    MetricSpec(
        PREFIX + "gpu_verdict",
        "stateset",
        ("gpu", "verdict"),
        f"Condition of the device: {', '.join(GpuCondition)}.",
        _verdict,
    ),
    MetricSpec(
        PREFIX + "gpu_verdict_confidence_ratio",
        "gauge",
        ("gpu",),
        "Share of the signals for or against the verdict that were known and agree, 0 to 1.",
        _confidence,
    ),
    MetricSpec(
        PREFIX + "gpu_fake_busy",
        "gauge",
        ("gpu",),
        "1 while the device reports itself busy and does little: stalled, degraded or underfed.",
        _fake_busy,
    ),
    MetricSpec(
        PREFIX + "gpu_capacity_ratio",
        "gauge",
        (),
        "Usable share of all known devices, 0 to 1: a lost one counts nothing, a throttled one by its clock.",
        _capacity,
    ),
    MetricSpec(PREFIX + "gpu_devices", "gauge", ("health",), "Known devices, by health.", _devices),
    MetricSpec(
        PREFIX + "gpu_info",
        "info",
        ("gpu", "uuid", "model", "kind"),
        "Device or MIG instance behind a value of the label gpu.",
        _info,
    ),
)
"""In the order of the page."""
