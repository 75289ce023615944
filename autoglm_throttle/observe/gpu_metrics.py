"""Metrics of devices, engines and sources: every quantity that any source reports, and the verdicts.

An unknown quantity has no series, and neither has an outdated one. Units are
the base units of Prometheus; counters are the device's own and restart with its driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, get_args

from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.gpu.sampler import SourceState
from autoglm_throttle.gpu.sanity import THROTTLE_BITS
from autoglm_throttle.observe.metric import (
    MetricsInput,
    MetricSpec,
    Rows,
    counter,
    each_states,
    gauge,
    info,
    named,
    one,
    per,
    states,
    stateset,
)
from autoglm_throttle.types import GpuCondition, GpuSample, GpuVerdict, TelemetryState

_HEALTHS: Final = ("ok", "degraded", "lost")


def labelled(devices: Iterable[GpuSample]) -> list[tuple[str, GpuSample]]:
    """Give each device its label.

    A GPU's label is its index, an engine's its ``host:port``; on another host the host's name comes first.
    Two sources that number their devices alike and report no common UUID would share a label. Prometheus
    rejects a scrape with two equal series, so the second one is called ``0#2``: the order of a view does not
    change while the devices stay the same.
    """
    taken: dict[tuple[bool, str], int] = {}
    result = []
    for device in devices:
        plain = _plain(device)
        key = (device.kind == "engine", plain)  # an engine and a GPU may both be named "0"
        taken[key] = taken.get(key, 0) + 1
        result.append((plain if taken[key] == 1 else f"{plain}#{taken[key]}", device))
    return result


def _plain(device: GpuSample) -> str:
    if device.kind == "engine":
        return device.device if device.host in {"", device.device} else f"{device.host}/{device.device}"
    return f"{device.host}/{device.index}" if device.host else str(device.index)


def reported_by(inputs: MetricsInput, *, engines: bool = False) -> list[tuple[str, GpuSample]]:
    """Return the GPUs, or the engines, with a measurement that is recent enough, and their labels."""
    if engines not in inputs.reported:
        inputs.reported[engines] = list(_recent(inputs, engines=engines))
    return inputs.reported[engines]


def _recent(inputs: MetricsInput, *, engines: bool) -> Iterator[tuple[str, GpuSample]]:
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


_gpu = per(reported_by, "gpu")
_verdict = per(_current_verdicts, "gpu")
_gauge = partial(_gpu, "gauge")
_counter = partial(_gpu, "counter")


def _link(name: str, text: str, unit: str) -> MetricSpec:
    """Describe data over a link by direction: fields ``<link>_rx_<unit>`` and ``<link>_tx_<unit>``."""
    link = name.split("_")[1]

    def rows(inputs: MetricsInput) -> Rows:
        for label, device in reported_by(inputs):
            for direction, short in (("receive", "rx"), ("transmit", "tx")):
                value = getattr(device, f"{link}_{short}_{unit}")
                if value is not None:
                    yield (label, direction), value

    return (counter if unit == "bytes" else gauge)(name, text, rows, "gpu direction")


GPU_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    _gauge(
        "gpu_utilization_ratio",
        "Share of time in which any kernel ran, 0 to 1: a duty cycle, not load. A MIG instance has none.",
        "utilization_pct",
        0.01,
    ),
    _gauge(
        "gpu_graphics_active_ratio",
        "Share of time with any work on the device, 0 to 1: a MIG instance has it instead of utilization.",
    ),
    _gauge("gpu_sm_active_ratio", "Share of the multiprocessors that had work, 0 to 1."),
    _gauge("gpu_sm_occupancy_ratio", "Share of the threads that the multiprocessors could hold, 0 to 1."),
    _gauge("gpu_tensor_active_ratio", "Share of time in which the tensor cores worked, 0 to 1."),
    _gauge(
        "gpu_dram_active_ratio",
        "Share of time in which device memory moved data, 0 to 1; about 0.8 is the most in practice.",
    ),
    _gauge(
        "gpu_memory_busy_ratio",
        "Share of time in which device memory was read or written, 0 to 1: not its fill.",
        "memory_busy_pct",
        0.01,
    ),
    _gauge("gpu_memory_used_bytes", "Device memory in use."),
    _gauge("gpu_memory_total_bytes", "Device memory there is."),
    _gauge("gpu_power_watts", "Power drawn.", "power_w"),
    _gauge("gpu_power_limit_watts", "Power at which the device is slowed down.", "power_limit_w"),
    _gauge(
        "gpu_power_limit_default_watts",
        "Default power limit of the device; one set below it slows the device down.",
        "power_limit_default_w",
    ),
    _counter(
        "gpu_energy_joules",
        "Energy used; its rate is the mean power, better than single readings of it.",
        "energy_j",
    ),
    _gauge("gpu_temperature_celsius", "Temperature of the chip.", "temperature_c"),
    _gauge(
        "gpu_temperature_margin_celsius",
        "Degrees left until the device slows itself down; negative above that.",
        "temperature_margin_c",
    ),
    _gauge("gpu_sm_clock_hertz", "Clock of the multiprocessors.", "sm_clock_mhz", 1e6),
    _gauge("gpu_sm_clock_max_hertz", "Highest clock of the multiprocessors.", "sm_clock_max_mhz", 1e6),
    stateset(
        "gpu_throttle",
        "1 for each reason why the device runs below its requested clock: "
        f"{', '.join(sorted(THROTTLE_BITS))}. Several may hold, or none.",
        _throttle,
        "gpu reason",
    ),
    _counter("gpu_throttled_seconds", "Time spent slowed down by power or heat.", "throttled_ns", 1e-9),
    _link("gpu_pcie_bytes", "Data over PCIe, by direction: receive, transmit.", "bytes"),
    _link(
        "gpu_pcie_bytes_per_second",
        "Data over PCIe, as reported by the source, or since the previous reading.",
        "bps",
    ),
    _link("gpu_nvlink_bytes", "Data over all NVLinks, by direction: receive, transmit.", "bytes"),
    _link(
        "gpu_nvlink_bytes_per_second",
        "Data over all NVLinks, as reported by the source, or since the previous reading.",
        "bps",
    ),
    _counter("gpu_nvlink_errors", "Errors on all NVLinks: checksums, replays, recoveries."),
    stateset(
        "gpu_verdict",
        f"Condition of the device: {', '.join(GpuCondition)}.",
        each_states(_current_verdicts, "condition", GpuCondition),
        "gpu verdict",
    ),
    _verdict(
        "gauge",
        "gpu_verdict_confidence_ratio",
        "Share of the signals for or against the verdict that were known and agree, 0 to 1.",
        "confidence",
    ),
    _verdict(
        "gauge",
        "gpu_fake_busy",
        "1 while the device reports itself busy and does little: stalled, degraded or underfed.",
    ),
    gauge(
        "gpu_capacity_ratio",
        "Usable share of all known devices, 0 to 1: a lost one counts nothing, a throttled one by its clock.",
        _capacity,
    ),
    gauge("gpu_devices", "Known devices, by health.", _devices, "health"),
    info("gpu_info", "Device or MIG instance behind a value of the label gpu.", _info, "gpu uuid model kind"),
)


_engine = per(partial(reported_by, engines=True), "engine")


def _engine_info(inputs: MetricsInput) -> Rows:
    for label, device in labelled(inputs.snapshot.devices):
        if device.kind == "engine":
            yield (label, device.name), 1


ENGINE_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    _engine("gauge", "engine_running_requests", "Requests that the engine works on.", "running"),
    _engine("gauge", "engine_queued_requests", "Requests that wait inside the engine.", "queued"),
    _engine("gauge", "engine_kv_used_ratio", "Fill of its key-value cache, 0 to 1; the fullest of several."),
    _engine("counter", "engine_tokens", "Tokens read and written.", "tokens_total"),
    _engine(
        "counter",
        "engine_preemptions",
        "Requests that the engine put off because its cache was full.",
        "preemptions_total",
    ),
    info("engine_info", "Model that an engine serves, where it reports one.", _engine_info, "engine model"),
)


SOURCE_STATES: Final[tuple[str, ...]] = get_args(SourceState)
_SOURCES: Final = named("sources")
_source = per(_SOURCES, "source")


def _last_read(inputs: MetricsInput) -> Rows:
    wall_s = inputs.snapshot.taken_at_wall_s
    for source in inputs.snapshot.sources:
        if source.age_s is not None:
            yield (source.name,), wall_s - source.age_s


SOURCE_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    stateset(
        "telemetry_state",
        "How far the newest GPU sample can be believed; none means that no GPU is expected.",
        states("control.telemetry", TelemetryState),
        "state",
    ),
    gauge(
        "controller_last_sample_timestamp_seconds",
        "Unix time of the newest GPU sample; the reader computes its age.",
        one("last_sample_wall_s"),
    ),
    counter(
        "controller_errors",
        "GPU reads that failed or were overdue, threads that crashed, and values that cannot be.",
        one("controller_errors"),
    ),
    stateset(
        "gpu_source_state",
        f"State of the reads of each source: {', '.join(SOURCE_STATES)}.",
        each_states(_SOURCES, "state", SOURCE_STATES),
        "source state",
    ),
    gauge(
        "gpu_source_last_read_timestamp_seconds",
        "Unix time at which the source was last read; its data may be older.",
        _last_read,
        "source",
    ),
    _source(
        "gauge",
        "gpu_source_interval_seconds",
        "Time promised between two reads; it changes with SAMPLE_ADAPTIVE.",
        "interval_s",
    ),
    _source("counter", "gpu_source_failures", "Reads that gave nothing."),
    _source("counter", "gpu_source_overruns", "Reads that took longer than they may."),
    _source("counter", "gpu_source_implausible", "Values that cannot be and were taken as not known."),
    _source("counter", "gpu_source_crashes", "Times that its thread crashed and was to be started anew."),
)
