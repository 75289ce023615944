"""Measured cases: the simulated services, their middleware, and their load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from autoglm_throttle.traffic.plan import Arrivals, LoadLevel, LoadPlan, LoadShape, PriorityMix, make_plan

PATH = "/v1/generate"

CONNECTIONS = 2048
"""More than the throttle admits and queues: with fewer, requests would queue in the clients, unseen by the
server. All are open before the start: opening them under load took seconds."""

USERS = 1000
"""Authenticated callers. On Redis each stays far below its limit, which is checked every time."""

UNBOUND = 1_000_000.0
"""Requests/s above every load here, so that only the controller can reject."""

BURST_S = 1.0
"""Seconds of its rate in a full bucket: the default."""


@dataclass(frozen=True)
class Variant:
    """A simulated service and its protection."""

    capacity_rps: float
    """Capacity of its GPU."""
    settings: Mapping[str, Any]
    """Settings of the throttle."""
    by_hand_rps: int
    """Limit of a peer, which cannot find one by itself."""
    title: str


_RATES = ("rate_high_rps", "rate_mid_rps", "rate_low_rps")

VARIANTS: dict[str, Variant] = {
    "headroom": Variant(
        6000.0,
        {"policy": "adaptive", **dict.fromkeys(_RATES, UNBOUND)},
        int(UNBOUND),
        "the GPU can do 6000/s",
    ),
    "pressure": Variant(
        4000.0,
        {"policy": "adaptive", **dict.fromkeys(_RATES, UNBOUND), "slo_s": 0.8, "wait_budget": 0.2},
        4000,
        "the GPU can do 4000/s, objective 0.8 s",
    ),
    "nominal": Variant(6000.0, {"policy": "fixed"}, 1600, "fixed rates of 1000/500/100 per second"),
}

RATES_RPS = {"high": 1000.0, "mid": 500.0, "low": 100.0}
"""The default rates, which `nominal` enforces."""


ROWS: dict[str, str] = {
    "bare": "the service alone",
    "throttle": "autoglm_throttle, in memory",
    "redis": "autoglm_throttle, users on Redis",
    "fastapi": "FastAPI app alone",
    "fastapi-throttle": "autoglm_throttle (FastAPI app)",
    "slowapi": "slowapi (FastAPI app)",
    "fastapi-limiter": "fastapi-limiter (FastAPI app)",
}
"""Middleware of the rows. The peers need a FastAPI app; ours runs in front of both apps."""

FASTAPI = ("fastapi", "fastapi-throttle", "slowapi", "fastapi-limiter")
"""Rows with the FastAPI app, which have a control of their own."""

RAW_OURS = ("throttle", "redis")
OURS = (*RAW_OURS, "fastapi-throttle")

PEERS = {"slowapi": "slowapi", "fastapi-limiter": "fastapi_limiter"}
"""Optional packages of the benchmarks, and the module that shows their installation."""


@dataclass(frozen=True)
class Case:
    """One server."""

    variant: str
    row: str

    @property
    def key(self) -> str:
        """Return its name in records; the control is the service with headroom, alone."""
        return "control" if self == CONTROL else f"{self.variant}/{self.row}"

    @property
    def control(self) -> str:
        """Return the key of its control: the same app with headroom, alone."""
        return (FASTAPI_CONTROL if self.row in FASTAPI else CONTROL).key

    def needed_rejections(self, level: str) -> float:
        """Return the share of a level above the capacity; 1: the fixed rates decide, priority by priority."""
        if self.variant == "nominal":
            return 1.0
        return max(0.0, 1.0 - VARIANTS[self.variant].capacity_rps / float(level.removesuffix("/s")))

    @property
    def title(self) -> str:
        """Return its title in tables."""
        return f"control: {ROWS[self.row]}" if self in {CONTROL, FASTAPI_CONTROL} else ROWS[self.row]


CONTROL = Case("headroom", "bare")
FASTAPI_CONTROL = Case("headroom", "fastapi")

CASES: tuple[Case, ...] = (
    CONTROL,
    *(Case("headroom", row) for row in (*RAW_OURS, *FASTAPI)),
    *(Case("pressure", row) for row in ("bare", *RAW_OURS, *FASTAPI)),
    *(Case("nominal", row) for row in RAW_OURS),
)
"""Cases of every round, with a control for each app: the same server under the same plan."""

HOLD_CASES: tuple[Case, ...] = (
    CONTROL,
    *(Case("headroom", row) for row in RAW_OURS),
    *(Case("pressure", row) for row in ("bare", *RAW_OURS)),
)
"""Cases that hold the highest level for long."""


@dataclass(frozen=True)
class Scale:
    """Sizes and durations of a run."""

    rates_rps: tuple[float, ...]
    """Rates of the levels, one after another."""
    seconds: float
    """Seconds of each level."""
    last_s: float
    """Seconds of the last level."""
    rounds: int
    cases: tuple[Case, ...] = CASES

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the levels."""
        return tuple(f"{rate:g}/s" for rate in self.rates_rps)

    def plan(self, seed: int = 1) -> LoadPlan:
        """Build the requests of a run; the same for every row."""
        lengths_s = [*[self.seconds] * (len(self.rates_rps) - 1), self.last_s]
        levels = [LoadLevel(rate, length_s) for rate, length_s in zip(self.rates_rps, lengths_s, strict=True)]
        return make_plan(LoadShape(levels), Arrivals.UNIFORM, PriorityMix(clients=USERS), seed)

    def possible(self) -> Scale:
        """Return the scale without the peers that are not installed."""
        gone = {row for row, module in PEERS.items() if find_spec(module) is None}
        return replace(self, cases=tuple(case for case in self.cases if case.row not in gone))

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:g}" for rate in self.rates_rps)
        last = "" if self.last_s == self.seconds else f", the last for {self.last_s:g} s"
        return f"{rates} requests/s for {self.seconds:g} s each{last}"


LEVELS = (100.0, 1000.0, 3000.0, 5000.0)

SHORT = Scale(LEVELS, 3.0, 3.0, 3)
"""About eleven minutes."""

FULL = Scale((*LEVELS, 10_000.0), 20.0, 20.0, 5)
"""About two hours; 10 000/s counts only where the control can do it."""

QUICK = Scale((50.0, 200.0), 0.5, 0.5, 1, (CONTROL, Case("pressure", "throttle")))
"""A functional check without meaningful figures."""


def hold(seconds: float, rounds: int) -> Scale:
    """Build a scale that holds the highest level, after the others."""
    return Scale(LEVELS, SHORT.seconds, seconds, rounds, HOLD_CASES)


@dataclass(frozen=True)
class Published:
    """Published figures of the task."""

    mean_ms: float
    error_ratio: float
    triggers: int
    """Number of activations of the limiter."""


PUBLISHED = {
    "100/s": Published(42, 0.0, 0),
    "3000/s": Published(118, 0.003, 12),
    "5000/s": Published(205, 0.047, 89),
}
"""Published figures by level. They define neither the latency nor whether rejections are errors."""
