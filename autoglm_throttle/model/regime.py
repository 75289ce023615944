"""What the gate and the controller say to each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoglm_throttle.model.words import Signal, Telemetry, Why


@dataclass(frozen=True, slots=True)
class Evidence:
    """The gate's word to the controller: whether there is more work than the service finishes."""

    confirmed: bool = False
    """Since the last word the gate has refused somebody, or somebody waits in line now."""
    service_rps: float | None = None
    """Requests that the service finishes per second, at first a lower bound; None: nothing has ended yet."""
    in_flight: int = 0
    limit: float = math.inf
    """Requests that may be in flight, all bounds considered."""
    processes: int = 1
    """Processes that keep the nominal rates together."""


@dataclass(frozen=True, slots=True)
class Work:
    """What our own requests tell about the service: the half of the pressure that no GPU knows."""

    p95_s: float | None = None
    """95th percentile of lately finished requests, waiting included; None if too few have ended."""
    slo_s: float | None = None
    """What it should be; None if the objective is out of the service's reach even without load."""
    in_flight: int = 0
    """Requests admitted and not yet ended."""
    waiting: int = 0
    """Requests that stand in our line."""
    at_limit: bool = False
    """Whether as many are in flight as may be."""
    completed_total: int = 0
    """Requests that ended well; only grows. Failures are no progress: a hang ends in time-outs."""
    chunks_total: int = 0
    """Parts of answers streamed to clients; only grows. For a language model, close to its tokens."""
    host_load: float | None = None
    """Processes that want a core, per core (the load average of a minute); None where it is not told."""
    host_iowait: float | None = None
    """Share of the time in which cores only waited for a disk, 0..1; None where it is not told."""


@dataclass(frozen=True, slots=True)
class Regime:
    """What the controller says: how much of the nominal rates may be refilled now."""

    factor: float
    """0..1, share of the nominal rates that is let in; 0 refuses all new requests."""
    tier: float
    """The table's own factor in force, before lost capacity and staleness."""
    load: float | None
    """0..1, or None when nothing is known or the policy does not look."""
    since_s: float
    """When ``factor`` last changed."""
    why: Why
    telemetry: Telemetry
    until_s: float
    """Valid until this instant, after which the controller must be asked again."""
    reopens_s: float = 0.0
    """While ``factor`` is 0: the instant of the first sample that could raise it."""
    ceilings: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """For high, mid and low: 0..1, multiplies the refill rate of the class."""
    budget_rps: float | None = None
    """Requests per second that all classes may take together while the policy ``adaptive`` cuts or holds."""
    table_factor: float = 1.0
    """What the literal table says of the newest signal, whether or not it is applied."""
    armed: bool = False
    """Whether the table may act: under ``adaptive`` only while the gate has seen requests wait."""
    signal: Signal = Signal.UTILIZATION
    """What the bands were laid on."""
    term: str = "utilization"
    """The term of the signal that decided: ``utilization``, or the largest one of the pressure."""
