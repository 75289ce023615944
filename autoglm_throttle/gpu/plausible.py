"""Which numbers of a sample can be believed.

Drivers and files give sentinels, torn values and other units.
A value outside its range becomes ``None`` (not known) and is counted;
it is never clamped, for a clamped sentinel would look like a measurement.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autoglm_throttle.model import GpuSample

RANGES: Final[dict[str, tuple[float, float]]] = {
    "utilization_pct": (0.0, 100.0),
    "memory_busy_pct": (0.0, 100.0),
    "memory_used_bytes": (0, 2**53),  # 8 PiB: far above any card, exact as a float
    "memory_total_bytes": (1, 2**53),  # a card without memory is a blank answer
    "power_w": (0.0, 5000.0),  # the largest cards of 2025 are rated at 1400 W
    "power_limit_w": (1.0, 5000.0),  # it divides, so never 0
    "temperature_c": (-50.0, 200.0),
    "sm_clock_mhz": (0.0, 100_000.0),
    "sm_clock_max_mhz": (1.0, 100_000.0),
}
"""Field of a sample -> smallest and largest value believed, both included, in the field's own unit."""


def believable(sample: GpuSample) -> tuple[GpuSample, tuple[str, ...]]:
    """Empty the fields whose value cannot be.

    Args:
        sample: a row as the provider gave it.

    Returns:
        The sample, the same object if nothing was wrong, and the names of the emptied fields.
        ``memory_used_bytes`` above ``memory_total_bytes`` empties the former:
        the total is a constant of the card, the use is the reading.
    """
    wrong = [
        name
        for name, (low, high) in RANGES.items()
        if (value := getattr(sample, name)) is not None and not low <= value <= high  # NaN fails, too
    ]
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    pair_believed = not {"memory_used_bytes", "memory_total_bytes"} & set(wrong)
    if pair_believed and used is not None and total is not None and used > total:
        wrong.append("memory_used_bytes")
    if not wrong:
        return sample, ()
    emptied: dict[str, Any] = dict.fromkeys(wrong)
    return replace(sample, **emptied), tuple(wrong)
