"""What a gate is told, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateRules:
    """The settings of a gate.

    The sources of the defaults are closed-loop simulations of 16 overload scenarios, unless said otherwise.
    """

    slo_s: float = 2.0
    """Seconds in which a whole response is wanted, > 0; the alert rule "P95 above 2 s"."""
    latency_budget: float = 0.2
    """Share of the objective that a request may spend inside the service, in (0, 1].
    0.12 to 0.6 all serve 98.9 % or more of the possible; less shortens the tail of the high class."""
    wait_budget: float = 0.25
    """Share of the objective that a request may spend in line, in (0, 1]."""
    inflight_start: int = 64
    """Limit before anything was measured, >= 1; 16 loses up to 0.9 % of the first second of 3000/s."""
    inflight_floor: int = 2
    """Lowest limit that is aimed at, >= 1; 16 alone breaks slow services."""
    inflight_max: int = 0
    """Hard bound of the requests in flight, 0: none."""
    queue_max: int = 1024
    """Tickets in one line, >= 0."""
    period_s: float = 0.5
    """Shortest time between two changes of the limit, > 0."""
    period_completions: int = 8
    """Completions that make a measurement before a quarter of the objective has passed, >= 1."""
    min_share: float = 0.02
    """Share of the service rate that mid and low get together in any overload, 0..0.2; 0: strict priority.
    At ten times the capacity it is taken from the high class, which gets 0.973 of what an oracle gives it,
    and 0.991 without a share (benchmarks.closed_loop)."""
    memory_target: float = 0.92
    """Fill of the fullest device that is aimed at, in (0, 1]."""
    dry_run: bool = False
    """Nobody waits: whoever would is in flight above the room, and counts as the line before the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """A gate at one moment."""

    limit: float
    """Requests that may be in flight."""
    in_flight: int
    waiting: tuple[int, int, int]
    """Tickets in line: high, mid, low."""
    service_rps: float | None
    """Requests finished per second. A lower bound until the limit was reached; None: nothing finished."""
    demand_rps: tuple[float, float, float]
    """Arrivals per second: high, mid, low, whatever became of them."""
    latency_s: float
    """Mean time from slot to end, lately."""
    unloaded_s: float | None
    """The same without load; None: nothing finished."""
    budget_s: float
    """Seconds a request may spend inside the service."""
    memory_cap: float
    """Requests in flight that the memory of the devices allows; infinite: nothing learnt."""
    memory_blind: bool
    """The engine takes its memory in advance, so that its fill tells nothing."""
    slo_unreachable: bool
    """A request takes more than half of the objective even without load."""
    pressure: float
    """Demand as a share of the service rate; until that was measured, in flight as a share of the limit."""
