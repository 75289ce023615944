"""The gateway beside a bare reverse proxy of httpx and Starlette: throughput, CPU, and streams that are left.

Run: ``python -m benchmarks.gateway``. The upstream and each proxy are uvicorn processes of their own on
loopback; this process is the client, in a closed loop. Both proxies run in each round, in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks import harness
from benchmarks.gateway_apps import EVENT, EVENTS
from benchmarks.shared.bars import CALM, Bar

PROXIES = ("bare", "gateway")

CONNECTIONS = 32
SECONDS = 3.0
WARM_UP_S = 0.5
STREAMS = 8
"""Streams at the same time, of `EVENTS` events each."""

LEFT = 20
"""Streams that their client leaves, in each round."""

LEAST = 0.9
"""Bar of the throughput over that of the bare proxy."""

LEFT_MS = 100.0
"""Bar of the time until the upstream sees that a client has left, in milliseconds."""

BODY = b'{"model":"m","messages":[{"role":"user","content":"a question of usual length"}],"max_tokens":16}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: gateway.test\r\ncontent-type: application/json\r\n"
REQUEST = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET /%b HTTP/1.1\r\nhost: gateway.test\r\n\r\n"
STREAM_BYTES = 2 * EVENTS * len(EVENT)


@dataclass(frozen=True)
class Served:
    """An app in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int

    def cpu_s(self) -> float:
        """Read the CPU seconds of the process."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    async def request(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection, send bytes and read the head of the response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=STREAM_BYTES)
        writer.write(data)
        await _head(reader)
        return reader, writer


@contextlib.contextmanager
def served(app: str, upstream: int = 0) -> Iterator[Served]:
    """Run an app of `gateway_apps`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ("--factory", "--log-level", "error", "--no-access-log", "--port", str(port))
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", f"benchmarks.gateway_apps:{app}", *options],
        env={**os.environ, "BENCHMARK_UPSTREAM": f"http://127.0.0.1:{upstream}"},
    )
    try:
        deadline = time.monotonic() + 30.0
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{app} did not start")
            time.sleep(0.05)
        yield Served(process, port)
    finally:
        process.terminate()
        process.wait(10)


async def _head(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"answered {head!r}")
    return head


async def _requests(proxy: Served, until_s: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    done = 0
    while time.perf_counter() < until_s:
        writer.write(REQUEST)
        head = await _head(reader)
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        await reader.readexactly(int(length))
        done += 1
    writer.close()
    return done


async def send_requests(proxy: Served, seconds: float) -> int:
    """Send short requests in a closed loop; return their number."""
    until_s = time.perf_counter() + seconds
    return sum(await asyncio.gather(*(_requests(proxy, until_s) for _ in range(CONNECTIONS))))


async def _streams(proxy: Served, until_s: float) -> int:
    events = 0
    while time.perf_counter() < until_s:
        reader, writer = await proxy.request(GET % b"stream")
        body = await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()
        if body.count(b"data: ") != EVENTS:
            raise RuntimeError(f"{body.count(b'data: ')} events of {EVENTS}")
        events += EVENTS
    return events


async def send_streams(proxy: Served, seconds: float) -> int:
    """Read streams in a closed loop; return the number of their events."""
    until_s = time.perf_counter() + seconds
    return sum(await asyncio.gather(*(_streams(proxy, until_s) for _ in range(STREAMS))))


async def leave_streams(proxy: Served, upstream: Served) -> float:
    """Leave streams one by one; return the longest time until the upstream saw it, in milliseconds."""
    worst_s = 0.0
    for _ in range(LEFT):
        reader, writer = await proxy.request(GET % b"endless")
        await reader.readuntil(b"data: ")
        start_s = time.monotonic()
        writer.transport.abort()
        reader, writer = await upstream.request(GET % b"left")
        worst_s = max(worst_s, float(await reader.readexactly(20)) - start_s)
        writer.close()
    return 1e3 * worst_s


Send = Callable[[Served, float], Coroutine[Any, Any, int]]


def measure(name: str, proxy: Served, upstream: Served, seen: dict[str, list[float]]) -> None:
    """Measure one proxy once."""
    kinds: tuple[tuple[str, Send], ...] = (("request", send_requests), ("event", send_streams))
    for kind, send in kinds:
        asyncio.run(send(proxy, WARM_UP_S))
        start_s, cpu_s = time.perf_counter(), proxy.cpu_s()
        done = asyncio.run(send(proxy, SECONDS))
        seen[f"{name} {kind}s/s"].append(done / (time.perf_counter() - start_s))
        seen[f"{name} us/{kind}"].append(1e6 * (proxy.cpu_s() - cpu_s) / done)
    seen[f"{name} left ms"].append(asyncio.run(leave_streams(proxy, upstream)))


COLUMNS = ("requests/s", "us/request", "events/s", "us/event", "left ms")


def measure_all(rounds: int) -> dict[str, list[float]]:
    """Measure both proxies in each round, in turns."""
    seen: dict[str, list[float]] = {f"{name} {column}": [] for name in PROXIES for column in COLUMNS}
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(served("upstream"))
        proxies = {name: stack.enter_context(served(name, upstream.port)) for name in PROXIES}
        for number in range(rounds):
            for name in PROXIES if number % 2 == 0 else PROXIES[::-1]:
                measure(name, proxies[name], upstream, seen)
    return seen


def bars(seen: Mapping[str, list[float]]) -> list[Bar]:
    """Compare with the bare proxy."""
    found = []
    for column in ("requests/s", "events/s"):
        control = seen[f"bare {column}"]
        ratio = harness.ratio(seen, f"gateway {column}", f"bare {column}")
        calm = max(control) <= CALM * min(control)
        found.append(Bar(f"{column} over the bare proxy", ratio, LEAST, at_most=False, calm=calm))
    left_ms, calm = max(seen["gateway left ms"]), max(seen["bare left ms"]) < LEFT_MS / 4.0
    found.append(Bar("ms until the upstream sees that a client has left", left_ms, LEFT_MS, calm=calm))
    return found


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=5)
    seen = measure_all(options.rounds)
    medians = {name: statistics.median(values) for name, values in seen.items()}
    print(f"{'':10}" + "".join(f"{column:>12}" for column in COLUMNS))
    for name in PROXIES:
        print(f"{name:10}" + "".join(f"{medians[f'{name} {column}']:12.1f}" for column in COLUMNS))
    compared = bars(seen)
    print("\n".join(map(str, compared)))
    result = {
        **harness.machine("httpx", "starlette", "uvicorn"),
        "rounds": options.rounds,
        "connections": CONNECTIONS,
        "streams": STREAMS,
        "events": EVENTS,
        "medians": medians,
        "longest_left_ms": max(seen["gateway left ms"]),
        "bars": [bar.record() for bar in compared],
        "all": seen,
    }
    print(harness.line(result))
    if options.write:
        harness.keep("gateway", result)


if __name__ == "__main__":
    main()
