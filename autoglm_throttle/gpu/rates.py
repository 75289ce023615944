"""Computes rates from the counters of two measurements.

Bytes, joules, tokens and nanoseconds are cumulative. They restart with a driver or a server, and two
measurements close together say little. An implausible difference is "not known", never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoglm_throttle.gpu.sanity import RANGES

if TYPE_CHECKING:
    from autoglm_throttle.types import GpuSample

LEAST_GAP_S: Final = 0.1
"""Below this gap the step of a counter dominates: the energy counter moves some ten times a second."""

PARALLEL_REASONS: Final = 4
"""Power and heat, in software and in hardware, are timed apart and may all count at once."""

_COUNTED: Final = {
    "nvlink_rx_bps": "nvlink_rx_bytes",
    "nvlink_tx_bps": "nvlink_tx_bytes",
    "pcie_rx_bps": "pcie_rx_bytes",
    "pcie_tx_bps": "pcie_tx_bytes",
    "tokens_per_s": "tokens_total",
    "preemptions_per_s": "preemptions_total",
}

RATES: Final = (*_COUNTED, "power_mean_w", "throttled_ratio")
"""Fields computed here if the source does not report them."""


def rates(before: GpuSample | None, row: GpuSample, gap_s: float) -> dict[str, float]:
    """Compute the fields of `RATES` that ``row`` lacks.

    Args:
        before: the previous measurement; None for the first one.
        row: the newest one.
        gap_s: seconds between them.

    Returns:
        Field -> value, each within the range of its field. A counter that went back, or that neither row
        knows, gives none. The mean power is that of the energy counter, because the sensor covers only a
        quarter of the time on some devices (arXiv 2312.02741). Without the counter it is the sensor's value.
    """
    derived: dict[str, float] = {}
    if before is not None and gap_s >= LEAST_GAP_S:
        for rate, counter in _COUNTED.items():
            _add_rate(derived, row, rate, _growth(before, row, counter), gap_s)
        _add_rate(derived, row, "power_mean_w", _growth(before, row, "energy_j"), gap_s)
        _add_rate(derived, row, "throttled_ratio", _slowed_s(before, row, gap_s), gap_s)
    if row.power_mean_w is None and row.power_w is not None:
        derived.setdefault("power_mean_w", row.power_w)
    return derived


def _growth(before: GpuSample, row: GpuSample, counter: str) -> float | None:
    value, former = getattr(row, counter), getattr(before, counter)
    return None if value is None or former is None else value - former


def _slowed_s(before: GpuSample, row: GpuSample, gap_s: float) -> float | None:
    """Return the seconds slowed down.

    The sum over several reasons, or over clocks read at slightly different times, is at most the gap.
    """
    grown = _growth(before, row, "throttled_ns")
    if grown is None or grown / 1e9 > 1.1 * PARALLEL_REASONS * gap_s:
        return None
    return min(grown / 1e9, gap_s)


def _add_rate(
    derived: dict[str, float], row: GpuSample, name: str, growth: float | None, gap_s: float
) -> None:
    if growth is None or getattr(row, name) is not None:
        return
    low, high = RANGES[name]
    if low <= growth / gap_s <= high:
        derived[name] = growth / gap_s
