"""Comparison of the thresholds of verdicts with the measured kernels of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoglm_throttle.gpu.verdict.table import BUSY_PCT, DRAM_WORKING, IDLE_PCT, TENSOR_WORKING
from autoglm_throttle.settings.groups.gpu import VerdictSettings

_DEFAULTS = VerdictSettings()


@dataclass(frozen=True)
class Bound:
    """Kernels on both sides of a threshold."""

    figure: float
    signal: str
    under: tuple[str, ...]
    """Kernels that must stay below it."""
    over: tuple[str, ...]
    """Kernels that must reach it."""


BOUNDS = {
    "idle_pct": Bound(IDLE_PCT, "utilization_pct", ("idle",), ("spin", "decode", "gemm")),
    "busy_pct": Bound(BUSY_PCT, "utilization_pct", ("idle",), ("spin", "decode", "gemm")),
    "power_stalled": Bound(_DEFAULTS.power_stalled, "power_share", ("spin",), ("decode", "gemm")),
    "power_underfed": Bound(_DEFAULTS.power_underfed, "power_share", ("spin", "small"), ("decode", "gemm")),
    "sm_stalled": Bound(_DEFAULTS.sm_stalled, "sm_active_ratio", ("spin",), ("decode", "gemm")),
    "sm_underfed": Bound(_DEFAULTS.sm_underfed, "sm_active_ratio", ("spin", "small"), ("decode", "gemm")),
    "dram_working": Bound(DRAM_WORKING, "dram_active_ratio", ("spin", "small"), ("decode",)),
    "tensor_working": Bound(TENSOR_WORKING, "tensor_active_ratio", ("spin", "small"), ("gemm",)),
}
"""Bounds of the thresholds: a kernel of one block stands for a hang, small products for too little work."""


def fit(kernels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare each threshold with the kernels on both sides; ``fits``: None where a side is unknown."""
    by_kernel = {record["kernel"]: record for record in kernels if "error" not in record}
    found = []
    for rule, bound in BOUNDS.items():
        below = _values(by_kernel, bound.signal, bound.under, most=True)
        above = _values(by_kernel, bound.signal, bound.over, most=False)
        highest, lowest = max(below, default=None), min(above, default=None)
        known = highest is not None and lowest is not None
        found.append(
            {
                "rule": rule,
                "figure": bound.figure,
                "signal": bound.signal,
                "highest_under": highest,
                "lowest_over": lowest,
                "fits": highest < bound.figure <= lowest if known else None,  # type: ignore[operator]  # known: no None
            }
        )
    return found


def _values(
    by_kernel: Mapping[str, Mapping[str, Any]], signal: str, names: Sequence[str], *, most: bool
) -> list[float]:
    """Return the extreme values of these kernels; none if one of them is unknown."""
    spreads = [by_kernel.get(name, {}).get(signal) for name in names]
    return [] if None in spreads else [spread[2 if most else 0] for spread in spreads if spread]
