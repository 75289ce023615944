"""Parses numbers with a unit: ``250ms``, ``3m``, ``256MiB``, ``85%``, ``6000/m``."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"([+-]?(?:\d{1,400}(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*(\S*)", re.ASCII | re.IGNORECASE)

UNITS: dict[str, dict[str, tuple[int, int]]] = {
    "s": {
        "us": (1, 1_000_000),
        "ms": (1, 1000),
        "s": (1, 1),
        "m": (60, 1),
        "min": (60, 1),
        "h": (3600, 1),
        "d": (86_400, 1),
    },
    "requests/s": {"/s": (1, 1), "/m": (1, 60), "/min": (1, 60), "/h": (1, 3600), "rps": (1, 1)},
    "bytes": {
        "b": (1, 1),
        "kb": (1000, 1),
        "mb": (1000**2, 1),
        "gb": (1000**3, 1),
        "kib": (1024, 1),
        "mib": (1024**2, 1),
        "gib": (1024**3, 1),
    },
    "%": {"%": (1, 1)},
    "share": {"%": (1, 100)},
}
"""Unit of a setting -> unit in the text -> (times, over). Fractions, because 57 * 0.01 is not 0.57."""


def parse_quantity(text: str, unit: str = "") -> float:
    """Parse a number with an optional unit.

    Args:
        text: ``0.25``, ``250ms``, ``3 m``; without a unit the number is in ``unit``.
        unit: a key of ``UNITS``; any other takes plain numbers only.

    Raises:
        ValueError: not a finite number, or a unit that ``unit`` does not have.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a number")
    spelling = match[2].lower()
    spellings = UNITS.get(unit, {})
    if spelling and spelling not in spellings:
        known = ", ".join(spellings)
        raise ValueError(
            f"unit {match[2]} is not known, only {known}" if known else "a plain number, no unit"
        )
    # Multiply before dividing: 57 * 0.01 is not 0.57.
    times, over = spellings.get(spelling, (1, 1))
    value = float(match[1]) * times / over
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def plain(value: float) -> str:
    """Format a number as the shortest text that reads back as the same number: ``100``, ``0.1``."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
