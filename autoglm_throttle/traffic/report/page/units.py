"""Numbers as people read them."""

from __future__ import annotations

NONE = "–"
"""Where there is nothing to say."""


def count(number: float) -> str:
    """A number of things."""
    return f"{number:,.0f}"


def many(number: int, one: str, more: str = "") -> str:
    """Things with their name: ``1 request``, ``2,000 requests``.

    Args:
        number: of them.
        one: the name of one.
        more: that of several; empty: with an s.
    """
    return f"{count(number)} {one if number == 1 else more or one + 's'}"


def brief(number: float) -> str:
    """A number of things where there is little room."""
    return f"{number / 1e6:.4g} M" if number >= 1e6 else count(number)


def rate(rps: float | None) -> str:
    """Things per second: one digit after the point while that matters."""
    if rps is None:
        return NONE
    return f"{rps:,.1f}/s" if 0.0 < rps < 10.0 else f"{rps:,.0f}/s"


def share(ratio: float | None) -> str:
    """A ratio in percent; never "0 %" for some, never "100 %" for almost all."""
    if ratio is None:
        return NONE
    if 0.0 < ratio < 0.001:
        return "< 0.1 %"
    if 0.999 < ratio < 1.0:
        return "> 99.9 %"
    return f"{100.0 * ratio:.{4 if ratio > 0.99 else 3}g} %"


def power_of_ten(ratio: float) -> str:
    """A round ratio, however small, in percent."""
    return f"{100.0 * ratio:.4g} %"


def seconds(duration_s: float | None) -> str:
    """A duration in the unit people would use, three digits at most."""
    if duration_s is None:
        return NONE
    if duration_s < 0.9995:
        return f"{_three(1e3 * duration_s)} ms"
    return f"{_three(duration_s)} s"


def clock(at_s: float) -> str:
    """A time of a run: seconds up to two minutes, then ``m:ss``, then ``h:mm:ss`` or whole hours."""
    if at_s <= 120.0:
        return f"{at_s:g} s"
    minutes, rest_s = divmod(round(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest_s:02}"
    return f"{hours}:{minutes:02}:{rest_s:02}" if minutes or rest_s else f"{hours} h"


def size(bytes_: float) -> str:
    """A size of memory in binary units, as the operating system says it."""
    for unit in ("B", "KiB", "MiB"):
        if bytes_ < 1024.0:
            return f"{_three(bytes_)} {unit}"
        bytes_ /= 1024.0
    return f"{_three(bytes_)} GiB"


def value(number: float | None, unit: str) -> str:
    """A number of an objective.

    Args:
        number: None where there were no data.
        unit: ``s``, ``ratio`` or ``rps``.
    """
    if number is None:
        return "no data"
    return {"s": seconds, "ratio": share, "rps": rate}[unit](number)


def _three(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.3g}"
