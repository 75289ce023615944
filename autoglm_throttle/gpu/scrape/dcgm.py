"""Converts the metrics of dcgm-exporter to samples.

Names and units are those of its ``default-counters.csv`` and of DCGM's ``dcgm_fields.h``. DCGM 4 renames
some, and both are read. Fields that the exporter disables by default are missing until they are enabled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from autoglm_throttle.gpu.sanity import RANGES, throttle_reasons
from autoglm_throttle.gpu.scrape.exposition import Series
from autoglm_throttle.gpu.scrape.freshness import DatedRow
from autoglm_throttle.types import GpuSample

_MIB: Final = 1024**2

# Field of a sample -> metric names in the order of preference, in our unit or one of ``SCALES``.
# ``DCGM_FI_PROF_*_BYTES`` are bytes per second, despite their type line. The totals of NVLink are left out:
# they add up both directions.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "utilization_pct": ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
    "memory_busy_pct": ("DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_MEMORY_UTIL_RATIO"),
    "graphics_active_ratio": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    "sm_active_ratio": ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"),
    "sm_occupancy_ratio": ("DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO"),
    "tensor_active_ratio": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
    "dram_active_ratio": ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO"),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
    "power_limit_w": (
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT",
        "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS",
    ),
    "power_limit_default_w": (
        "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",
        "DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS",
    ),
    "energy_j": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"),
    "temperature_c": ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
    "temperature_margin_c": ("DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS",),
    "sm_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ"),
    "sm_clock_max_mhz": ("DCGM_FI_DEV_MAX_SM_CLOCK", "DCGM_FI_DEV_MAX_SM_CLOCK_HERTZ"),
    "pcie_tx_bps": ("DCGM_FI_PROF_PCIE_TX_BYTES",),
    "pcie_rx_bps": ("DCGM_FI_PROF_PCIE_RX_BYTES",),
    "nvlink_tx_bps": ("DCGM_FI_PROF_NVLINK_TX_BYTES",),
    "nvlink_rx_bps": ("DCGM_FI_PROF_NVLINK_RX_BYTES",),
}

# Field of a sample -> counters, each by its names; the ones that are present are added up.
SUMS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "throttled_ns": (
        ("DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL"),
        ("DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL"),
    ),
    "nvlink_errors": (
        ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",),
        ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",),
        ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",),
        ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",),
    ),
}

USED: Final = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES")
FREE: Final = ("DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_FREE_BYTES")
RESERVED: Final = ("DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_RESERVED_BYTES")
# Without it, since it is off by default, the total is the sum of the other three.
TOTAL: Final = ("DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FB_CAPACITY_BYTES")
# Names in the base units of DCGM 4.7 -> our unit over theirs.
_BASE_UNITS: Final = {
    **dict.fromkeys((names[1] for names in (USED, FREE, RESERVED, TOTAL)), 1.0),
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 1.0,
    **dict.fromkeys(("DCGM_FI_DEV_SM_CLOCK_HERTZ", "DCGM_FI_DEV_MAX_SM_CLOCK_HERTZ"), 1e6),
    **dict.fromkeys((names[1] for names in SUMS["throttled_ns"]), 1e-9),
}
# Metric name -> our unit over its own: mJ, MiB, and the base units.
SCALES: Final = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1e3,
    **dict.fromkeys((names[0] for names in (USED, FREE, RESERVED, TOTAL)), 1.0 / _MIB),
    **_BASE_UNITS,
}
# Shares of 0 to 1 in DCGM 4.7. In 4.4 to 4.6 the same names are aliases of the percentages.
_RATIOS: Final = ("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_MEMORY_UTIL_RATIO")
# Last error number that the driver logged. It stays until the driver is reloaded.
XID: Final = ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")
REASONS: Final = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")

NAMES: Final = frozenset(
    {name for names in (*ALIASES.values(), *sum(SUMS.values(), ())) for name in names}
    | {*USED, *FREE, *RESERVED, *TOTAL, *XID, *REASONS}
)

# Fields left out for a MIG instance: they belong to the whole device and cannot be split.
WHOLE_DEVICE_FIELDS: Final = tuple(
    name
    for name in RANGES
    if name.startswith(("utilization", "power", "energy", "throttled_ns", "nvlink", "pcie"))
)

MIG_NOTE: Final = "power and links are those of the whole device, not of the instance: left out"
# Ranges of DCGM's blank values and the reasons that follow them: 32 bits, floating point, 64 bits.
_BLANKS: Final = ((2**31 - 16, 2**31 - 1), (2**47, 2**47 + 15), (2**63 - 1024, math.inf))
# Maximum length of the name of a device, a host or an instance: that of a host on a network.
MOST_CHARACTERS: Final = 255
_DEVICE_LABELS: Final = ("UUID", "uuid", "gpu_uuid", "device", "gpu")  # The third is that of its links
_Key = tuple[str, str, str]  # Host, device, MIG instance; the last is empty for a whole device


def parse_devices(
    series: Iterable[Series], *, source: str, now: float, host: str = ""
) -> list[DatedRow] | None:
    """Convert the series of an exporter to rows: one for each device, or for each of its MIG instances.

    ``host`` is that of a device without a ``Hostname``. None: no known name is present.
    """
    groups: dict[_Key, list[Series]] = {}
    known = False
    for one in series:
        if one.name in NAMES:
            known = True
            # A blank value still proves that the exporter is dcgm-exporter.
            blank = not math.isfinite(one.value) or any(low <= one.value <= high for low, high in _BLANKS)
            if not blank and (key := _key(one.labels, host)) is not None:
                groups.setdefault(key, []).append(one)
    if not known:
        return None
    # A device with MIG instances is reported by its instances only.
    split = {key[:2] for key in groups if key[2]}
    whole = [(key, group) for key, group in groups.items() if key[2] or key[:2] not in split]
    rows = (_row(key, group, source, now, position) for position, (key, group) in enumerate(whole))
    return [row for row in rows if row is not None]


def _key(labels: Mapping[str, str], host: str) -> _Key | None:
    """Identify the device of a series. None: a switch, a processor, or a missing or invalid name."""
    device = next((text for name in _DEVICE_LABELS if (text := labels.get(name))), "")
    if not device or labels.get("nvswitch") or labels.get("cpu"):
        return None
    key = labels.get("Hostname") or labels.get("hostname") or host, device, labels.get("GPU_I_ID", "")
    return None if max(map(len, key)) > MOST_CHARACTERS else key


def _row(key: _Key, group: list[Series], source: str, now: float, position: int) -> DatedRow | None:
    raw = _raw(group)
    values = _values(raw)
    if not values:
        return None
    host, device, instance = key
    labels, pulse = group[0].labels, values.get("energy_j")
    notes = [f"last XID {number:.0f}" for name in XID if (number := raw.get(name))][:1]
    if instance:
        values = {name: value for name, value in values.items() if name not in WHOLE_DEVICE_FIELDS}
        notes.append(MIG_NOTE)
    model = labels.get("modelName") or labels.get("model_name", "")
    names = (model, labels.get("GPU_I_PROFILE", "") if instance else "")
    part = f"{device}/{instance}" if instance else ""
    sample = GpuSample(
        device=part or device,
        index=_index(labels, instance, position),
        taken_at_s=now,
        source=source,
        host=host,
        kind="mig" if instance else "gpu",
        gpu_instance=part,
        name=" ".join(word for word in names if word)[:MOST_CHARACTERS],
        notes=tuple(notes),
        **values,
    )
    stamps = [one.at_s for one in group if one.at_s is not None and math.isfinite(one.at_s)]
    return sample, pulse, max(stamps, default=None)


def _raw(group: Iterable[Series]) -> dict[str, float]:
    """Return the value of each name in our unit; one that only the device's links report is their sum."""
    by_link: dict[str, dict[str, float]] = {}
    for one in group:
        # A device shared by several pods is listed once per pod, and the first counts.
        by_link.setdefault(one.name, {}).setdefault(one.labels.get("nvlink", ""), one.value)
    raw = {name: links.get("", math.fsum(links.values())) for name, links in by_link.items()}
    for name in _RATIOS:
        # 1 is 1 % or 100 %, unless another name shows the version: not known, or an idle device looks full.
        if (share := raw.get(name, 2.0)) == 1.0 and raw.keys().isdisjoint(_BASE_UNITS):
            del raw[name]
        elif share <= 1.0:
            raw[name] = 100.0 * share
    return {name: value / SCALES.get(name, 1.0) for name, value in raw.items()}


def _values(raw: Mapping[str, float]) -> dict[str, Any]:
    def first(names: tuple[str, ...]) -> float | None:
        return next((raw[name] for name in names if name in raw), None)

    values: dict[str, Any] = {field: first(names) for field, names in ALIASES.items()}
    for field, counters in SUMS.items():
        known = [value for names in counters if (value := first(names)) is not None]
        values[field] = round(sum(known)) if known else None
    if (reasons := first(REASONS)) is not None:
        values["throttle"] = throttle_reasons(int(reasons))
    used, free, total = first(USED), first(FREE), first(TOTAL)
    if total is None and used is not None and free is not None:
        total = used + free + (first(RESERVED) or 0.0)
    values["memory_used_bytes"] = None if used is None else round(used)
    values["memory_total_bytes"] = None if total is None else round(total)
    return {field: value for field, value in values.items() if value is not None}


def _index(labels: Mapping[str, str], instance: str, position: int) -> int:
    """Return the device's number, or the instance's as in `NvmlProvider`; the position if it has none."""
    texts = (labels.get("gpu", ""), instance or "0")
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        return position
    device, slot = map(int, texts)
    return 100 * (device + 1) + slot if instance else device
