"""Cost of each step of a decision, from the bucket to the whole middleware; in memory, without a server.

Then that of one part of a stream, bare and through the middleware, without and with limits in tokens.

Times are of the processor, except those of a whole app.

Run: ``python -m benchmarks.decision``. The control is the cheapest limiter there is, aiolimiter's
leaky bucket, which has no keys, no rejection and no header fields.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

from autoglm_throttle import Demand, Outcome, Permit, Priority, Settings, Throttle
from autoglm_throttle.asgi.scope import Receive, Send
from autoglm_throttle.limiting.sliding_window import SlidingWindow
from autoglm_throttle.limiting.token_bucket import PriorityBuckets
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.types import UserLimit
from benchmarks import asgi_rows, harness

CALLS = 20_000
USERS = [f"{number:016x}" for number in range(200)]
LIMIT = UserLimit("user-60s", 100, 60)

PLAIN, EVENTS = b"text/plain", b"text/event-stream"
USERS_ONLY = {"user_limit": "100/minute"}
TOKENS = {"tokens_limit": "1000000/minute"}
CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":" t%d"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
USAGE_CHUNK = CHUNK[:-3] + (
    b',"usage":{"prompt_tokens":100,"total_tokens":2%d,"completion_tokens":1%d,"prompt_tokens_details":null}}\n\n'
)
"""Events of vLLM, without and with its ``continuous_usage_stats``."""


def bucket() -> float:
    """Measure taking a token from a priority bucket."""
    buckets = PriorityBuckets(RateSettings(rate_mid_rps=1e6), 0.0)
    demand = Demand(Priority.MID)
    return timed(lambda number: buckets.take(demand, number * 1e-5))


def window() -> float:
    """Measure hits of an exact user window, 200 users in turn, each to its limit."""
    users = SlidingWindow((LIMIT,), 100_000)
    accounts = [users.peek(user) for user in USERS]
    return timed(lambda number: users.hit(accounts[number % 200], 1, number * 1e-5))


def window_rejecting() -> float:
    """Measure hits of exhausted users."""
    users = SlidingWindow((LIMIT,), 100_000)
    accounts = [users.peek(user) for user in USERS]
    for number in range(CALLS):
        users.hit(accounts[number % 200], 1, 0.0)
    return timed(lambda number: users.hit(accounts[number % 200], 1, number * 1e-5))


def admitted(concurrency_per_user: int = 0) -> float:
    """Measure Throttle.try_admit and the settlement of its permit: bucket, window, permit, counts."""
    throttle = Throttle(
        Settings(
            user_limit="100/minute", rate_mid_rps=1e6, gpu="none", concurrency_per_user=concurrency_per_user
        )
    )
    demands = [Demand(Priority.MID, user) for user in USERS]

    def once(number: int) -> None:
        verdict = throttle.try_admit(demands[number % 200])
        if not isinstance(verdict, Permit):
            raise TypeError("another job was done: a refusal")
        verdict.settle(Outcome.SUCCESS)

    return timed(once)


def leaky_bucket() -> float:
    """Measure acquire of aiolimiter, which never waits here."""
    from aiolimiter import AsyncLimiter

    async def run() -> float:
        limiter = AsyncLimiter(1e9, 1.0)
        begun = time.process_time()
        for _ in range(CALLS):
            await limiter.acquire()
        return (time.process_time() - begun) / CALLS

    return asyncio.run(run())


def part(
    content_type: bytes = PLAIN,
    event: bytes = b"data: part\n\n",
    limits: dict[str, str] | None = None,
    calls: int = CALLS,
) -> float:
    """Measure a part of a response of many parts, with its number in place of ``%d``; bare without limits."""
    parts = [event.replace(b"%d", b"%d" % number) for number in range(calls)]

    async def app(_scope: asgi_rows.Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-type", content_type)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for each in parts:
            await send({"type": "http.response.body", "body": each, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> float:
        target = asgi_rows.ours(app, **limits) if limits else app
        scope = asgi_rows.scopes()[0] | {"method": "POST", "path": "/v1/chat/completions"}
        begun = time.process_time()
        await target(scope, asgi_rows.receive, asgi_rows.Counter())
        return (time.process_time() - begun) / calls

    return asyncio.run(run())


def timed(call: Callable[[int], object]) -> float:
    """Measure the seconds of one call."""
    begun = time.process_time()
    for number in range(CALLS):
        call(number)
    return (time.process_time() - begun) / CALLS


ROWS: dict[str, Callable[[], float]] = {
    "empty call": lambda: timed(lambda _: None),
    "priority bucket": bucket,
    "user window": window,
    "user window refusing": window_rejecting,
    "admit and settle": admitted,
    "aiolimiter acquire": leaky_bucket,
    "bare ASGI app": lambda: asgi_rows.seconds_each(lambda: asgi_rows.bare, rejected=False),
    "app in the middleware": lambda: asgi_rows.seconds_each(asgi_rows.ours, rejected=False),
    "bare part of a stream": part,
    "part in the middleware": lambda: part(PLAIN, limits=USERS_ONLY),
    "bare event": lambda: part(EVENTS, CHUNK),
    "event in the middleware": lambda: part(EVENTS, CHUNK, USERS_ONLY),
    "event, limit in tokens": lambda: part(EVENTS, CHUNK, TOKENS),
    "the same, each with usage": lambda: part(EVENTS, USAGE_CHUNK, TOKENS),
    "middleware refusing": lambda: asgi_rows.seconds_each(asgi_rows.ours, rejected=True),
}


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=9)
    seen = harness.interleave(ROWS, options.rounds)
    micros = {name: statistics.median(values) * 1e6 for name, values in seen.items()}
    control = {name: harness.ratio(seen, name, "aiolimiter acquire") for name in ROWS}
    print(f"{'step':26}{'us':>8}{'/ aiolimiter':>14}")
    for name in ROWS:
        print(f"{name:26}{micros[name]:8.2f}{control[name]:14.2f}")
    result = {
        **harness.machine("aiolimiter", "starlette"),
        "rounds": options.rounds,
        "micros": micros,
        "over_aiolimiter": control,
    }
    print(harness.line(result))
    if options.write:
        harness.keep("decision", result)


if __name__ == "__main__":
    main()
