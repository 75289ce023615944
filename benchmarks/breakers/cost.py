"""Thread CPU time of one guarded call, closed or rejected, relative to the bare call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from autoglm_throttle import Fallback
from autoglm_throttle.settings import BreakerSettings
from benchmarks import harness
from benchmarks.breakers.candidates import (
    CANDIDATES,
    NAME,
    Broken,
    Candidate,
    Coroutine,
    Function,
    Ours,
)
from benchmarks.breakers.scale import Scale

BARE = "bare"
FORMS = ("coroutine", "function", "block", "refused", "told")
LONG_S = 3600.0
"""Open time of the breakers, longer than a run."""

Row = Callable[[], float]


async def succeed() -> int:
    """Succeed, as a healthy dependency."""
    return 1


def succeed_sync() -> int:
    """Succeed without an event loop."""
    return 1


async def fail() -> int:
    """Fail, as a broken dependency."""
    raise Broken


def awaited(fn: Coroutine, calls: int) -> Row:
    """Build a row of calls that succeed."""

    async def drive() -> float:
        await fn()
        begun = time.thread_time()
        for _ in range(calls):
            await fn()
        return (time.thread_time() - begun) / calls

    return lambda: _fresh(lambda: asyncio.run(drive()))


def called(fn: Function, calls: int) -> Row:
    """Build a row of calls of a plain function."""

    def drive() -> float:
        fn()
        begun = time.thread_time()
        for _ in range(calls):
            fn()
        return (time.thread_time() - begun) / calls

    return lambda: _fresh(drive)


def rejected(kind: type[Candidate], calls: int, *, reads_wait: bool) -> Row:
    """Build a row of rejected calls, with or without reading the remaining open time.

    Each round has a new breaker: purgatory raises the same exception again, whose traceback grows.
    """

    async def drive() -> float:
        one = kind(LONG_S)
        fn, rejection, open_time_left = (
            one.coroutine(fail),
            one.rejection,
            one.open_time_left if reads_wait else None,
        )
        await one.trip(fn)
        begun = time.thread_time()
        for _ in range(calls):
            try:
                await fn()
            except rejection as error:
                if open_time_left is not None:
                    open_time_left(error)
        return (time.thread_time() - begun) / calls

    return lambda: _fresh(lambda: asyncio.run(drive()))


def _fresh(drive: Callable[[], float]) -> float:
    gc.collect()
    return drive()


def _of(kind: type[Candidate], calls: int) -> dict[str, Row]:
    by_name = {
        f"coroutine {kind.name}": awaited(kind(LONG_S).coroutine(succeed), calls),
        f"function {kind.name}": called(kind(LONG_S).function(succeed_sync), calls),
    }
    if kind.blocks:
        by_name[f"block {kind.name}"] = awaited(kind(LONG_S).block(succeed), calls)
    by_name[f"refused {kind.name}"] = rejected(kind, calls, reads_wait=False)
    if kind.open_time_left is not Candidate.open_time_left:
        by_name[f"told {kind.name}"] = rejected(kind, calls, reads_wait=True)
    return by_name


def _bare(calls: int) -> dict[str, Row]:
    return {
        f"coroutine {BARE}": awaited(succeed, calls),
        f"function {BARE}": called(succeed_sync, calls),
        f"block {BARE}": awaited(succeed, calls),
        f"refused {BARE}": awaited(succeed, calls),
        f"told {BARE}": awaited(succeed, calls),
    }


def _with_slow_calls() -> Ours:
    ours = Ours(LONG_S)
    ours.throttle.feature(NAME, breaker=BreakerSettings(slow_call_s=LONG_S))
    return ours


def _with_a_listener() -> Ours:
    ours = Ours(LONG_S)
    ours.throttle.add_listener(lambda _: None)
    return ours


def _with_a_fallback() -> Ours:
    ours = Ours(LONG_S)
    ours.throttle.feature(NAME, fallback=Fallback(static=0))
    return ours


def _with_a_stale_cache() -> Ours:
    ours = Ours(LONG_S)
    ours.throttle.feature(NAME, fallback=Fallback(stale=True, key=lambda: NAME))
    return ours


VARIANTS: Mapping[str, Callable[[], Ours]] = {
    "slow_call_s": _with_slow_calls,
    "listener": _with_a_listener,
    "fallback": _with_a_fallback,
    "stale": _with_a_stale_cache,
}
"""Configurations of our breaker with more work: rows of closed calls by decorator."""


def rows(scale: Scale) -> dict[str, Row]:
    """Build the rows by ``form name``."""
    found = _bare(scale.calls)
    for kind in CANDIDATES:
        found |= _of(kind, scale.calls)
    for name, make in VARIANTS.items():
        found[f"coroutine {name}"] = awaited(make().coroutine(succeed), scale.calls)
    return found


def spread(seconds: Sequence[float]) -> float:
    """Return the spread of a control: its ninth decile over its first."""
    tenths = statistics.quantiles(seconds, n=10, method="inclusive")
    return tenths[-1] / tenths[0]


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Freeze existing objects, so that a row is measured with its own garbage alone."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def costs(scale: Scale) -> dict[str, Any]:
    """Measure each form: the bare cost, the nanoseconds added by each candidate, and the ratio of ours."""
    made = rows(scale)
    with settled():
        seen = harness.interleave(made, scale.rounds)
    found: dict[str, Any] = {}
    for form in FORMS:
        bare = f"{form} {BARE}"
        found[form] = {"bare_ns": statistics.median(seen[bare]) * 1e9, "spread": spread(seen[bare])}
        names = [key.partition(" ")[2] for key in seen if key.startswith(f"{form} ") and key != bare]
        found[form]["rows"] = {name: row_figures(seen, form, name) for name in names}
    return found


def row_figures(seen: Mapping[str, Sequence[float]], form: str, name: str) -> dict[str, float]:
    bare, row, ours = (f"{form} {row_name}" for row_name in (BARE, name, Ours.name))
    added = (a - b for a, b in zip(seen[row], seen[bare], strict=True))
    return {
        "ns": statistics.median(added) * 1e9,
        "ours_over_it": harness.ratio(seen, ours, row, bare),
    }
