"""Server CPU per request under uvicorn: the share of the capacity of the bare app, in memory and on Redis.

Run: ``python -m benchmarks.serve``. Each row is a server process of its own, driven at the same rate
over real HTTP on loopback by the load generator; the server reports the CPU time it used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from benchmarks import harness
from benchmarks.shared.bars import Bar
from tests.store.server import RedisServer

APPS = ("fastapi", "asgi")
"""A FastAPI app with a response model, and a minimal raw app."""

ROWS = {
    "bare": "no middleware",
    "ours": "autoglm_throttle",
    "ratelimit": "asgi-ratelimit",
    "limits": "limits-fixed",
    "redis": "autoglm_throttle on Redis",
    "redisfloor": "its question to Redis alone",
    "redislimits": "limits-moving on Redis",
}
RATE_RPS = 3000
SECONDS = 4
CONNECTIONS = 64
REQUEST = PlannedRequest(
    method="GET",
    headers=(
        ("accept", "*/*"),
        ("accept-encoding", "gzip, deflate"),
        ("user-agent", "benchmark"),
    ),
    body=b"",
    priority=False,
)


@contextlib.contextmanager
def served(row: str, redis_url: str) -> Iterator[int]:
    """Run a uvicorn process with one of the apps; yields its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.served:{row}", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--log-level", "warning", "--no-access-log"],
        env={**os.environ, "BENCHMARK_REDIS_URL": redis_url},
    )
    try:
        deadline = time.monotonic() + 20.0
        while True:
            try:
                cpu_s(port)
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server of row {row} did not start") from None
                time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(10)


def cpu_s(port: int) -> float:
    """Read the CPU seconds of the server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/cpu", timeout=5) as answer:
        return float(answer.read())


def micros_each(row: str, redis_url: str) -> float:
    """Measure server CPU per request, in microseconds, in one run."""
    made = make_plan(LoadShape.parse(f"fixed:{RATE_RPS}:{SECONDS}"), Arrivals.UNIFORM, PriorityMix(), 1)
    load = RequestSource(made, (REQUEST,))
    with served(row, redis_url) as port:
        options = ClientOptions(connections=CONNECTIONS)
        before = cpu_s(port)
        result = asyncio.run(OpenLoopSender(load, TargetUrl(port=port), options).run())
        spent = cpu_s(port) - before
    answered = sum(row.admitted for row in result.tallies.values())
    if answered != len(made):
        raise RuntimeError(f"{row}: {answered} of {len(made)} requests were answered")
    return spent / answered * 1e6


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=5)
    names = [f"{app}_{row}" for app in APPS for row in ROWS]
    with RedisServer() as redis:
        jobs = {name: functools.partial(micros_each, name, redis.url) for name in names}
        seen = harness.interleave(jobs, options.rounds)
    medians = {name: statistics.median(values) for name, values in seen.items()}
    kept = {name: harness.ratio(seen, f"{name.partition('_')[0]}_bare", name) for name in names}
    for app in APPS:
        print(f"{app + ', server CPU per request':34}{'us':>8}{'capacity kept':>16}")
        for row, title in ROWS.items():
            print(f"  {title:32}{medians[f'{app}_{row}']:8.1f}{kept[f'{app}_{row}']:16.1%}")
    evaluated = [
        Bar(f"{app} app, capacity kept with limits on Redis", kept[f"{app}_redis"], 0.8, at_most=False)
        for app in APPS
    ]
    print("\n".join(map(str, evaluated)))
    result = {
        **harness.machine("uvicorn", "fastapi", "asgi-ratelimit", "limits", "redis"),
        "rounds": options.rounds,
        "rate_rps": RATE_RPS,
        "seconds": SECONDS,
        "micros": medians,
        "capacity_kept": kept,
        "bars": [bar.record() for bar in evaluated],
        "all": seen,
    }
    print(harness.line(result))
    if options.write:
        harness.keep("serve", result)


if __name__ == "__main__":
    main()
