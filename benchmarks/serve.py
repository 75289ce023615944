"""Server CPU per request under uvicorn: the share of the capacity of the bare app, in memory and on Redis.

Run: ``python -m benchmarks.serve``. Each row is a server process of its own, driven at the same rate
over real HTTP on loopback by the load generator; the server reports the CPU time it used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from benchmarks import harness
from benchmarks.overloaded import CPU_PATH
from benchmarks.shared.bars import Bar
from tests.store.server import RedisServer

APPS = ("fastapi", "asgi")
"""A FastAPI app with a response model, and a minimal raw app."""

ROWS = {
    "bare": "no middleware",
    "ours": "autoglm_throttle, by address",
    "identify": "autoglm_throttle, identify=",
    "key": "autoglm_throttle, by key",
    "ratelimit": "asgi-ratelimit",
    "ratelimitfields": "asgi-ratelimit with fields",
    "limits": "limits-fixed",
    "limitsfields": "limits-fixed with fields",
    "refused": "autoglm_throttle, rejections",
    "ratelimitrefused": "asgi-ratelimit, rejections",
    "redis": "autoglm_throttle on Redis",
    "redisidentify": "autoglm_throttle on Redis, identify=",
    "redisfloor": "its question to Redis alone",
    "redislimits": "limits-moving on Redis",
}
REFUSED = ("refused", "ratelimitrefused")
"""Rows whose requests are rejected; they do not reach the app, so one app is enough."""

NAMES = [f"{app}_{row}" for app in APPS for row in ROWS if app == "asgi" or row not in REFUSED]

KEPT = {"asgi_ours": 0.72, "asgi_redis": 0.65, "fastapi_ours": 0.9, "fastapi_redis": 0.8}
"""Least share of the capacity that is kept."""

CALLERS = 1000
"""Callers with a key; all share one address."""

RATE_RPS = 3000
WARM_UP_S, SECONDS = 1, 4
CONNECTIONS = 64
REQUEST = PlannedRequest(
    target="/predict",
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
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{CPU_PATH}", timeout=5) as answer:
        return float(json.load(answer)["cpu_s"])


def micros_each(name: str, redis_url: str) -> float:
    """Measure server CPU per request, in microseconds, in one run."""
    with served(name, redis_url) as port:
        send(name, port, WARM_UP_S)
        before = cpu_s(port)
        answered = send(name, port, SECONDS)
        return (cpu_s(port) - before) / answered * 1e6


def send(name: str, port: int, seconds: int) -> int:
    """Send requests and return their number.

    Raises:
        RuntimeError: some have another result than the row is to have.
    """
    made = make_plan(
        LoadShape.parse(f"fixed:{RATE_RPS}:{seconds}"), Arrivals.UNIFORM, PriorityMix(clients=CALLERS), 1
    )
    target = TargetUrl(port=port, identity_header="x-api-key")
    options = ClientOptions(connections=CONNECTIONS)
    result = asyncio.run(OpenLoopSender(RequestSource(made, (REQUEST,)), target, options).run())
    is_refused = name.partition("_")[2] in REFUSED
    results: Counter[str] = Counter()
    for tally in result.tallies.values():
        results.update({"admitted": tally.admitted, "limited": tally.limited, "shed": tally.shed})
    # The first request of the warm-up is admitted.
    wrong = results["admitted"] > 1 if is_refused else results["limited"]
    if wrong or results["admitted"] + results["limited"] != len(made):
        raise RuntimeError(f"{name}: of {len(made)} requests {dict(results)}")
    return len(made)


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=5)
    with RedisServer() as redis:
        jobs = {name: functools.partial(micros_each, name, redis.url) for name in NAMES}
        seen = harness.interleave(jobs, options.rounds)
    medians = {name: statistics.median(values) for name, values in seen.items()}
    kept = {name: harness.ratio(seen, f"{name.partition('_')[0]}_bare", name) for name in NAMES}
    for app in APPS:
        print(f"{app + ', server CPU per request':38}{'us':>8}{'capacity kept':>16}")
        for row, title in ROWS.items():
            if f"{app}_{row}" in kept:
                print(f"  {title:36}{medians[f'{app}_{row}']:8.1f}{kept[f'{app}_{row}']:16.1%}")
    evaluated = [
        Bar(f"{name}: capacity kept", kept[name], least, at_most=False) for name, least in KEPT.items()
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
