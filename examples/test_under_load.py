"""How a service's own tests see an overload, in virtual time: a minute of it takes a second.

Run them:

    pip install . pytest pytest-asyncio
    pytest examples/test_under_load.py

The second package is what this repository's pytest settings name; the tests themselves do without.
"""

from collections import Counter

import pytest

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.testing.simulated import BatchSpec, SimulatedGpu, SimulatedGpuSpec, service
from autoglm_throttle.traffic.inproc import run_inprocess
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Priority

SETTINGS = Settings(policy="adaptive", user_limit="30/second", priority_header_trust="any", retry_jitter=0.0)
"""What this service runs with; nobody but the test can reach it, so every stated priority is believed."""


def played(shape: str, seed: int = 1) -> Result:
    """The service behind its throttle, before a load; everything goes by one clock that the run moves."""
    clock = ManualClock()
    gpu = SimulatedGpu(SimulatedGpuSpec(work=BatchSpec(capacity_rps=100.0)), clock=clock)
    throttle = Throttle(SETTINGS, gpu=gpu, sampling="manual", clock=clock)

    def every_second(_t_s: float) -> dict[str, float]:
        return {"factor_ratio": throttle.tick().factor}

    app = ThrottleMiddleware(service(gpu), throttle=throttle)
    load = RequestSource(
        make_plan(LoadShape.parse(shape), Arrivals.POISSON, PriorityMix(clients=20), seed),
        (PlannedRequest(),),
    )
    return run_inprocess(app, load, clock=clock, watch=every_second)


@pytest.fixture(scope="module")
def overload() -> Result:
    return played("step:50,200:20")


def shares(result: Result, segment: int, ending: RequestResult) -> dict[Priority, float]:
    """By priority: the share of a segment's requests that ended so."""
    plan = result.load.plan
    planned, found = Counter[int](), Counter[int]()
    for number, priority, ended in zip(
        plan.segments, plan.priorities, result.request_log.results, strict=True
    ):
        planned[priority] += number == segment
        found[priority] += number == segment and ended == ending
    return {priority: found[priority] / planned[priority] for priority in Priority}


def test_at_half_load_nobody_is_refused(overload: Result) -> None:
    assert set(shares(overload, 0, RequestResult.OK).values()) == {1.0}


def test_at_twice_the_capacity_the_important_go_first(overload: Result) -> None:
    served = shares(overload, 1, RequestResult.OK)
    assert served[Priority.HIGH] > 0.99
    assert served[Priority.HIGH] >= served[Priority.MID] > served[Priority.LOW]


def test_nobody_who_is_served_waits_longer_than_two_seconds(overload: Result) -> None:
    sheet = overload.request_log
    served = [index for index, ending in enumerate(sheet.results) if ending == RequestResult.OK]
    assert max(sheet.response_s[index] for index in served) < 2.0


def test_the_same_seed_gives_the_same_answers(overload: Result) -> None:
    again = played("step:50,200:20").request_log
    assert again.results == overload.request_log.results
    assert again.response_s == overload.request_log.response_s
