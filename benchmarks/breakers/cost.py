"""Seconds of thread CPU time that one guarded call takes, closed or refused, beside the bare call."""

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
from benchmarks.breakers.contestants import (
    CONTESTANTS,
    NAME,
    Broken,
    Contestant,
    Coroutine,
    Function,
    Ours,
)
from benchmarks.breakers.scale import Scale

BARE = "bare"
FORMS = ("coroutine", "function", "block", "refused", "told")
LONG_S = 3600.0
"""So long everything that is open stays open."""

Row = Callable[[], float]


async def succeed() -> int:
    """The dependency, well."""
    return 1


def succeed_now() -> int:
    """The same without a loop."""
    return 1


async def fail() -> int:
    """The dependency, ill."""
    raise Broken


def awaited(fn: Coroutine, calls: int) -> Row:
    """A row of calls that succeed."""

    async def drive() -> float:
        await fn()
        begun = time.thread_time()
        for _ in range(calls):
            await fn()
        return (time.thread_time() - begun) / calls

    return lambda: _fresh(lambda: asyncio.run(drive()))


def called(fn: Function, calls: int) -> Row:
    """The same of a plain function."""

    def drive() -> float:
        fn()
        begun = time.thread_time()
        for _ in range(calls):
            fn()
        return (time.thread_time() - begun) / calls

    return lambda: _fresh(drive)


def refused(kind: type[Contestant], calls: int, *, told: bool) -> Row:
    """A row of calls that are refused, by a caller who then asks for how long, or does not.

    Each time by a new breaker: purgatory raises one and the same exception, whose traceback only grows.
    """

    async def drive() -> float:
        one = kind(LONG_S)
        fn, refusal, left = one.coroutine(fail), one.refusal, one.left if told else None
        await one.trip(fn)
        begun = time.thread_time()
        for _ in range(calls):
            try:
                await fn()
            except refusal as error:
                if left is not None:
                    left(error)
        return (time.thread_time() - begun) / calls

    return lambda: _fresh(lambda: asyncio.run(drive()))


def _fresh(drive: Callable[[], float]) -> float:
    gc.collect()
    return drive()


def _of(kind: type[Contestant], calls: int) -> dict[str, Row]:
    by_name = {
        f"coroutine {kind.name}": awaited(kind(LONG_S).coroutine(succeed), calls),
        f"function {kind.name}": called(kind(LONG_S).function(succeed_now), calls),
    }
    if kind.blocks:
        by_name[f"block {kind.name}"] = awaited(kind(LONG_S).block(succeed), calls)
    by_name[f"refused {kind.name}"] = refused(kind, calls, told=False)
    if kind.left is not Contestant.left:
        by_name[f"told {kind.name}"] = refused(kind, calls, told=True)
    return by_name


def _bare(calls: int) -> dict[str, Row]:
    return {
        f"coroutine {BARE}": awaited(succeed, calls),
        f"function {BARE}": called(succeed_now, calls),
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


def _with_what_was_kept() -> Ours:
    ours = Ours(LONG_S)
    ours.throttle.feature(NAME, fallback=Fallback(stale=True, key=lambda: NAME))
    return ours


VARIANTS: Mapping[str, Callable[[], Ours]] = {
    "slow_call_s": _with_slow_calls,
    "listener": _with_a_listener,
    "fallback": _with_a_fallback,
    "stale": _with_what_was_kept,
}
"""Ours with more to do: rows of closed calls by decorator."""


def rows(scale: Scale) -> dict[str, Row]:
    """``form name`` -> the row."""
    found = _bare(scale.calls)
    for kind in CONTESTANTS:
        found |= _of(kind, scale.calls)
    for name, make in VARIANTS.items():
        found[f"coroutine {name}"] = awaited(make().coroutine(succeed), scale.calls)
    return found


def spread(seconds: Sequence[float]) -> float:
    """How unsteady a control was: its ninth decile over its first."""
    tenths = statistics.quantiles(seconds, n=10, method="inclusive")
    return tenths[-1] / tenths[0]


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Keep the collector off what is there already: a row is to be measured after its own garbage alone."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def costs(scale: Scale) -> dict[str, Any]:
    """Form -> what it costs bare, and what each adds to that in ns, ours as a part of it."""
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
    bare, row, ours = (f"{form} {who}" for who in (BARE, name, Ours.name))
    added = (a - b for a, b in zip(seen[row], seen[bare], strict=True))
    return {
        "ns": statistics.median(added) * 1e9,
        "ours_over_it": harness.ratio(seen, ours, row, bare),
    }
