"""Cost of the live page: CPU time of the server, the longest hold of its event loop, and in a browser
the heap and the first paint.

Run: ``python -m benchmarks.live_page``, twelve minutes. A server without requests is measured in rounds with
and without the page and ten readers of its event stream; the difference is the cost of the page. A browser
then keeps the page open for ten minutes; without one that part is left out.

A hold of the loop is the CPU time of one call of the event loop, of the page or of the server round it.
Beside it stands the longest lateness of a timer of 1 ms, which includes all other work of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks import harness
from benchmarks.shared.bars import Bar
from tests.browser.chromium import Chromium, program

READERS = 10
TICK_S = 0.001
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
VISITS = 10
CPU_BAR, HOLD_BAR_MS, HEAP_BAR_MB, PAINT_BAR_MS = 0.01, 5.0, 5.0, 300.0
"""Share of a core, which is that of the CPU time per request of a server that is fully used."""


class Watch:
    """The longest call of an event loop in CPU time, and the longest lateness of a timer."""

    def __init__(self) -> None:
        self.hold_s = self.late_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Measure from now on."""
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began_s = time.thread_time()
            run(handle)
            self.hold_s = max(self.hold_s, time.thread_time() - began_s)

        asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]
        self._task = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        while True:
            due_s = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late_s = max(self.late_s, time.perf_counter() - due_s)


def app_of(*, with_page: bool) -> ASGIApp:
    """Build a throttle with eight GPUs and two engines, and its page."""
    from autoglm_throttle import Settings, Throttle
    from autoglm_throttle.observe import status_app
    from autoglm_throttle.testing import FakeGpu

    gpu = FakeGpu(8, engines=2)
    gpu.utilization_pct, gpu.power_w, gpu.power_limit_w = 88.0, 400.0, 700.0
    throttle = Throttle(Settings(user_limit="1000/minute"), gpu=gpu)
    throttle.start()
    page = status_app(throttle) if with_page else None
    watch = Watch()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if page is not None and scope["path"] != "/figures":
            await page(scope, receive, send)
            return
        if scope["query_string"] == b"watch":
            watch.start()
        figures = {"cpu_s": time.process_time(), "late_ms": 1000.0 * watch.late_s}
        figures["hold_ms"] = 1000.0 * watch.hold_s
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(figures).encode()})

    return app


@contextmanager
def server(*, with_page: bool) -> Iterator[str]:
    """Serve the page in a process of its own; yields the URL."""
    command = [sys.executable, "-m", "benchmarks.live_page", "--serve", str(int(with_page))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield f"http://127.0.0.1:{child.stdout.readline().strip()}/"
        child.terminate()


def serve(*, with_page: bool) -> None:
    """Serve until the process is terminated; prints the port."""
    config = uvicorn.Config(
        app_of(with_page=with_page),
        port=0,
        log_level="error",
        lifespan="off",
        timeout_graceful_shutdown=1,
        loop="asyncio",  # of which `Watch` can time the calls
    )
    running = uvicorn.Server(config)
    threading.Thread(target=running.run, daemon=True).start()
    while not running.started:
        time.sleep(0.02)
    print(running.servers[0].sockets[0].getsockname()[1], flush=True)
    threading.Event().wait()


def figures(url: str, query: str = "") -> dict[str, float]:
    """Read the figures of the server since the last call."""
    with urllib.request.urlopen(f"{url}figures{query}", timeout=30.0) as answer:
        found: dict[str, float] = json.load(answer)
    return found


def read_stream(url: str) -> None:
    """Read the event stream as a browser does, again after each end, until the server is gone."""
    try:
        while True:
            with urllib.request.urlopen(f"{url}events", timeout=60.0) as stream:
                while stream.readline():
                    pass
            time.sleep(1.0)
    except OSError:
        return


def measured(*, with_page: bool, readers: int, length_s: float, watches: bool) -> dict[str, float]:
    """Return the share of a core that one server uses, or its longest holds."""
    with server(with_page=with_page) as url:
        for _ in range(readers):
            threading.Thread(target=read_stream, args=(url,), daemon=True).start()
        time.sleep(2.0)
        before = figures(url, "?watch" if watches else "")
        began_s = time.perf_counter()
        if watches and with_page:
            for name in ("", "data.json"):
                urllib.request.urlopen(url + name, timeout=30.0).close()
        time.sleep(length_s)
        after = figures(url)
        share = (after["cpu_s"] - before["cpu_s"]) / (time.perf_counter() - began_s)
    return {name: after[name] for name in ("hold_ms", "late_ms")} if watches else {"cpu": share}


ROWS = {"off": (False, 0), "on": (True, 0), "readers": (True, READERS)}
"""Name of a row -> whether there is the page, and the readers of its event stream."""


def rounds(count: int, length_s: float) -> dict[str, list[float]]:
    """Measure each row once in each round: its share of a core, and in another server its holds."""
    found: dict[str, list[float]] = {}
    for watches in (False, True) * count:
        for name, (with_page, readers) in ROWS.items():
            one = measured(with_page=with_page, readers=readers, length_s=length_s, watches=watches)
            for figure, value in one.items():
                found.setdefault(f"{figure} {name}", []).append(value)
    return found


def heap(length_s: float) -> dict[str, Any]:
    """Return the used heap of a browser that shows the page, MB at its start and end, and the first paint."""

    def used_mb(browser: Chromium) -> float:
        browser.call("HeapProfiler.collectGarbage")
        return float(browser.call("Runtime.getHeapUsage")["usedSize"]) / 1e6

    with ExitStack() as opened:
        url = opened.enter_context(server(with_page=True))
        browser = opened.enter_context(Chromium(Path(opened.enter_context(tempfile.TemporaryDirectory()))))
        browser.visit(url)
        time.sleep(10.0)
        start_mb, give_up_s = used_mb(browser), time.monotonic() + length_s
        while time.monotonic() < give_up_s:
            time.sleep(min(5.0, length_s))
            browser.value("0")  # reads the events of the browser
        found: dict[str, Any] = {"start_mb": start_mb, "end_mb": used_mb(browser), "length_s": length_s}
        found["messages"] = len(browser.said)
        paints = [first_paint_ms(browser, url) for _ in range(VISITS)]
        return found | {"first_paint_ms": paints}


def first_paint_ms(browser: Chromium, url: str) -> float:
    """Open the page anew; return the time until its first text was drawn."""
    browser.visit(url)
    while not (paint_ms := float(browser.value(PAINT))):
        time.sleep(0.05)
    return paint_ms


def bars(found: dict[str, Any]) -> Iterator[Bar]:
    """Compute the bars."""
    cpu = {name: statistics.median(found[f"cpu {name}"]) for name in ROWS}
    yield Bar(f"CPU time with {READERS} readers, share of a core", cpu["readers"] - cpu["off"], CPU_BAR)
    yield Bar("CPU time without a reader, share of a core", cpu["on"] - cpu["off"], CPU_BAR)
    for name, text in (("on", "first visit included"), ("readers", f"with {READERS} readers")):
        longest_ms = max(found[f"hold_ms {name}"])
        yield Bar(f"longest call of the loop, {text}, ms", longest_ms, HOLD_BAR_MS)
    if "heap" in found:
        growth = found["heap"]["end_mb"] - found["heap"]["start_mb"]
        yield Bar(f"growth of the heap in {found['heap']['length_s']:g} s, MB", growth, HEAP_BAR_MB)
        paint_ms = max(found["heap"]["first_paint_ms"])
        yield Bar(f"first paint, slowest of {VISITS} visits, ms", paint_ms, PAINT_BAR_MS)
        yield Bar("messages of the console", found["heap"]["messages"], 0.0)


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each row in a round")
    parser.add_argument(
        "--open-s", type=float, default=600.0, help="time for which the browser shows the page"
    )
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(with_page=options.serve == "1")
        return
    found = rounds(options.rounds, options.seconds)
    result: dict[str, Any] = {
        **harness.machine("uvicorn"),
        "readers": READERS,
        "seconds": options.seconds,
        **found,
    }
    if program() is not None:
        result["heap"] = heap(options.open_s)
    evaluated = list(bars(result))
    print("\n".join(map(str, evaluated)))
    result["bars"] = [bar.record() for bar in evaluated]
    if options.write:
        harness.keep("live_page", result)


if __name__ == "__main__":
    main()
