"""Cost of token limits: of each event of a stream, of reserving and settling, and in round trips to Redis.

Run: ``python -m benchmarks.tokens``, about two minutes. The events are those of vLLM. Times are of the
processor, medians of interleaved rounds; instructions are counted by callgrind, if valgrind is installed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

from autoglm_throttle import Demand, Settings, Throttle
from autoglm_throttle.limiting.token_limits import TokenLimits
from autoglm_throttle.types import TokenCost
from benchmarks import asgi_rows, harness
from benchmarks.callgrind import NO_VALGRIND, ROOT, environ, profiles
from benchmarks.decision import CHUNK, EVENTS, TOKENS, USAGE_CHUNK, USERS, USERS_ONLY, admitted, part, timed
from benchmarks.shared.bars import Bar
from tests.store.server import RedisServer

CALLS, FEW = 1000, 100  # Under callgrind
REQUESTS, TASKS = 1280, 64  # To Redis
MICROSECONDS = 10.0
"""Most of reading an event, and of reserving and settling."""

BODY = b'{"model":"m","messages":[{"role":"user","content":"a question"}],"max_tokens":50}'
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":30}}'


def charged(*, tokens: bool) -> Callable[[int], object]:
    """Return a call that charges the user window of 200 users in turn; it also settles ``tokens``."""
    settings = Settings(gpu="none", user_limit="1000000/minute", tokens_limit="16000000/minute")
    parts = Throttle(settings).admission.parts
    users, each = parts.user_limits, parts.token_limits
    if not isinstance(each, TokenLimits):
        raise TypeError("another job was done: the limits are shared")
    demands = [Demand(user=user) for user in USERS]
    reserved, used = TokenCost(100, 200), TokenCost(90, 150)

    def reserve_and_settle(number: int) -> None:
        demand, now = demands[number % 200], number * 1e-5
        if not each.reserve(demand, reserved, now).allowed:
            raise TypeError("another job was done: a rejection")
        each.settle(each.reservation(demand, reserved, now), used, now)

    if tokens:
        return reserve_and_settle
    return lambda number: users.hit(demands[number % 200], number * 1e-5)


PARTS: dict[str, tuple[bytes, dict[str, str] | None]] = {
    "event, bare": (CHUNK, None),
    "event, no limit in tokens": (CHUNK, USERS_ONLY),
    "event, limit in tokens": (CHUNK, TOKENS),
    "event with usage, bare": (USAGE_CHUNK, None),
    "event with usage, limit in tokens": (USAGE_CHUNK, TOKENS),
}
"""Row -> event and limits of a stream; bare without limits."""

TOKENS_ROW = "user window, tokens reserved and settled"

ROWS: dict[str, Callable[[], float]] = {
    **{row: partial(part, EVENTS, *each) for row, each in PARTS.items()},
    "user window": lambda: timed(charged(tokens=False)),
    TOKENS_ROW: lambda: timed(charged(tokens=True)),
    "request": admitted,
    "request, CONCURRENCY_PER_USER": lambda: admitted(concurrency_per_user=1000),
}


def instructions() -> dict[str, float]:
    """Count the instructions of an event, and of a charge, by row."""
    with tempfile.TemporaryDirectory() as folder:
        counts = profiles([__file__, "count"], environ(ROOT), Path(folder))
    measured = counts[1::2]  # between them the preparations
    found = {row: (measured[2 * at + 1] - measured[2 * at]) / CALLS for at, row in enumerate(PARTS)}
    found["user window"], found[TOKENS_ROW] = (each / CALLS for each in measured[-2:])
    return found


def count() -> None:
    """Run each row between marks: a few events and many, since a throttle is made for them; then charges."""
    gc.disable()  # a full collection would be as much as a thousand events
    for event, limits in PARTS.values():
        part(EVENTS, event, limits, FEW)  # imports
        for calls in (FEW, FEW + CALLS):
            os.getppid()
            part(EVENTS, event, limits, calls)
            os.getppid()
    for tokens in (False, True):
        call = charged(tokens=tokens)
        os.getppid()
        for number in range(CALLS):
            call(number)
        os.getppid()


async def round_trips(url: str, prefix: str, tasks: int, **limits: Any) -> tuple[float, int]:
    """Return the calls to Redis for each request, and those that it has waited for, with so many tasks."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await asyncio.sleep(0.001)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    limits |= {"redis_url": url, "redis_prefix": prefix, "user_limit": "1000000/minute"}
    target: Any = asgi_rows.ours(app, **limits)
    scope = asgi_rows.scopes()[0] | {"method": "POST", "path": "/v1/chat/completions"}

    async def client() -> None:
        for _ in range(REQUESTS // tasks):
            await target(dict(scope), receive, asgi_rows.Counter())

    def stats() -> Any:
        store = target.throttle.snapshot().store
        if store is None or sum(store.fallbacks.values()):
            raise TypeError("another job was done: decisions without Redis")
        return store.stats

    target.throttle.start()
    await target(dict(scope), receive, asgi_rows.Counter())
    before = stats()
    await asyncio.gather(*(client() for _ in range(tasks)))
    after = stats()
    target.throttle.stop()
    return (after.calls - before.calls) / REQUESTS, -(-(after.sent - before.sent) // REQUESTS)


def redis() -> dict[str, dict[str, float]]:
    """Return calls and awaited checks for each request, without and with tokens and slots."""
    kinds: dict[str, dict[str, Any]] = {
        "user window": {},
        "and tokens": TOKENS,
        "and tokens, slots": {**TOKENS, "concurrency_per_user": 1000},
    }
    found: dict[str, dict[str, float]] = {}
    with RedisServer() as server:
        for number, (name, limits) in enumerate(kinds.items()):
            found[name] = {}
            for tasks in (1, TASKS):
                calls, awaited = asyncio.run(round_trips(server.url, f"t{number}-{tasks}", tasks, **limits))
                found[name] |= {f"calls, {tasks} tasks": calls, f"awaited, {tasks} tasks": awaited}
    return found


def bars(micros: Mapping[str, float], trips: Mapping[str, Mapping[str, float]]) -> list[Bar]:
    """Compute the bars."""
    event = micros["event, limit in tokens"] - micros["event, bare"]
    usage = micros["event with usage, limit in tokens"] - micros["event with usage, bare"]
    tokens = micros[TOKENS_ROW] - micros["user window"]
    awaited = max(row[f"awaited, {tasks} tasks"] for row in trips.values() for tasks in (1, TASKS))
    return [
        Bar("event: us beside the bare app", event, MICROSECONDS),
        Bar("event with usage: us beside the bare app", usage, MICROSECONDS),
        Bar("reserve and settle: us beside the user window", tokens, MICROSECONDS),
        Bar("round trips that a request waits for", awaited, 1),
    ]


def tokens_part(kept: Mapping[str, Any]) -> str:
    """Render the table of the page."""
    micros, counts, trips = kept["micros"], kept["instructions"], kept["redis"]

    def less(row: str, base: str) -> str:
        time = f"{micros[row] - micros[base]:.1f} µs"
        return f"{time}, {counts[row] - counts[base]:,.0f} instructions" if row in counts else time

    window = "user window"
    many = f"calls, {TASKS} tasks"
    return (
        "| step | cost |\n|---|---|\n"
        f"| an event of a stream, beside the bare app | {less('event, limit in tokens', 'event, bare')} |\n"
        "| the same without a limit in tokens | "
        f"{less('event, no limit in tokens', 'event, bare')} |\n"
        "| an event that reports usage, beside the bare app | "
        f"{less('event with usage, limit in tokens', 'event with usage, bare')} |\n"
        f"| tokens reserved and settled in memory | {less(TOKENS_ROW, window)} |\n"
        "| `CONCURRENCY_PER_USER`, a request in memory | "
        f"{less('request, CONCURRENCY_PER_USER', 'request')} |\n"
        "| round trips to Redis that a request waits for | "
        f"{trips['and tokens, slots'][f'awaited, {TASKS} tasks']:.0f}, as without tokens |\n"
        f"| calls to Redis for each request, {TASKS} at once | {trips['and tokens, slots'][many]:.3f}; "
        f"without tokens {trips[window][many]:.3f} |\n\n"
        f"`benchmarks/tokens.py`, medians of {kept['rounds']} rounds: {harness.line(kept)}.\n"
    )


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=9)
    seen = harness.interleave(ROWS, options.rounds)
    micros = {name: statistics.median(values) * 1e6 for name, values in seen.items()}
    counts = instructions() if which("valgrind") else {}
    trips = redis()
    for name, value in micros.items():
        print(f"{name:44}{value:8.2f} us{counts.get(name, 0):12,.0f}")
    print("\n".join(f"Redis, {name}: {row}" for name, row in trips.items()))
    if not counts:
        print(NO_VALGRIND, file=sys.stderr)
    found = bars(micros, trips)
    print("\n".join(map(str, found)))
    result = {**harness.machine("starlette", "redis"), "rounds": options.rounds, "micros": micros}
    result |= {"instructions": counts, "redis": trips, "bars": [bar.record() for bar in found]}
    print(harness.line(result))
    if options.write:
        harness.keep("tokens", result)


if __name__ == "__main__":
    count() if sys.argv[1:] == ["count"] else main()
