"""Bars of a run: figures and their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TUNED = ("moving-raised", "moving-blocking")
"""Pools of the peer; the faster one is compared."""

CALM = 1.5
"""Largest spread of a steady control; with a larger one a missed bar of speed is not counted."""

LAG_MS = 5.0
"""Largest lag of a steady control loop, which decides nothing."""

NOISY = "not judged, noisy machine"


@dataclass(frozen=True)
class Bar:
    """A figure and its bound.

    Args:
        calm: whether the control was steady; otherwise a miss is not counted.
    """

    text: str
    value: float
    bound: float
    at_most: bool = True
    calm: bool = True

    @property
    def met(self) -> bool:
        """Return whether the figure keeps the bound; NaN never does."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    @property
    def verdict(self) -> str:
        """Return the verdict as text."""
        return "met" if self.met else ("MISSED" if self.calm else NOISY)

    def record(self) -> dict[str, Any]:
        """Convert the bar for the JSON record."""
        bound = f"{'<=' if self.at_most else '>='} {self.bound:g}"
        value = None if math.isnan(self.value) else self.value
        return {"text": self.text, "value": value, "bound": bound, "verdict": self.verdict}

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{self.text:68}{self.value:10.3g}  {sign} {self.bound:<9.3g}{self.verdict}"


def bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Compute the bars of every part that was measured."""
    for part, make_bars in PARTS.items():
        if part in found:
            yield from make_bars(found[part])


def _decisions(found: Mapping[str, Any]) -> Iterator[Bar]:
    for depth, bound in (("64", 3.0), ("512", 4.0)):
        rows, calm = found[depth]["rows"], found[depth]["control"]["spread"] <= CALM
        for figure, row in (("ours_over_it", "store"), ("whole_over_it", "throttle")):
            if row not in rows:
                continue
            least = min(rows[name][figure] for name in TUNED)
            text = f"decisions/s at {depth}, {row} over limits' moving window"
            yield Bar(text, least, bound, at_most=False, calm=calm)
            yield Bar(f"errors at {depth}, {row}", sum(rows[row]["errors"].values()), 0)
            yield Bar(f"connections at {depth}, {row}", rows[row]["connections"], 4)
            server = rows[row]["server_us"] / min(rows[name]["server_us"] for name in TUNED)
            text = f"Redis CPU per decision at {depth}, {row} over limits' moving window"
            yield Bar(text, server, 1 / 3, calm=calm)
    rows, calm = found["64"]["rows"], found["64"]["control"]["spread"] <= CALM
    yield Bar("round trips per decision at 64, store", rows["store"]["round_trips"], 0.1)
    for name, title in (("floor", "pipelined"), ("floor-batch", "one-call")):
        over = rows[name]["ours_over_it"]
        yield Bar(f"decisions/s at 64, store over the {title} floor", over, 0.6, at_most=False, calm=calm)


def _open_loop(found: Mapping[str, Any]) -> Iterator[Bar]:
    calm = found["control"]["p99_ms"] <= LAG_MS
    for row in ("store", "throttle"):
        if row in found:
            yield Bar(f"open loop 5,000/s, {row}, p50 ms", found[row]["p50_ms"], 2.0, calm=calm)
            yield Bar(f"open loop 5,000/s, {row}, p99 ms", found[row]["p99_ms"], 10.0, calm=calm)


def _exactness(found: Mapping[str, Any]) -> Iterator[Bar]:
    limit, burst = found["limit"], found["crowd"]
    for where, counts in (("", found["cold"]), (", 4 processes", found["processes"])):
        for row in ("store", "throttle"):
            if row in counts:
                one = counts[row]
                text = f"{burst} at once on a cold key{where}, {row}: off the limit by"
                yield Bar(text, abs(one["admitted"] - limit), 0, calm=not one["unanswered"])
    for row in ("store", "store-compact"):
        yield Bar(f"worst window over the limit, {row}", found["worst_window"][row], 1.0)


def _memory(found: Mapping[str, float]) -> Iterator[Bar]:
    yield Bar("bytes per user at limit 100, exact", found["store"], 900)
    yield Bar("bytes per user at limit 10,000, compact", found["store-compact"], 300)
    yield Bar("bytes per user at limit 1,000,000, compact", found["store-compact-million"], 300)


def _attack(found: Mapping[str, Any]) -> Iterator[Bar]:
    checked = found["with"]["asked_of_refused"]
    yield Bar("90 % from exhausted users: of their decisions Redis is asked for", checked, 0.02)


def _cancelled(found: Mapping[str, Any]) -> Iterator[Bar]:
    for row in ("store", "throttle"):
        if row in found:
            yield Bar(f"25 % cancelled, wrong replies, {row}", found[row]["wrong"], 0)
            yield Bar(f"25 % cancelled, connections opened, {row}", found[row]["opened"], 2)


def _failure(found: Mapping[str, Any]) -> Iterator[Bar]:
    for kind in ("frozen", "killed"):
        one = found[kind]
        calm = one["control"] <= LAG_MS
        yield Bar(f"{kind}: first decision ms", one["first_ms"], 60, calm=calm)
        yield Bar(f"{kind}: slowest after the third, ms", one["after_third_ms"], 1, calm=calm)
        yield Bar(f"{kind}: lag of the loop, ms", one["lag_ms"], 10, calm=calm)
        yield Bar(f"{kind}: recovery s", one["recovery_s"], 1.5)
    over = found["failover"]
    yield Bar(
        "Sentinel's failover: slowest decision ms", over["slowest_ms"], 100, calm=over["control"] <= LAG_MS
    )


PARTS: dict[str, Callable[[Any], Iterator[Bar]]] = {
    "decisions": _decisions,
    "open_loop": _open_loop,
    "exactness": _exactness,
    "memory": _memory,
    "attack": _attack,
    "cancelled": _cancelled,
    "failure": _failure,
}
"""Part of a record -> its bars."""
