"""Parses numbers and durations of a command line, with an error text for each."""

from __future__ import annotations

from autoglm_throttle.traffic.errors import TrafficError

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}
"""Suffix of a duration -> seconds; the first that matches counts."""


def number(word: str) -> float:
    """Parse a plain number.

    Raises:
        TrafficError: not a number.
    """
    try:
        return float(word)
    except ValueError:
        raise TrafficError(f"{word!r} is not a number") from None


def duration(word: str) -> float:
    """Parse ``250ms``, ``20s``, ``2m`` or a plain number into seconds.

    Raises:
        TrafficError: not a duration.
    """
    unit = next(unit for unit in UNITS if word.endswith(unit))
    try:
        return float(word.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        raise TrafficError(f"{word!r} is no duration: a number with ms, s or m, such as 500ms") from None


def whole(what: str, word: str, least: int, most: int) -> int:
    """Parse a whole number within bounds.

    Raises:
        TrafficError: not a whole number from ``least`` to ``most``; the text calls it ``name``.
    """
    read = number(word)
    if not least <= read <= most or read != int(read):
        raise TrafficError(f"{what} must be a whole number from {least} to {most}, not {word!r}")
    return int(read)
