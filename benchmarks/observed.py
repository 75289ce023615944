"""Cost of observation for requests: tracing without an SDK, and history, alerts, models and scrapes together.

Run: ``python -m benchmarks.observed``, three minutes. Tracing is counted in instructions by callgrind, which
depend on no load: of a request with opentelemetry-api imported and no SDK, less those of one without it. All
other observation runs beside requests. Its CPU time is that of blocks of 15 s at 5,000 requests/s, with and
without it in turn. One core that serves 5,000 requests/s loses the same share of its throughput.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.observe import collector, start_alerts
from autoglm_throttle.observe.series import STEP_S
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.testing import FakeGpu
from benchmarks import harness
from benchmarks.callgrind import NO_VALGRIND, ROOT
from benchmarks.instructions import count
from benchmarks.instructions_driver import TRACED, Clock, bare, drive, scope
from benchmarks.shared.bars import Bar

LOADS = ("full", "refused")
INSTRUCTIONS_PER_US = 6_000
"""Of this package on the machine of the record: 36,700 instructions take 5.7 us."""
TRACED_US = 0.5
RATE_RPS, BLOCK_S, CALLERS = 5_000, 15.0, 4_000
SHARE = 0.01
"""Most of a core that observation may take."""


class Service:
    """A throttle with eight GPUs and two engines in virtual time, and its app."""

    def __init__(self, *, is_observed: bool) -> None:
        self.clock, self.is_observed = Clock(), is_observed
        gpu = FakeGpu(8, engines=2, clock=self.clock.read)
        gpu.utilization_pct, gpu.power_w, gpu.power_limit_w = 80.0, 400.0, 700.0
        settings = Settings(user_limit="100/minute", rate_mid_rps=1e6)
        self.throttle = Throttle(settings, gpu=gpu, sampling="manual", clock=self.clock.read)
        self.app = ThrottleMiddleware(bare, throttle=self.throttle)
        self.observing_s = 0.0
        """CPU time of the steps and scrapes."""
        self._callers = itertools.cycle(range(CALLERS))
        self._registry = CollectorRegistry()
        if is_observed:
            start_alerts(self.throttle)
            self._registry.register(collector(self.throttle))

    def block(self, rate_rps: int, length_s: float) -> float:
        """Send requests for a time; return the CPU time in seconds."""
        gc.collect()
        begun_s = time.process_time()
        for _ in range(round(length_s / STEP_S)):
            for _ in range(round(STEP_S)):
                scopes = map(scope, itertools.islice(self._callers, rate_rps))
                drive(self.app, self.clock, scopes, 1.0 / rate_rps)
                self.throttle.tick()
            self._observe(lambda: history_timer(self.throttle).step())
        self._observe(lambda: generate_latest(self._registry))
        return time.process_time() - begun_s

    def _observe(self, call: Callable[[], object]) -> None:
        if self.is_observed:
            begun_s = time.process_time()
            call()
            self.observing_s += time.process_time() - begun_s


def everything(pairs: int = 10, rate_rps: int = RATE_RPS, length_s: float = BLOCK_S) -> dict[str, Any]:
    """Measure the share of a core that observation takes in blocks of requests, in pairs."""
    services = [Service(is_observed=False), Service(is_observed=True)]
    for service in services:
        service.block(rate_rps, length_s)
        service.observing_s = 0.0
    shares = []
    for number in range(pairs):
        order = services if number % 2 else services[::-1]
        spent_s = {service.is_observed: service.block(rate_rps, length_s) for service in order}
        shares.append((spent_s[True] - spent_s[False]) / length_s)
    own = services[1].observing_s / (pairs * length_s)
    return {"pairs": pairs, "shares": shares, "of_steps_and_scrapes": own}


def tracing() -> dict[str, dict[str, float]]:
    """Count the instructions of a request without the API of OpenTelemetry and with it."""
    return {app: count(ROOT, app, LOADS) for app in ("address", TRACED)}


def bars(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Compute the bars of the parts that were measured."""
    if "tracing" in found:
        without, traced = found["tracing"]["address"], found["tracing"][TRACED]
        for state, counted in without.items():
            added_us = (traced[state] - counted) / INSTRUCTIONS_PER_US
            yield Bar(f"us added by opentelemetry-api without an SDK, {state}", added_us, TRACED_US)
    share = statistics.median(found["everything"]["shares"])
    yield Bar(f"observation at {RATE_RPS} requests/s, share of a core", share, SHARE)
    own = found["everything"]["of_steps_and_scrapes"]
    yield Bar("its steps and scrapes alone, share of a core", own, SHARE)


def main() -> int:
    """Measure, print and keep the record; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if shutil.which("valgrind") is None:
        print(NO_VALGRIND, file=sys.stderr)
    else:
        found["tracing"] = tracing()
    found["everything"] = everything(options.pairs)
    evaluated = list(bars(found))
    print("\n".join(map(str, evaluated)))
    result = {**harness.machine("opentelemetry-api", "prometheus-client"), **found}
    result["bars"] = [bar.record() for bar in evaluated]
    if options.write:
        harness.keep("observed", result)
    return 1 if any(bar.verdict == "MISSED" for bar in evaluated) else 0


if __name__ == "__main__":
    sys.exit(main())
