"""Formats numbers for people."""

from __future__ import annotations

NO_DATA = "-"
"""Shown in place of missing data."""


def duration(seconds: float | None) -> str:
    """Format with three digits and a unit: ``850 us``, ``20.5 ms``, ``1.20 s``."""
    if seconds is None:
        return NO_DATA
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1.0:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds)} s"


def share(ratio: float | None) -> str:
    """Format as percent, with two decimals unless exactly 0 or 1: ``0 %``, ``0.35 %``, ``100 %``."""
    if ratio is None:
        return NO_DATA
    return f"{ratio * 100:.0f} %" if ratio in {0.0, 1.0} else f"{ratio * 100:.2f} %"


def rate(per_second: float | None) -> str:
    """Format as a rate per second: ``4969/s``, ``5.53/s``."""
    return NO_DATA if per_second is None else f"{_digits(per_second)}/s"


def quantity(value: float | None, unit: str) -> str:
    """Format a value in the unit of its objective: ``s``, ``ratio`` or ``rps``."""
    return {"s": duration, "ratio": share, "rps": rate}[unit](value)


def printable(text: str) -> str:
    """Replace control characters in external text, such as a reason in an answer, to protect the terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _digits(number: float) -> str:
    """Format with three digits, or with all digits before the decimal point."""
    decimals = 0 if number >= 100.0 else 1 if number >= 10.0 else 2
    return f"{number:.{decimals}f}"
