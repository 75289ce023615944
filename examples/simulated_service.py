"""An inference service without a GPU: a modelled card that batches, behind the throttle.

Run it, and put it under load; the throttle reads the modelled card as it would read a real one:

    pip install ".[traffic]"
    uvicorn examples.simulated_service:app --port 8000
    autoglm-throttle load http://127.0.0.1:8000/v1/generate --shape step:50,100,200:10

``SIM_CAPACITY_RPS`` (100) is what the card can do in full batches of ``SIM_MAX_BATCH`` (16), each of which
costs ``SIM_BASE_S`` (0.010) however small it is. ``SIM_MODE=llm`` lets it serve tokens instead. The throttle
is configured by ``AUTOGLM_THROTTLE_...`` as ever, but for one default: whoever sends ``X-Priority: high`` is
believed, which only a service without strangers may do.
"""

import os
from collections.abc import Mapping

from starlette.types import ASGIApp

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing.simulated import BatchSpec, LlmSpec, SimulatedGpu, SimulatedGpuSpec, service

DEFAULTS = {"AUTOGLM_THROTTLE_PRIORITY_HEADER_TRUST": "any"}
"""A load test states priorities as no client may by default; the environment overrides it."""


def spec(environment: Mapping[str, str]) -> SimulatedGpuSpec:
    """The card that the environment describes."""
    if environment.get("SIM_MODE") == "llm":
        return SimulatedGpuSpec(work=LlmSpec())
    return SimulatedGpuSpec(
        work=BatchSpec(
            max_batch=int(environment.get("SIM_MAX_BATCH", "16")),
            base_s=float(environment.get("SIM_BASE_S", "0.010")),
            capacity_rps=float(environment.get("SIM_CAPACITY_RPS", "100")),
        )
    )


def create_app(environment: Mapping[str, str] = os.environ) -> ASGIApp:
    """The service; its throttle reads the card that the service runs on."""
    sim = SimulatedGpu(spec(environment))
    throttle = Throttle(Settings.from_env(DEFAULTS | dict(environment)), gpu=sim)
    return ThrottleMiddleware(service(sim), throttle=throttle)


app = create_app()
