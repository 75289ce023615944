"""What the demonstration plays: the card, the settings of the throttle, and the load.

The sizes belong together. The card does 170 requests/s; the rates are the defaults, 1000, 500 and 100/s.
So at half load nobody is refused. Then the card is busy enough for the first two steps of the tier table, and
still keeps up. At twice the capacity the low class meets its own rate and the most eager caller the user
limit, and what is left still overloads the card, at five times the more.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from autoglm_throttle.model import Policy
from autoglm_throttle.settings import PREFIX
from autoglm_throttle.traffic.arrivals import Arrivals, Crowd, Level, Plan, Shape, plan, replay
from autoglm_throttle.traffic.files import most_connections
from autoglm_throttle.traffic.load import Load, Request
from autoglm_throttle.traffic.simulate import BatchSpec, LlmSpec, SimSpec
from autoglm_throttle.traffic.trace import load_azure_llm

CAPACITY_RPS = 170.0
"""Small enough for a laptop to drive five times of it besides serving it. At 0.86 of it the low class sends
less than its nominal 100/s, and more than 70 % of that: the first step of the table is seen to refuse."""

BASE_S = 0.0001
"""Of a batch. So little that the reading of an evenly loaded card follows its load: 0.86 is read as 87 %."""

SECONDS = 60.0
USER_LIMIT = "60/second"
"""The most eager of the callers sends 31 % of all: 26/s at half load, 105/s at twice the capacity."""

SLO_S = 1.0
"""Ten batches."""

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
"""Phases in which some must be refused."""

TROUBLE = (0.04, 0.14)
"""Share of the time at which the downstream begins to fail, and at which it is well again: before there is so
much load that the service would do without it anyway."""

OPEN_SHARE = 1.0 / 6.0
"""Of the time, that its breaker stays open: the usual 10 s of a minute."""

STATE_PATH = "/demo/state"
"""Where the service shows its throttle; exempt from every limit."""

CONNECTIONS = min(6_000, most_connections())
"""Each request inside has one. Under ``tiers`` some hundred are inside, under ``fixed`` almost 5000."""

CROWD = Crowd(clients=8, skew=0.8)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load and what it is played against."""

    load: Load
    speed: float | None
    """Of a trace; None: the phases."""
    length_s: float
    title: str

    @property
    def plan(self) -> Plan:
        """What is sent when."""
        return self.load.plan


def phases(seconds: float) -> Scenario:
    """All phases in so many seconds.

    Arrivals are even: so the card is read between two lines of the table as long as its load lies there.
    """
    levels = [Level(CAPACITY_RPS * load, seconds * share, name) for name, load, share in PHASES]
    shape = Shape(levels)
    loads = ", ".join(f"{load:g}x" for _, load, _ in PHASES)
    title = f"a card that does {CAPACITY_RPS:g} requests/s, loaded to {loads} of that"
    return Scenario(Load(plan(shape, Arrivals.UNIFORM, CROWD)), None, shape.duration_s, title)


def traced(path: Path, speed: float, seconds: float | None) -> Scenario:
    """A trace played so many times as fast, on a card as many times faster.

    That keeps the trace's load in proportion to the card's capacity: a film of the real thing.

    Raises:
        TrafficError: the file or the speed is no good.
    """
    trace = load_azure_llm(path)
    until_s = trace.duration_s if seconds is None else seconds * speed
    items = list(takewhile(lambda item: item.t_s <= until_s, trace.items))
    made = replay((item.t_s for item in items), CROWD, speed=speed)
    bodies = [
        json.dumps({"context_tokens": item.context_tokens, "tokens": max(1, item.generated_tokens)}).encode()
        for item in items
    ]
    numbers = {body: number for number, body in enumerate(dict.fromkeys(bodies))}
    made = replace(made, kinds=array("I", (numbers[body] for body in bodies)))
    load = Load(made, [Request(body=body) for body in numbers])
    title = f"{len(items)} requests of {path.name}, {speed:g} times as fast, on a card {speed:g} times faster"
    return Scenario(load, speed, made.offsets[-1], title)


def card(speed: float | None) -> SimSpec:
    """The simulated GPU of a scenario: batches for the phases, tokens for a trace."""
    if speed is not None:
        return SimSpec(work=LlmSpec().faster(speed))
    # 1 % of a request's usual memory: a waiting line of thousands must show as latency, not as a crash.
    work = BatchSpec(max_batch=16, base_s=BASE_S, capacity_rps=CAPACITY_RPS)
    return SimSpec(work=work, request_bytes=SimSpec().request_bytes // 100)


def environment(policy: Policy, redis_url: str | None = None, length_s: float = SECONDS) -> dict[str, str]:
    """The settings of the throttle, as its user would write them.

    Args:
        policy: what decides how much may come in.
        redis_url: where the user limits are kept; None: in memory.
        length_s: of the demonstration: of one of a minute a breaker is open as long as it is by default.
    """
    settings = {
        "POLICY": policy.value,
        "SLO_S": f"{SLO_S:g}",
        "USER_LIMIT": USER_LIMIT,
        "IDENTITY": f"header:{IDENTITY_HEADER}",
        "KEY_SECRET": "a-secret-of-the-demonstration",
        "PRIORITY_HEADER_TRUST": "any",
        "EXEMPT_PATHS": STATE_PATH,
        "SAMPLE_INTERVAL_S": "0.5",
        "BREAKER_OPEN_S": f"{OPEN_SHARE * length_s:.3g}",
    }
    if redis_url is not None:
        settings["REDIS_URL"] = redis_url
    return {PREFIX + name: value for name, value in settings.items()}
