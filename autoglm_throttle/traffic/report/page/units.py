"""Formats numbers for the page."""

from __future__ import annotations

NO_DATA = "–"
"""Shown in place of missing data."""


def count(number: float) -> str:
    """Format a count."""
    return f"{number:,.0f}"


def many(number: int, one: str, more: str = "") -> str:
    """Format a count with its noun: ``1 request``, ``2,000 requests``.

    Args:
        number: the count.
        one: singular.
        more: plural; empty: singular plus s.
    """
    return f"{count(number)} {one if number == 1 else more or one + 's'}"


def brief(number: float) -> str:
    """Format a count for narrow places."""
    return f"{number / 1e6:.4g} M" if number >= 1e6 else count(number)


def rate(rps: float | None) -> str:
    """Format a rate per second, below 10 with one decimal."""
    if rps is None:
        return NO_DATA
    return f"{rps:,.1f}/s" if 0.0 < rps < 10.0 else f"{rps:,.0f}/s"


def share(ratio: float | None) -> str:
    """Format a ratio in percent; never "0 %" for some, never "100 %" for almost all."""
    if ratio is None:
        return NO_DATA
    if 0.0 < ratio < 0.001:
        return "< 0.1 %"
    if 0.999 < ratio < 1.0:
        return "> 99.9 %"
    return f"{100.0 * ratio:.{4 if ratio > 0.99 else 3}g} %"


def power_of_ten(ratio: float) -> str:
    """Format a power of ten in percent, however small."""
    return f"{100.0 * ratio:.4g} %"


def seconds(duration_s: float | None) -> str:
    """Format a duration in ms or s, with at most three digits."""
    if duration_s is None:
        return NO_DATA
    # From 0.9995 s on, three digits would round to "1,000 ms".
    if duration_s < 0.9995:
        return f"{_three(1e3 * duration_s)} ms"
    return f"{_three(duration_s)} s"


def clock(at_s: float) -> str:
    """Format a time of a run: seconds up to two minutes, then ``m:ss``, then ``h:mm:ss`` or whole hours."""
    if at_s <= 120.0:
        return f"{at_s:g} s"
    minutes, rest_s = divmod(round(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest_s:02}"
    return f"{hours}:{minutes:02}:{rest_s:02}" if minutes or rest_s else f"{hours} h"


def size(bytes_: float) -> str:
    """Format a memory size in binary units, as operating systems do."""
    for unit in ("B", "KiB", "MiB"):
        if bytes_ < 1024.0:
            return f"{_three(bytes_)} {unit}"
        bytes_ /= 1024.0
    return f"{_three(bytes_)} GiB"


def value(number: float | None, unit: str) -> str:
    """Format the measured value of an objective.

    Args:
        number: None without data.
        unit: ``s``, ``ratio`` or ``rps``.
    """
    if number is None:
        return "no data"
    return {"s": seconds, "ratio": share, "rps": rate}[unit](number)


def _three(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.3g}"
