"""How people write numbers and durations, and what is said when they did not."""

from __future__ import annotations

from autoglm_throttle.traffic.errors import TrafficError

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}
"""Suffix of a duration -> seconds; the first that fits counts."""


def number(word: str) -> float:
    """A plain number.

    Raises:
        TrafficError: not a number.
    """
    try:
        return float(word)
    except ValueError:
        raise TrafficError(f"{word!r} is not a number") from None


def duration(word: str) -> float:
    """Seconds from ``250ms``, ``20s``, ``2m`` or a plain number.

    Raises:
        TrafficError: not a duration.
    """
    unit = next(unit for unit in UNITS if word.endswith(unit))
    try:
        return float(word.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        raise TrafficError(f"{word!r} is no duration: a number with ms, s or m, such as 500ms") from None


def whole(what: str, word: str, least: int, most: int) -> int:
    """A whole number within bounds.

    Raises:
        TrafficError: not a whole number from ``least`` to ``most``; the text calls it ``what``.
    """
    read = number(word)
    if not least <= read <= most or read != int(read):
        raise TrafficError(f"{what} must be a whole number from {least} to {most}, not {word!r}")
    return int(read)
