"""The load generator and its peers: cost of a request, and requests per second of one core.

Run: ``python -m benchmarks.generator``, about three minutes. All send the same small POST over 64
connections of loopback to the same server, which does not parse, from one process with one thread. The
peers are closed loops without a pause; ours is open loop with all requests due at once. Per core: answers for
each second of processor time that the generator took, which a busy machine changes least. The paced row sends
5000 requests/s, each at its time; its control is the lag of a loop that wakes as often and sends nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoglm_throttle.traffic.generator.launch import run_on_loop
from autoglm_throttle.traffic.histogram import Histogram
from benchmarks import harness
from benchmarks.generators import peers
from benchmarks.generators.ours import PACED_RPS
from benchmarks.shared.bars import Bar

SECONDS = 4.0
"""Seconds of each row; Locust needs one more to start."""

TICK_S = 0.001
LAG_S = 0.002
LOCUST, AIOHTTP, WRK, HISTOGRAM_US = 5.0, 3.0, 0.5, 0.6
"""Bounds of the ratios and of one record; the first two per core, the third by wall time."""

Figures = dict[str, Any]


@contextlib.contextmanager
def answerer() -> Iterator[int]:
    """Run the server, on a core of its own where possible; yields its port."""
    command = [sys.executable, "-m", "benchmarks.generators.answerer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            with _apart(server.pid):
                yield port
        finally:
            server.kill()


@contextlib.contextmanager
def _apart(pid: int) -> Iterator[None]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        yield
        return
    os.sched_setaffinity(pid, cores[:1])
    os.sched_setaffinity(0, cores[1:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


async def _idle(seconds: float) -> Figures:
    lag = Histogram()
    end_s = time.monotonic() + seconds
    while (due_s := time.monotonic() + TICK_S) < end_s:
        await asyncio.sleep(TICK_S)
        lag.record(time.monotonic() - due_s)
    return {"lag_p99_s": lag.percentile(0.99)}


def idle(_port: int, seconds: float) -> Figures:
    """Measure the lag of a loop that sends nothing."""
    return run_on_loop(_idle(seconds))


def rows(locust: str | None) -> dict[str, peers.Peer]:
    """Return all generators, by the name in the record."""
    return {
        "ours": peers.ours("ceiling"),
        "locust": peers.locust(locust),
        "aiohttp": peers.aiohttp(),
        "wrk": peers.wrk(),
        "paced": peers.ours("paced"),
        "idle": peers.Peer("a loop that sends nothing", idle),
    }


def measure(peers_by_name: Mapping[str, peers.Peer], rounds: int, seconds: float) -> dict[str, list[Figures]]:
    """Measure every installed row once in each round; the order rotates."""
    present = {name: peer.run for name, peer in peers_by_name.items() if peer.run is not None}
    seen: dict[str, list[Figures]] = {name: [] for name in present}
    names = list(present)
    with answerer() as port:
        for number in range(rounds):
            start = number % len(names)
            for name in names[start:] + names[:start]:
                seen[name].append(present[name](port, seconds))
    return seen


def rates(figures: Figures) -> tuple[float, float]:
    """Return responses per second, and per second of processor time."""
    return figures["answers"] / figures["elapsed_s"], figures["answers"] / figures["cpu_s"]


def ratio(seen: Mapping[str, Sequence[Figures]], peer: str, *, per_core: bool) -> float:
    """Return the ratio of ours to a peer: the median over rounds."""
    pairs = zip(seen["ours"], seen[peer], strict=True)
    return statistics.median(rates(mine)[per_core] / rates(theirs)[per_core] for mine, theirs in pairs)


def histogram_us() -> float:
    """Measure the microseconds to record one latency."""
    record_latency, times = functools.partial(Histogram().record, 0.012_345), 20_000
    return min(timeit.repeat(record_latency, number=times, repeat=5)) / times * 1e6


def bars(seen: Mapping[str, Sequence[Figures]], record_us: float) -> list[Bar]:
    """Compute the bars of the measured rows."""
    evaluated = [
        Bar(f"ceiling per core over {title}", ratio(seen, peer, per_core=True), bound, at_most=False)
        for peer, title, bound in (("locust", "Locust", LOCUST), ("aiohttp", "aiohttp", AIOHTTP))
        if peer in seen
    ]
    if "wrk" in seen:
        over_wrk = ratio(seen, "wrk", per_core=False)
        evaluated.append(Bar("ceiling over that of wrk with one thread", over_wrk, WRK, at_most=False))
    share = statistics.median(one["cpu_s"] / one["elapsed_s"] for one in seen["paced"])
    lag_ms, idle_ms = (
        1e3 * statistics.median(one["lag_p99_s"] for one in seen[row]) for row in ("paced", "idle")
    )
    failed = sum(one["failed"] for name in ("ours", "paced") for one in seen[name])
    return [
        *evaluated,
        Bar(f"share of a core at {PACED_RPS}/s", share, 0.25),
        Bar(
            f"lag at {PACED_RPS}/s, 99th percentile, ms", lag_ms, 1e3 * LAG_S, calm=idle_ms <= 1e3 * LAG_S / 2
        ),
        Bar("requests without an answer", failed, 0),
        Bar("us to record a latency", record_us, HISTOGRAM_US),
    ]


def table(peers_by_name: Mapping[str, peers.Peer], seen: Mapping[str, Sequence[Figures]]) -> list[str]:
    """Render the rates; generators that are not installed are named."""
    lines = [
        f"{'one process, one thread':28}{'requests/s':>12}{'per core':>12}{'us each':>10}{'ours over it':>15}"
    ]
    for name in ("ours", "locust", "aiohttp", "wrk"):
        title = peers_by_name[name].title
        if name not in seen:
            lines.append(f"{title:28}  not installed")
            continue
        clock, core = (statistics.median(rates(one)[which] for one in seen[name]) for which in (0, 1))
        over = f"{ratio(seen, name, per_core=True):.2f}x per core"
        lines.append(f"{title:28}{clock:12,.0f}{core:12,.0f}{1e6 / core:10.1f}{over:>19}")
    for name in ("paced", "idle"):
        lag_ms = 1e3 * statistics.median(one["lag_p99_s"] for one in seen[name])
        lines.append(f"{name + ', lag p99':28}{lag_ms:12.2f} ms")
    return lines


def record(
    peers_by_name: Mapping[str, peers.Peer], seen: Mapping[str, Sequence[Figures]], evaluated: Sequence[Bar]
) -> dict[str, Any]:
    """Build the record: medians, ratios, verdicts, and every round."""
    medians = {}
    for name in seen:
        if name != "idle":
            clock, core = zip(*map(rates, seen[name]), strict=True)
            medians[name] = {"rps": statistics.median(clock), "per_core_rps": statistics.median(core)}
    others = [peer for peer in ("locust", "aiohttp", "wrk") if peer in seen]
    return {
        **harness.machine("httptools", "uvloop"),
        "rates": medians,
        "ours_over_it_per_core": {peer: ratio(seen, peer, per_core=True) for peer in others},
        "not_installed": [peer.title for peer in peers_by_name.values() if peer.run is None],
        "bars": [bar.record() for bar in evaluated],
        "all": dict(seen),
    }


def main(arguments_given: Sequence[str] | None = None) -> None:
    """Measure, print and write the record."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all rows (default 5)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each row (default {SECONDS:g})")
    parser.add_argument(
        "--locust", metavar="PYTHON", help="an interpreter that has Locust (default: this one)"
    )
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args(arguments_given)
    peers_by_name = rows(options.locust)
    seen = measure(peers_by_name, options.rounds, options.seconds)
    record_us = histogram_us()
    evaluated = bars(seen, record_us)
    print("\n".join((*table(peers_by_name, seen), *map(str, evaluated))))
    result = record(peers_by_name, seen, evaluated) | {"rounds": options.rounds, "seconds": options.seconds}
    print(harness.line(result))
    if options.write:
        harness.keep("generator", result)


if __name__ == "__main__":
    main()
