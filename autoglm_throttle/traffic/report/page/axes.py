"""Axes of a plot: map numbers to 0..1 and choose the labelled ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
"""Time steps that are round for people."""

DAY_S = 86400

Tick = tuple[float, str]
"""Position 0..1, and label."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis."""

    place: Callable[[float], float]
    """Maps a number to 0..1."""
    ticks: tuple[Tick, ...]


def linear(most: float, label: Callable[[float], str], *, ticks: int = 4, power: int = 1) -> Axis:
    """Build an axis from 0 to a round number that is at least ``most``.

    Args:
        most: the greatest number to show; 0 or more.
        label: formats numbers.
        ticks: approximate number of labels.
        power: steps are round multiples of the greatest power of this base, such as 1024, up to ``most``.
    """
    # 1e-9: the logarithm of an exact power may be rounded to just below a whole number.
    unit = float(power) ** math.floor(math.log(most, power) + 1e-9) if power > 1 and most >= 1.0 else 1.0
    rough = most / unit / ticks  # may underflow to 0
    step = _round(rough) * unit if rough > 0.0 else 1.0 / ticks
    steps = max(1, math.ceil(most / step - 1e-9))
    top = steps * step
    return Axis(
        lambda number: number / top, tuple((turn / steps, label(turn * step)) for turn in range(steps + 1))
    )


def logarithmic(numbers: Sequence[float], label: Callable[[float], str]) -> Axis:
    """Build an axis over whole powers of ten that cover the numbers.

    Args:
        numbers: the numbers to show, above 0; if empty, one decade below 1.
        label: formats numbers.
    """
    low = math.floor(math.log10(min(numbers, default=0.1)) + 1e-9)
    high = max(low + 1, math.ceil(math.log10(max(numbers, default=1.0)) - 1e-9))
    decades = high - low
    return Axis(
        lambda number: (math.log10(max(number, 10.0**low)) - low) / decades,
        tuple((turn / decades, label(10.0 ** (low + turn))) for turn in range(decades + 1)),
    )


def time(length_s: float, label: Callable[[float], str], *, ticks: int = 6) -> Axis:
    """Build an axis from 0 to exactly ``length_s``, above 0, with at most ``ticks`` steps."""
    fitting = (step for step in STEPS_S if length_s / step <= ticks)
    step_s = next(fitting, DAY_S * math.ceil(length_s / DAY_S / ticks))
    named = range(int(length_s / step_s + 1e-9) + 1)
    return Axis(
        lambda at_s: at_s / length_s,
        tuple((turn * step_s / length_s, label(turn * step_s)) for turn in named),
    )


def _round(rough: float) -> float:
    """Return the first of 1, 2, 2.5, 5 and 10 times a power of ten that is not below the number."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(
        (digit * power for digit in (1.0, 2.0, 2.5, 5.0) if rough <= digit * power * (1 + 1e-9)), 10.0 * power
    )
