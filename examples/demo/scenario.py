"""The scenarios of the demonstration: the device, the settings of the throttle, and the load.

The sizes belong together. The device does 170 requests/s; the rates are the defaults, 1000, 500 and 100/s.
At half load no request is rejected. At 0.86 and 0.91 of the capacity the device is busy enough for the first
two rows of the tier table, and still keeps up. At twice the capacity the low class meets its own rate and the
most active caller the user limit. The rest still overloads the device, even more at five times the capacity.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from random import Random

from autoglm_throttle.settings import PREFIX, Settings
from autoglm_throttle.testing import LlmEngineSpec
from autoglm_throttle.testing.simulated import CHARS_PER_TOKEN, BatchSpec, LlmSpec, SimulatedGpuSpec
from autoglm_throttle.testing.simulated_llm import draw_lengths
from autoglm_throttle.traffic.generator.connection_pool import max_connections
from autoglm_throttle.traffic.plan import (
    Arrivals,
    LoadLevel,
    LoadPlan,
    LoadShape,
    PriorityMix,
    make_plan,
    make_replay_plan,
)
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.traffic.trace import load_azure_llm
from autoglm_throttle.types import Policy, Priority

CAPACITY_RPS = 170.0
"""Small enough for a laptop to send five times as much besides serving it.

At 0.86 of it the low class sends less than its nominal 100/s, and more than 70 % of that. So the first row
of the table rejects some requests.
"""

BASE_S = 0.0001
"""Fixed cost of a batch, so small that utilization follows the load: 0.86 is read as 87 %."""

SECONDS = 60.0
USER_LIMIT_RPS = 60
"""The most active caller sends 31 % of all requests: 26/s at half load, 105/s at twice the capacity."""

SPEED = 20.0
"""Speed of a trace at which limits and objective are those of the phases. They scale with it, like the GPU.

Else limits of callers and rates would reject requests, high ones too, before the load does.
"""

SLO_S = 1.0
"""Duration of ten batches."""

LLM_SPEC = LlmEngineSpec(num_gpu_blocks=3000).faster(3.0)
"""An engine with a small cache, so that overload fills it, and fast enough for a minute."""

LLM_CAPACITY_RPS = 24.0
"""Answers/s of the full engine: prompts as in a production chat service, answers of 40 tokens.

Longer answers would be more events/s at five times the capacity than a laptop can send.
"""

LLM_TOKENS = 40
LLM_PROMPTS = 200
"""Different prompts, sent in turn."""

IDENTITY_HEADER = "x-client"
PHASES = (
    ("calm", 0.5, 0.12),
    ("0.86x", 0.86, 0.15),
    ("0.91x", 0.91, 0.15),
    ("2x", 2.0, 0.20),
    ("5x", 5.0, 0.22),
    ("recovery", 0.5, 0.16),
)
"""Name, load as a multiple of the capacity, share of the time."""

OVERLOADED = ("2x", "5x")
"""Phases in which some requests must be rejected."""

OUTAGE = (0.04, 0.14)
"""Start and end of the downstream's outage, as shares of the time.

It ends before the load is high enough for degradation, which would skip the downstream anyway.
"""

OPEN_SHARE = 1.0 / 6.0
"""Share of the time for which its breaker stays open: the usual 10 s of a minute."""

STATE_PATH = "/demo/state"
"""Path of the throttle's state; exempt from every limit."""

PAGE_PATH = "/demo/page"
"""Path of the live page, in front of the throttle."""

CONNECTIONS = min(6_000, max_connections())
"""Each request in flight has one: some hundred under ``tiers``, almost 5000 under ``fixed``."""

PRIORITY_MIX = PriorityMix(clients=8, skew=0.8)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, and its duration and title."""

    load: RequestSource
    speed: float | None
    """Speed of a trace; None: the phases."""
    length_s: float
    title: str
    llm: bool = False
    """Whether the service is the simulated LLM server."""

    @property
    def plan(self) -> LoadPlan:
        """The plan of the load."""
        return self.load.plan


def phases(seconds: float) -> Scenario:
    """Build the scenario of all phases, ``seconds`` long in total.

    Arrivals are even, so that utilization stays between two rows of the table as long as the load does.
    """
    levels = [LoadLevel(CAPACITY_RPS * load, seconds * share, name) for name, load, share in PHASES]
    shape = LoadShape(levels)
    loads = ", ".join(f"{load:g}x" for _, load, _ in PHASES)
    title = f"a GPU with a capacity of {CAPACITY_RPS:g} requests/s, loaded to {loads} of it"
    return Scenario(
        RequestSource(make_plan(shape, Arrivals.UNIFORM, PRIORITY_MIX)), None, shape.duration_s, title
    )


def llm_phases(seconds: float) -> Scenario:
    """Build the scenario of all phases for the simulated LLM server, which streams its answers."""
    levels = [LoadLevel(LLM_CAPACITY_RPS * load, seconds * share, name) for name, load, share in PHASES]
    shape, rng = LoadShape(levels), Random(1)
    made = make_plan(shape, Arrivals.POISSON, PRIORITY_MIX)
    made = replace(made, kinds=array("I", (number % LLM_PROMPTS for number in range(len(made.offsets)))))
    chat = {"max_tokens": LLM_TOKENS, "ignore_eos": True, "stream": True}
    prompts = ("x" * CHARS_PER_TOKEN * draw_lengths(rng).prompt for _ in range(LLM_PROMPTS))
    requests = [
        PlannedRequest(
            target="/v1/chat/completions",
            body=json.dumps(chat | {"messages": [{"role": "user", "content": prompt}]}).encode(),
        )
        for prompt in prompts
    ]
    loads = ", ".join(f"{load:g}x" for _, load, _ in PHASES)
    title = f"an LLM engine with a capacity of {LLM_CAPACITY_RPS:g} answers/s, loaded to {loads} of it"
    return Scenario(RequestSource(made, requests), None, shape.duration_s, title, llm=True)


def traced(path: Path, speed: float, seconds: float | None) -> Scenario:
    """Build the scenario of a trace, with trace and device faster by the same factor.

    That keeps the trace's load in proportion to the device's capacity.
    """
    trace = load_azure_llm(path)
    until_s = trace.duration_s if seconds is None else seconds * speed
    items = list(takewhile(lambda item: item.t_s <= until_s, trace.items))
    made = make_replay_plan((item.t_s / speed for item in items), PRIORITY_MIX)
    bodies = [
        json.dumps({"context_tokens": item.context_tokens, "tokens": max(1, item.generated_tokens)}).encode()
        for item in items
    ]
    numbers = {body: number for number, body in enumerate(dict.fromkeys(bodies))}
    made = replace(made, kinds=array("I", (numbers[body] for body in bodies)))
    load = RequestSource(made, [PlannedRequest(body=body) for body in numbers])
    title = f"{len(items)} requests of {path.name}, {speed:g} times as fast, on a GPU {speed:g} times faster"
    return Scenario(load, speed, made.offsets[-1], title)


def gpu_spec(speed: float | None) -> SimulatedGpuSpec:
    """Return the simulated GPU of a scenario: batches for the phases, tokens for a trace."""
    if speed is not None:
        return SimulatedGpuSpec(work=LlmSpec().faster(speed))
    # 1 % of a request's usual memory: a queue of thousands must show as latency, not as a crash.
    work = BatchSpec(max_batch=16, base_s=BASE_S, capacity_rps=CAPACITY_RPS)
    return SimulatedGpuSpec(work=work, request_bytes=SimulatedGpuSpec().request_bytes // 100)


def scale_of(speed: float | None) -> float:
    """Return the factor of limits, and the divisor of the objective, at the speed of a trace."""
    return 1.0 if speed is None else speed / SPEED


def environment(
    policy: Policy,
    redis_url: str | None = None,
    length_s: float = SECONDS,
    speed: float | None = None,
    *,
    llm: bool = False,
) -> dict[str, str]:
    """Return the settings of the throttle as environment variables; ``speed`` is that of a trace.

    In a demonstration of a minute a breaker stays open for its default time.
    """
    scale = LLM_CAPACITY_RPS / CAPACITY_RPS if llm else scale_of(speed)
    settings = {
        "POLICY": policy.value,
        "SLO_S": f"{SLO_S / scale:g}",
        "USER_LIMIT": f"{max(1, round(USER_LIMIT_RPS * scale))}/second",
        "IDENTITY": f"header:{IDENTITY_HEADER}",
        "KEY_SECRET": "a-secret-of-the-demonstration",
        "PRIORITY_HEADER_TRUST": "any",
        "EXEMPT_PATHS": STATE_PATH,
        "SAMPLE_INTERVAL_S": "0.5",
        "BREAKER_OPEN_S": f"{OPEN_SHARE * length_s:.3g}",
    }
    if scale != 1.0:
        rates_rps = Settings().rates.rates_rps
        settings |= {f"RATE_{one.name}_RPS": f"{rates_rps[one] * scale:g}" for one in Priority}
    if redis_url is not None:
        settings["REDIS_URL"] = redis_url
    return {PREFIX + name: value for name, value in settings.items()}
