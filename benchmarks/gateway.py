"""The gateway beside a bare reverse proxy of httpx and Starlette: throughput, CPU, and the end of a left stream.

Run: ``python -m benchmarks.gateway``. The upstream and each proxy are uvicorn processes of their own on
loopback; this process is the client, in a closed loop. Both proxies run in each round, in turns.
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
from collections.abc import Iterator

from benchmarks import harness
from benchmarks.shared.bars import Bar

ROWS = ("bare", "gateway")
APPS = {"bare": "benchmarks.gateway_apps:bare", "gateway": "benchmarks.gateway_apps:gateway"}
UPSTREAM = "benchmarks.gateway_apps:upstream"

CONNECTIONS = 32
SECONDS = 3.0
WARM_UP_S = 0.5
STREAMS = 8
"""Streams at the same time, of `EVENTS` events each."""

EVENTS = 1000
STREAM_BYTES = 1 << 20
"""More than a stream has."""

LEFT = 20
"""Streams that their client leaves, in each round."""

BODY = b'{"model":"m","messages":[{"role":"user","content":"a question of usual length"}],"max_tokens":16}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: gateway.test\r\ncontent-type: application/json\r\n"
REQUEST = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET /%b HTTP/1.1\r\nhost: gateway.test\r\n\r\n"

LEAST = 0.9
"""Bar of the throughput over that of the bare proxy."""

LEFT_MS = 100.0


@contextlib.contextmanager
def served(app: str, upstream: int = 0) -> Iterator[int]:
    """Run an app in a process of its own; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ("--log-level", "warning", "--no-access-log", "--port", str(port))
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", app, *options, "--factory"],
        env={**os.environ, "BENCHMARK_UPSTREAM": f"http://127.0.0.1:{upstream}"},
    )
    try:
        deadline = time.monotonic() + 30.0
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{app} did not start")
            time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(10)


async def _head(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"answered {head!r}")
    return head


async def _requests(port: int, until_s: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done = 0
    while time.perf_counter() < until_s:
        writer.write(REQUEST)
        head = await _head(reader)
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        await reader.readexactly(int(length))
        done += 1
    writer.close()
    return done


async def _stream(port: int) -> int:
    """Read one stream; return its events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=STREAM_BYTES)
    writer.write(GET % b"stream")
    await _head(reader)
    body = await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()
    return body.count(b"data: ")


async def requests_rps(port: int) -> float:
    """Measure requests/s in a closed loop."""
    await asyncio.gather(*(_requests(port, time.perf_counter() + WARM_UP_S) for _ in range(CONNECTIONS)))
    start_s = time.perf_counter()
    done = await asyncio.gather(*(_requests(port, start_s + SECONDS) for _ in range(CONNECTIONS)))
    return sum(done) / (time.perf_counter() - start_s)


async def events_rps(port: int) -> float:
    """Measure events/s of streams that run at the same time."""
    await asyncio.gather(*(_stream(port) for _ in range(STREAMS)))
    start_s = time.perf_counter()
    rounds = 0
    events = 0
    while time.perf_counter() - start_s < SECONDS:
        events += sum(await asyncio.gather(*(_stream(port) for _ in range(STREAMS))))
        rounds += 1
    if events != rounds * STREAMS * EVENTS:
        raise RuntimeError(f"{events} events of {rounds * STREAMS * EVENTS}")
    return events / (time.perf_counter() - start_s)


async def left_ms(port: int, upstream: int) -> float:
    """Measure the time from the end of a client to the end of its request at the upstream, the longest one."""
    worst_ms = 0.0
    for _ in range(LEFT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"endless")
        await _head(reader)
        await reader.readuntil(b"data: ")
        start_s = time.monotonic()
        writer.transport.abort()
        reader, writer = await asyncio.open_connection("127.0.0.1", upstream)
        writer.write(GET % b"left")
        await _head(reader)
        end_s = float((await reader.readexactly(20)).decode())
        writer.close()
        worst_ms = max(worst_ms, 1e3 * (end_s - start_s))
    return worst_ms


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=5)
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(served(UPSTREAM))
        ports = {row: stack.enter_context(served(APPS[row], upstream)) for row in ROWS}
        jobs = {}
        for row, port in ports.items():
            jobs[f"{row} requests/s"] = functools.partial(_run, requests_rps, port)
            jobs[f"{row} events/s"] = functools.partial(_run, events_rps, port)
            jobs[f"{row} left ms"] = functools.partial(_run, left_ms, port, upstream)
        seen = harness.interleave(jobs, options.rounds)
    medians = {name: statistics.median(values) for name, values in seen.items()}
    ratios = {
        kind: harness.ratio(seen, f"gateway {kind}", f"bare {kind}") for kind in ("requests/s", "events/s")
    }
    print(f"{'':12}{'requests/s':>12}{'events/s':>12}{'left, ms':>12}")
    for row in ROWS:
        cells = (medians[f"{row} {kind}"] for kind in ("requests/s", "events/s", "left ms"))
        print(f"{row:12}" + "".join(f"{cell:12.1f}" for cell in cells))
    bars = [Bar(f"{kind} over the bare proxy", ratio, LEAST, at_most=False) for kind, ratio in ratios.items()]
    bars.append(Bar("ms until the upstream of a left stream ends, longest", max(seen["gateway left ms"]), LEFT_MS))
    print("\n".join(map(str, bars)))
    result = {
        **harness.machine("httpx", "starlette", "uvicorn"),
        "rounds": options.rounds,
        "connections": CONNECTIONS,
        "streams": STREAMS,
        "events": EVENTS,
        "medians": medians,
        "ratios": ratios,
        "bars": [bar.record() for bar in bars],
        "all": seen,
    }
    print(harness.line(result))
    if options.write:
        harness.keep("gateway", result)


def _run(measure: object, *ports: int) -> float:
    return asyncio.run(measure(*ports))  # type: ignore[operator,no-any-return]


if __name__ == "__main__":
    main()
