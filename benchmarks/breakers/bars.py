"""Bars of a run: figures and their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.breakers.candidates import CircuitBreaker, Interlock, Ours
from benchmarks.shared.bars import CALM, Bar

NOTIFIED_MS = 50.0
TOGETHER_S = 0.12
CONTROL_S = 0.11
"""Longest time of the threads without a breaker; above it the machine is too busy."""
PACE_NS = 462.0
"""Nanoseconds that circuitbreaker adds to a closed call on the reference machine of the bounds."""

ADDED_NS = (
    ("coroutine", Ours.name, "decorator", 350.0),
    ("coroutine", "slow_call_s", "decorator with slow calls", 500.0),
    ("coroutine", "listener", "decorator with a listener", 500.0),
    ("block", Ours.name, "async with", 700.0),
    ("told", Ours.name, "refusal, and for how long", 830.0),
)
"""Form, row, title, nanoseconds on that machine."""

OVER = (
    ("coroutine", CircuitBreaker.name, "closed call, decorator", 1.0),
    ("coroutine", Interlock.name, "closed call, decorator", 0.12),
    ("function", CircuitBreaker.name, "closed call of a plain function", 1.0),
    ("refused", CircuitBreaker.name, "refusal", 1.0),
    ("told", CircuitBreaker.name, "refusal, and for how long", 1.0),
)
"""Form, peer, title of the comparison, ratio of ours to it."""


def bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Compute the bars of every part that was measured."""
    for part, make_bars in PARTS.items():
        if part in found:
            yield from make_bars(found[part])


def _cost(found: Mapping[str, Any]) -> Iterator[Bar]:
    for form, peer, quantity, bound in OVER:
        calm = found[form]["spread"] <= CALM
        yield Bar(f"{quantity}, over {peer}'s", found[form]["rows"][peer]["ours_over_it"], bound, calm=calm)
    pace = found["coroutine"]["rows"][CircuitBreaker.name]["ns"] / PACE_NS
    for form, row, quantity, bound in ADDED_NS:
        calm = max(found[form]["spread"], found["coroutine"]["spread"]) <= CALM
        text = f"{quantity}, ns where {CircuitBreaker.name} adds {PACE_NS:.0f}"
        yield Bar(text, found[form]["rows"][row]["ns"] / pace, bound, calm=calm)


def _shared(found: Mapping[str, Any]) -> Iterator[Bar]:
    ours = found["rows"][Ours.name]
    yield Bar("shared and closed: us of a call", ours["us"], 2.0)
    yield Bar("shared and closed: commands of a call", ours["commands"], 0)
    yield Bar("shared and closed: errors", ours["errors"], 0)
    yield Bar("Redis killed: a call over that", ours["lost_over_it"], 1.1, calm=found["spread"] <= CALM)
    yield Bar("Redis killed: errors", ours["lost_errors"], 0)


def _opening(found: Mapping[str, Any]) -> Iterator[Bar]:
    for row_name in ("idle", "busy", "cold"):
        yield Bar(
            f"opening known in another process, {row_name}: most ms", found[row_name]["max_ms"], NOTIFIED_MS
        )
    cold = found["cold"]
    yield Bar("first calls of new processes, refused", cold["refused"] / cold["of"], 1.0, at_most=False)


def _half_open(found: Mapping[str, Any]) -> Iterator[Bar]:
    for row_name, seen in found[Ours.name].items():
        text = f"admitted at half-open in {seen['of']} rounds, {row_name}"
        yield Bar(f"{text}: most", seen["most"], 1)
        yield Bar(f"{text}: fewest", seen["least"], 1, at_most=False)


def _threads(found: Mapping[str, float]) -> Iterator[Bar]:
    calm = found.get("bare", math.inf) <= CONTROL_S
    yield Bar("8 threads x 100 ms through a closed breaker, s", found[Ours.name], TOGETHER_S, calm=calm)


PARTS: Mapping[str, Callable[[Any], Iterator[Bar]]] = {
    "cost": _cost,
    "shared": _shared,
    "opening": _opening,
    "half_open": _half_open,
    "threads": _threads,
}
"""Part of a record -> its bars."""
