"""The simulated service and the work of disconnected clients, in virtual time."""

from __future__ import annotations

import json

import pytest

from autoglm_throttle.testing.simulated import LlmSpec, SimulatedGpu, SimulatedGpuSpec, service
from autoglm_throttle.traffic.inproc import VirtualClock, run_inprocess
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}


def state_after(request: PlannedRequest, *, abort: float) -> dict[str, int | bool]:
    clock = VirtualClock()
    sim = SimulatedGpu(SimulatedGpuSpec(work=LlmSpec()), clock=clock)
    load = RequestSource(
        make_plan(LoadShape.parse("fixed:20:5"), Arrivals.UNIFORM, PriorityMix(), 1), (request,)
    )
    run_inprocess(service(sim), load, clock=clock, abort=abort)
    return sim.state(clock())


REQUESTS = (
    PlannedRequest(body=b'{"tokens": 100}'),
    PlannedRequest(target="/v1/chat/completions", body=json.dumps(CHAT).encode()),
    PlannedRequest(target="/v1/chat/completions", body=json.dumps(CHAT | {"stream": True}).encode()),
)


@pytest.mark.parametrize("request_", REQUESTS, ids=["predict", "chat", "stream"])
def test_work_of_disconnected_clients_continues(request_: PlannedRequest) -> None:
    goes_on = state_after(request_, abort=1.0)
    assert (goes_on["done"], goes_on["failed"], goes_on["resident"]) == (100, 0, 0)


def test_connected_client_is_served_completely() -> None:
    stayed = state_after(REQUESTS[2], abort=0.0)
    assert (stayed["done"], stayed["failed"]) == (100, 0)
