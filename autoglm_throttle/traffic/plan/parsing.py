"""Parses numbers and durations of a command line, with an error text for each."""

from __future__ import annotations

from autoglm_throttle.traffic.errors import TrafficError

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}
"""Suffix of a duration -> seconds; the first that matches counts."""


def parse_number(text: str) -> float:
    """Parse a plain number.

    Raises:
        TrafficError: not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise TrafficError(f"{text!r} is not a number") from None


def parse_duration(text: str) -> float:
    """Parse ``250ms``, ``20s``, ``2m`` or a plain number into seconds.

    Raises:
        TrafficError: not a duration.
    """
    unit = next(unit for unit in UNITS if text.endswith(unit))
    try:
        return float(text.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        raise TrafficError(f"{text!r} is no duration: a number with ms, s or m, such as 500ms") from None


def parse_whole(name: str, text: str, least: int, most: int) -> int:
    """Parse a whole number within bounds.

    Raises:
        TrafficError: not a whole number from ``least`` to ``most``; the text calls it ``name``.
    """
    read = parse_number(text)
    if not least <= read <= most or read != int(read):
        raise TrafficError(f"{name} must be a whole number from {least} to {most}, not {text!r}")
    return int(read)
