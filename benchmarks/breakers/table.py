"""Text output of each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.breakers.cost import FORMS

TITLES = {
    "coroutine": "closed, decorated coroutine function",
    "function": "closed, decorated function",
    "block": "closed, block of a coroutine",
    "refused": "refused, decorated coroutine function",
    "told": "refused, and for how long",
}
RACES = ("tasks", "threads", "processes")
SHARED = (
    ("us", ".2f"),
    ("wall_us", ".2f"),
    ("over_local", ".2f"),
    ("commands", ".3g"),
    ("lost_us", ".2f"),
    ("lost_wall_us", ".2f"),
    ("lost_over_it", ".2f"),
    ("lost_errors", ".0%"),
)


def cost(found: Mapping[str, Any]) -> str:
    """Render the added cost of each form."""

    def lines() -> Iterator[str]:
        for form in FORMS:
            part = found[form]
            yield f"\n{TITLES[form]:40}{'added ns':>12}{'ours / it':>12}"
            for name, row in part["rows"].items():
                yield f"  {name:38}{row['ns']:12.0f}{row['ours_over_it']:12.2f}"
            yield f"  {'control: bare':38}{part['bare_ns']:12.0f}  spread {part['spread']:.2f}"

    return "\n".join(lines())


def shared(found: Mapping[str, Any]) -> str:
    """Render calls of closed breakers over Redis."""
    head = f"\n{'closed, shared over Redis':28}" + "".join(f"{name:>14}" for name, _ in SHARED)
    rows = (
        f"  {name:26}" + "".join(f"{format(row[figure], form):>14}" for figure, form in SHARED)
        for name, row in found["rows"].items()
    )
    return "\n".join((head, *rows))


def opening(found: Mapping[str, Any]) -> str:
    """Render the delays of openings in other processes."""
    head = f"\n{'opening known elsewhere, ms':28}{'median':>12}{'most':>12}{'of':>6}"
    rows = (
        f"  {row_name:26}{row['median_ms']:12.1f}{row['max_ms']:12.1f}{row['of']:6d}"
        for row_name, row in found.items()
    )
    return "\n".join((head, *rows))


def half_open(found: Mapping[str, Any]) -> str:
    """Render the fewest and most admitted calls."""
    head = f"\n{'admitted at half-open':28}" + "".join(f"{row_name:>16}" for row_name in RACES)
    rows = (
        f"  {name:26}" + "".join(f"{_range(row.get(row_name)):>16}" for row_name in RACES)
        for name, row in found.items()
    )
    return "\n".join((head, *rows))


def threads(found: Mapping[str, float]) -> str:
    """Render the seconds of concurrent threads."""
    rows = (f"  {name:26}{seconds:12.3f}" for name, seconds in found.items())
    return "\n".join((f"\n{'8 threads x 100 ms, s':28}", *rows))


def _range(seen: Mapping[str, int] | None) -> str:
    if seen is None:
        return "-"
    text = f"{seen['least']}" if seen["least"] == seen["most"] else f"{seen['least']}-{seen['most']}"
    return f"{text} in {seen['of']}"


PARTS: Mapping[str, Callable[[Any], str]] = {
    "cost": cost,
    "shared": shared,
    "opening": opening,
    "half_open": half_open,
    "threads": threads,
}
"""Part of a record -> its text."""
