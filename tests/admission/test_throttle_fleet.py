"""Throttles in a fleet, on a real server: one rate for all, and GPUs of all hosts."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.settings import Settings
from autoglm_throttle.store import client as client_module
from autoglm_throttle.store import fleet as fleet_module
from autoglm_throttle.testing import FakeGpu
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Demand, Priority, Reason
from tests.asgi.run_app import request
from tests.store.polling import HANG_S, until
from tests.store.server import RedisServer

pytestmark = pytest.mark.server

LOW = Demand(Priority.LOW)


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a deadline of the leased buckets that a server on a busy machine meets."""
    monkeypatch.setattr(fleet_module, "DEADLINE_S", 10.0)
    monkeypatch.setattr(client_module, "TIMEOUT_S", 10.0)


@pytest.fixture
def fleet(redis_url: str, redis_prefix: str) -> Iterator["FleetOf"]:
    made = FleetOf(redis_url, redis_prefix)
    yield made
    made.stop()


class FleetOf:
    """Throttles that represent the processes of a fleet."""

    def __init__(self, url: str, prefix: str) -> None:
        self.common: dict[str, Any] = {
            "redis_url": url,
            "redis_prefix": prefix,
            "fleet": True,
            "policy": "fixed",
        }
        self.throttles: list[Throttle] = []

    def join(self, gpu: Any = None, **settings: Any) -> Throttle:
        values = self.common | {"rate_low_rps": 20, "gpu": "none"} | settings
        throttle = Throttle(Settings(**values), gpu=gpu)
        throttle.start()
        self.throttles.append(throttle)
        return throttle

    def stop(self) -> None:
        for throttle in self.throttles:
            throttle.stop()


async def admitted(throttle: Throttle, times: int) -> int:
    count = 0
    for _ in range(times):
        verdict = await throttle.admit(LOW)
        if isinstance(verdict, Permit):
            verdict.settle()
            count += 1
    return count


async def test_two_processes_together_admit_what_one_may(fleet: FleetOf) -> None:
    throttles = [fleet.join() for _ in range(2)]
    began_s = time.monotonic()
    counts = await asyncio.gather(*(admitted(throttle, 60) for throttle in throttles))
    most = 20 + 20 * (time.monotonic() - began_s) + 1
    assert min(counts) >= 1
    assert 18 <= sum(counts) <= most
    for throttle in throttles:
        rejected = throttle.snapshot().requests[Priority.LOW, "limited", Reason.RATE]
        assert rejected == 60 - counts[throttles.index(throttle)]


async def test_first_request_does_not_wait_for_a_lease(fleet: FleetOf) -> None:
    throttle = Throttle(Settings(**fleet.common, gpu="none"))
    fleet.throttles.append(throttle)
    assert await admitted(throttle, 1) == 1
    assert fleet_of(throttle).up, "it has waited for no deadline"


async def test_what_is_refunded_may_be_spent_again(fleet: FleetOf) -> None:
    throttle = fleet.join(user_limit="1/hour", rate_low_rps=3, burst_s=1.0)
    until(lambda: fleet_of(throttle).calls > 0, HANG_S, "the first answer")
    verdicts = [await throttle.admit(Demand(Priority.LOW, "a" * 16)) for _ in range(8)]
    reasons = {verdict.decision.reason for verdict in verdicts}
    assert reasons == {Reason.OK, Reason.USER}


async def test_middleware_leases_before_it_checks(fleet: FleetOf) -> None:
    throttle = fleet.join(priority_default="low", rate_low_rps=5)
    app = ThrottleMiddleware(PlainTextResponse("hello"), throttle=throttle)
    statuses: list[int] = []
    while 429 not in statuses and len(statuses) < 1000:
        statuses.append((await request(app)).status)
    assert statuses[:5] == [200] * 5
    assert statuses[-1] == 429


async def test_members_are_counted_and_exported(fleet: FleetOf) -> None:
    one = fleet.join(fleet_heartbeat_s=0.5)
    other = fleet.join(fleet_heartbeat_s=0.5)
    until(lambda: fleet_of(one).members == 2, HANG_S, "both members")
    other.stop()
    until(lambda: fleet_of(one).members == 1, HANG_S, "one member")
    view = fleet_of(one)
    assert view.up
    assert view.calls > 1
    assert view.failures == 0


async def test_user_limits_are_divided_by_members_without_workers(fleet: FleetOf) -> None:
    settings = {"user_limit": "9/minute", "fleet_heartbeat_s": 0.5}
    throttles = [fleet.join(**settings) for _ in range(3)]
    reported = fleet.join(**settings, workers=2)
    until(lambda: processes(throttles[0]) == 4, HANG_S, "all members")
    assert processes(reported) == 2


def processes(throttle: Throttle) -> int:
    store = throttle.snapshot().store
    assert store is not None
    return store.processes


async def test_each_goes_by_its_part_while_the_store_is_away(own_server: RedisServer) -> None:
    fleet = FleetOf(own_server.url, "athr")
    try:
        throttle = fleet.join(workers=4, rate_low_rps=8, fleet_heartbeat_s=0.5)
        until(lambda: fleet_of(throttle).calls > 0, HANG_S, "the first answer")
        own_server.kill()
        until(lambda: not fleet_of(throttle).up, HANG_S, "the loss")
        began_s = time.monotonic()
        count = await admitted(throttle, 200)
        assert count <= 8 / 4 * (time.monotonic() - began_s) + 8
    finally:
        fleet.stop()


def gpu_at(utilization_pct: float) -> FakeGpu:
    gpu = FakeGpu()
    gpu.utilization_pct = utilization_pct
    return gpu


async def test_a_busy_gpu_of_another_host_cuts_here(fleet: FleetOf) -> None:
    settings = {"fleet_gpu": True, "policy": "tiers", "sample_interval_s": 0.2, "gpu_aggregate": "max"}
    fleet.join(gpu_at(92.0), fleet_host="busy", **settings)
    here = fleet.join(gpu_at(10.0), fleet_host="idle", **settings)
    until(lambda: here.control_state().factor == 0.4, HANG_S, "the cut")
    assert {device.host for device in here.snapshot().devices} == {"", "busy"}


async def test_gateway_without_gpus_follows_the_gpus_of_its_hosts(fleet: FleetOf) -> None:
    settings = {"fleet_gpu": True, "policy": "tiers", "sample_interval_s": 0.2}
    fleet.join(gpu_at(87.0), fleet_host="host", **settings)
    gateway = fleet.join(fleet_host="gateway", **settings)
    until(lambda: gateway.control_state().factor == 0.7, HANG_S, "the cut")


def test_a_throttle_that_is_forgotten_leaves_no_thread(fleet: FleetOf) -> None:
    throttle = fleet.join()
    gone = weakref.ref(throttle)
    fleet.throttles.clear()
    del throttle
    gc.collect()
    assert gone() is None
    until(lambda: "autoglm-throttle-fleet" not in thread_names(), HANG_S, "the end of the thread")


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def fleet_of(throttle: Throttle) -> Any:
    view = throttle.snapshot().fleet
    assert view is not None
    return view


FORK = """
import os, signal, sys
from autoglm_throttle import Settings, Throttle
from tests.store.polling import until

signal.alarm(120)
url, prefix = sys.argv[1:]
values = {"redis_url": url, "redis_prefix": prefix, "fleet": True, "fleet_heartbeat_s": 0.5}
throttle = Throttle(Settings(policy="fixed", gpu="none", **values))
throttle.start()

def members():
    return throttle.snapshot().fleet.members

# The first call imports modules on the thread: a child forked meanwhile would find their locks held.
until(lambda: throttle.snapshot().fleet.calls > 1, 60, "the end of the first call")
seen, parent_has_seen = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(120)
    assert throttle.snapshot().fleet.calls == 0
    throttle.start()
    until(lambda: members() == 2, 60, "the child sees both")
    os.read(seen, 1)
    throttle.stop()
    os._exit(0)
until(lambda: members() == 2, 60, "the parent sees both")
os.write(parent_has_seen, b"1")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
until(lambda: members() == 1, 60, "the child has left")
throttle.stop()
print("both were members")
"""


@pytest.mark.slow
def test_a_forked_child_is_a_member_of_its_own(redis_url: str, redis_prefix: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, redis_url, redis_prefix],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "both were members\n", done.stderr
