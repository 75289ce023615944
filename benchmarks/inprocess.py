"""Cost of a request in process: the simulated service, alone and behind the throttle, in virtual time.

Run: ``python -m benchmarks.inprocess``. Seconds of CPU of the whole run, startup and shutdown included. The
last row is the floor: an application that sleeps 20 ms and answers.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from functools import partial
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing.simulated import BatchSpec, SimulatedGpu, SimulatedGpuSpec, service
from autoglm_throttle.traffic.inproc import VirtualClock, run_inprocess
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result
from benchmarks import harness
from benchmarks.shared.bars import Bar

SHAPE = "fixed:1000:10"
SPEC = SimulatedGpuSpec(work=BatchSpec(max_batch=64, base_s=0.005, capacity_rps=2000.0))
BOUND_US = 60.0
CONTROL_US = 25.0
"""The floor is about 20 us on an idle machine; above this bound the machine is busy."""


def load() -> RequestSource:
    """Build 1000 requests/s for 10 s of ten callers: half of the capacity."""
    return RequestSource(make_plan(LoadShape.parse(SHAPE), Arrivals.POISSON, PriorityMix(clients=10), 1))


async def sleeper(scope: Any, _receive: Any, send: Any) -> None:
    """Sleep 20 ms and respond."""
    if scope["type"] != "http":
        raise NotImplementedError
    await asyncio.sleep(0.020)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def floor(sent: RequestSource) -> Result:
    """Run the loop and the driver alone."""
    return run_inprocess(sleeper, sent)


def bare(sent: RequestSource) -> Result:
    """Run the simulated service."""
    clock = VirtualClock()
    return run_inprocess(service(SimulatedGpu(SPEC, clock=clock)), sent, clock=clock)


def throttled(sent: RequestSource) -> Result:
    """Run the simulated service behind the throttle, which reads the simulated GPU once a second."""
    clock = VirtualClock()
    sim = SimulatedGpu(SPEC, clock=clock)
    settings = Settings(policy="adaptive", rate_high_rps=1e6, rate_mid_rps=1e6, rate_low_rps=1e6)
    throttle = Throttle(settings, gpu=sim, sampling="manual", clock=clock)

    def watch(_t_s: float) -> None:
        throttle.tick()

    return run_inprocess(ThrottleMiddleware(service(sim), throttle=throttle), sent, clock=clock, watch=watch)


ROWS = {"throttle and service": throttled, "service": bare, "a sleep of 20 ms": floor}


def cost_us(play: Any) -> float:
    """Measure the microseconds of CPU per request."""
    sent = load()
    begun = time.process_time()
    result = play(sent)
    spent = time.process_time() - begun
    ok = result.request_log.results.count(0)
    if ok < 0.99 * len(sent.plan):
        raise RuntimeError(f"another job was done: {ok} of {len(sent.plan)} were served")
    return 1e6 * spent / len(sent.plan)


def main() -> int:
    """Measure, print and write the record."""
    options = harness.arguments("A request in process", rounds=7)
    seen = harness.interleave({name: partial(cost_us, play) for name, play in ROWS.items()}, options.rounds)
    medians = {name: statistics.median(values) for name, values in seen.items()}
    for name, values in seen.items():
        print(f"{name:24}{medians[name]:8.1f} us  ({min(values):.1f} to {max(values):.1f})")
    bar = Bar(
        "us per request of the simulated service with throttle",
        medians["throttle and service"],
        BOUND_US,
        calm=medians["a sleep of 20 ms"] <= CONTROL_US,
    )
    print(bar)
    if options.write:
        rows = {name: round(value, 1) for name, value in medians.items()}
        harness.keep("inprocess", {**harness.machine(), "shape": SHAPE, "us": rows, "bars": [bar.record()]})
    return 1 if bar.verdict == "MISSED" else 0


if __name__ == "__main__":
    sys.exit(main())
