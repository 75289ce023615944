"""How the figures of ``VerdictRules`` fit the card that was seen alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoglm_throttle.gpu.verdict_tracker import VerdictRules


@dataclass(frozen=True)
class Bound:
    """What a figure of the rules must lie between."""

    signal: str
    under: tuple[str, ...]
    """Kernels that must stay below it."""
    over: tuple[str, ...]
    """Kernels that must reach it."""


BOUNDS = {
    "idle_pct": Bound("utilization_pct", ("idle",), ("spin", "decode", "gemm")),
    "busy_pct": Bound("utilization_pct", ("idle",), ("spin", "decode", "gemm")),
    "power_stalled": Bound("power_share", ("spin",), ("decode", "gemm")),
    "power_underfed": Bound("power_share", ("spin", "small"), ("decode", "gemm")),
    "sm_stalled": Bound("sm_active_ratio", ("spin",), ("decode", "gemm")),
    "sm_underfed": Bound("sm_active_ratio", ("spin", "small"), ("decode", "gemm")),
    "dram_working": Bound("dram_active_ratio", ("spin", "small"), ("decode",)),
    "tensor_working": Bound("tensor_active_ratio", ("spin", "small"), ("gemm",)),
}
"""A kernel of one block stands for a hang, small products for a card with too little to do."""


def fit(kernels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each figure beside what the kernels on its two sides showed; ``fits``: None where a side is unknown."""
    seen = {told["kernel"]: told for told in kernels if "error" not in told}
    rules = VerdictRules()
    found = []
    for rule, bound in BOUNDS.items():
        below = _values(seen, bound.signal, bound.under, most=True)
        above = _values(seen, bound.signal, bound.over, most=False)
        figure: float = getattr(rules, rule)
        highest, lowest = max(below, default=None), min(above, default=None)
        known = highest is not None and lowest is not None
        found.append(
            {
                "rule": rule,
                "figure": figure,
                "signal": bound.signal,
                "highest_under": highest,
                "lowest_over": lowest,
                "fits": highest < figure <= lowest if known else None,  # type: ignore[operator]
            }
        )
    return found


def _values(
    seen: Mapping[str, Mapping[str, Any]], signal: str, names: Sequence[str], *, most: bool
) -> list[float]:
    """The outermost values of all these kernels; none if any of them is unknown."""
    spreads = [seen.get(name, {}).get(signal) for name in names]
    return [] if None in spreads else [spread[2 if most else 0] for spread in spreads if spread]
