"""What is measured: the plants, what stands in front of them, and how much load each of them gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from autoglm_throttle.traffic.plan import Arrivals, LoadLevel, LoadPlan, LoadShape, PriorityMix, make_plan

PATH = "/v1/generate"

CONNECTIONS = 2048
"""More than the throttle lets in and lets wait: with fewer the line would stand at the clients, where no
server sees it. All open before the start: opening them under load was seen to take seconds."""

USERS = 1000
"""Callers who have signed in. On Redis each has a limit that it stays far below, asked for every time."""

UNBOUND = 1_000_000.0
"""Requests/s: a rate that no load here reaches, so that only the controller can refuse."""

BURST_S = 1.0
"""Seconds of its rate that a bucket saves up: the default."""


@dataclass(frozen=True)
class Variant:
    """A plant, and how it is protected."""

    capacity_rps: float
    """What its GPU can do."""
    settings: Mapping[str, Any]
    """Of the throttle."""
    by_hand_rps: int
    """The limit that a peer is given: it cannot find one by itself."""
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
    "slowapi": "slowapi (FastAPI app)",
    "fastapi-limiter": "fastapi-limiter (FastAPI app)",
}
"""What stands in front of the plant. The peers need a FastAPI app, so they have a bare row of their own."""

OURS = ("throttle", "redis")

PEERS = {"slowapi": "slowapi", "fastapi-limiter": "fastapi_limiter"}
"""What belongs to the benchmarks alone, and the module that is there if it is installed."""


@dataclass(frozen=True)
class Case:
    """One server."""

    variant: str
    row: str

    @property
    def key(self) -> str:
        """Its name in records; the control is the plant with headroom, alone."""
        return "control" if self == CONTROL else f"{self.variant}/{self.row}"

    @property
    def title(self) -> str:
        """For people."""
        return f"control: {ROWS['bare']}" if self == CONTROL else ROWS[self.row]


CONTROL = Case("headroom", "bare")

CASES: tuple[Case, ...] = (
    CONTROL,
    *(Case("headroom", row) for row in ("throttle", "redis", "fastapi", "slowapi", "fastapi-limiter")),
    *(Case("pressure", row) for row in ("bare", "throttle", "redis", "slowapi", "fastapi-limiter")),
    *(Case("nominal", row) for row in OURS),
)
"""Each in every round, one control for all of them: it is the same server under the same plan."""

HELD: tuple[Case, ...] = (
    CONTROL,
    *(Case("headroom", row) for row in OURS),
    *(Case("pressure", row) for row in ("bare", *OURS)),
)
"""Those that hold the highest level for long."""


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    rates_rps: tuple[float, ...]
    """The levels, one after another."""
    seconds: float
    """Of each level."""
    last_s: float
    """Of the last one."""
    rounds: int
    cases: tuple[Case, ...] = CASES

    @property
    def names(self) -> tuple[str, ...]:
        """Of the levels."""
        return tuple(f"{rate:g}/s" for rate in self.rates_rps)

    def plan(self, seed: int = 1) -> LoadPlan:
        """The requests of a run; the same for every row."""
        lengths_s = [*[self.seconds] * (len(self.rates_rps) - 1), self.last_s]
        levels = [LoadLevel(rate, length_s) for rate, length_s in zip(self.rates_rps, lengths_s, strict=True)]
        return make_plan(LoadShape(levels), Arrivals.UNIFORM, PriorityMix(clients=USERS), seed)

    def possible(self) -> Scale:
        """The same without the peers that are not installed."""
        gone = {row for row, module in PEERS.items() if find_spec(module) is None}
        return replace(self, cases=tuple(case for case in self.cases if case.row not in gone))

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:g}" for rate in self.rates_rps)
        last = "" if self.last_s == self.seconds else f", the last for {self.last_s:g} s"
        return f"{rates} requests/s for {self.seconds:g} s each{last}"


LEVELS = (100.0, 1000.0, 3000.0, 5000.0)

SHORT = Scale(LEVELS, 3.0, 3.0, 3)
"""Under ten minutes."""

FULL = Scale((*LEVELS, 10_000.0), 20.0, 20.0, 5)
"""About two hours; 10 000/s counts only where the control can do it."""

QUICK = Scale((50.0, 200.0), 0.5, 0.5, 1, (CONTROL, Case("pressure", "throttle")))
"""Shows that everything works, and nothing else."""


def hold(seconds: float, rounds: int) -> Scale:
    """The highest level for so long, after the others."""
    return Scale(LEVELS, SHORT.seconds, seconds, rounds, HELD)


@dataclass(frozen=True)
class Published:
    """The figures that this project began with."""

    mean_ms: float
    error_ratio: float
    triggers: int
    """How often the limiter acted."""


PUBLISHED = {
    "100/s": Published(42, 0.0, 0),
    "3000/s": Published(118, 0.003, 12),
    "5000/s": Published(205, 0.047, 89),
}
"""By level. They do not say which latency, nor whether refusals are errors."""
