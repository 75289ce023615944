"""The vocabulary: what every room says to every other.

Nothing here does I/O, reads a clock or knows HTTP.
Times ending in ``_s`` are monotonic seconds unless their name says ``wall``;
ratios are floats 0..1, percent is said with ``_pct``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal, Protocol, runtime_checkable

Clock = Callable[[], float]
"""Monotonic seconds. ``time.monotonic`` in a service, a ``ManualClock`` in tests."""


class ThrottleError(Exception):
    """The root of every exception this library raises on purpose."""


class ProviderUnavailable(ThrottleError):
    """A GPU provider can read nothing now; the sampler tries again."""


class ProviderMisconfigured(ThrottleError):
    """A GPU provider can never work as configured; the text says what to change."""


class Priority(IntEnum):
    """Three classes of work, the most important first."""

    HIGH = 0
    MID = 1
    LOW = 2

    @property
    def label(self) -> str:
        """The lower-case name, as it stands in settings, logs and metrics."""
        return self._name_.lower()

    @classmethod
    def parse(cls, stated: str) -> Priority:
        """Read a stated priority; one that is stated but unknown is low.

        ``high mid low`` and ``1 2 3`` are known, without regard to case or surrounding blanks.
        The rule "1 is high, 2 is mid, anything else is low" is a founding figure.
        """
        return _STATED.get(stated.strip().lower(), cls.LOW)

    @classmethod
    def knows(cls, stated: str) -> bool:
        """Whether a stated priority is one of the known texts."""
        return stated.strip().lower() in _STATED


_STATED = {
    "high": Priority.HIGH,
    "1": Priority.HIGH,
    "mid": Priority.MID,
    "2": Priority.MID,
    "low": Priority.LOW,
    "3": Priority.LOW,
}


class Reason(StrEnum):
    """Why a request was admitted or refused: a closed set, also the metric label."""

    OK = "ok"
    RATE = "rate"
    USER = "user"
    TOO_LARGE = "too_large"
    GPU = "gpu"
    QUEUE = "queue"
    STORE = "store"
    """The shared store of user limits cannot be asked, and ``REDIS_ON_ERROR=deny``."""


class Outcome(StrEnum):
    """How an admitted request ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    """No evidence about the service: the client went away."""


class Policy(StrEnum):
    """What decides how much may come in."""

    ADAPTIVE = "adaptive"
    """The gate, with the tier table armed only by what the gate itself has seen."""
    TIERS = "tiers"
    """The tier table taken literally, with or without traffic."""
    GATE = "gate"
    """The gate alone: needs no telemetry."""
    FIXED = "fixed"
    """The nominal rates."""


class Signal(StrEnum):
    """What the bands of the tier table are laid on."""

    AUTO = "auto"
    """Pressure where an engine tells its queue, else utilization."""
    UTILIZATION = "utilization"
    PRESSURE = "pressure"
    """100 % times the largest of several ratios of a load to its target."""


class WebSockets(StrEnum):
    """How an open websocket counts."""

    RATE = "rate"
    """Charged once, when it connects."""
    SLOT = "slot"
    """Charged when it connects, and a request in flight as long as it is open."""


class Borrow(StrEnum):
    """Whose tokens a class may take when its own bucket is short."""

    OFF = "off"
    DOWN = "down"
    ANY = "any"


class OnError(StrEnum):
    """Who decides on user limits while their shared store cannot be asked (``REDIS_ON_ERROR``)."""

    LOCAL = "local"
    """Each process, on its fair share of the limits."""
    ALLOW = "allow"
    """Nobody: all are admitted."""
    DENY = "deny"
    """All are refused with 503."""


class Unknown(StrEnum):
    """What to assume once telemetry has been silent for long (``GPU_UNKNOWN``)."""

    OPEN = "open"
    LAST = "last"
    CONSERVATIVE = "conservative"
    CLOSED = "closed"


class Aggregate(StrEnum):
    """How several devices become one utilization."""

    WEIGHTED = "weighted"
    MEAN = "mean"
    MAX = "max"


class Telemetry(StrEnum):
    """How far the newest GPU sample can be believed."""

    STARTING = "starting"
    FRESH = "fresh"
    LATE = "late"
    STALE = "stale"
    BLIND = "blind"
    NONE = "none"
    """There is no source at all: nothing is expected, so nothing is missing."""


class Why(StrEnum):
    """The cause of the Regime in force."""

    CALM = "calm"
    STRIKE = "strike"
    TIER = "tier"
    HELD = "held"
    RELEASED = "released"
    STALE = "stale"
    BLIND = "blind"
    LOST = "lost"
    NO_DEVICE = "no_device"
    POLICY = "policy"


class Demand:
    """What one request asks for.

    Args:
        priority: its class.
        user: whose user window it is charged to; empty means "nobody in particular",
            and all such demands share one window, so that an empty identity never escapes the limit.
        cost: units taken from the priority bucket and, rounded up, from the user window; > 0.
        plan: name of the caller's plan, whose user limit replaces the default one.
        route: name of the route policy that applies, whose user limit replaces both.
        address: a second identity to be limited beside an unverified ``user``; none if empty.
        group: identity of the caller's neighbourhood, charged while the user table has no room.
        slo_s: seconds within which its whole answer is wanted; None: the service's own objective.
        holds_slot: whether it counts as a request in flight and may have to wait for its turn.

    Raises:
        ValueError: ``cost`` or ``slo_s`` is not a finite number above 0.
        TypeError: ``user``, ``address`` or ``group`` is no text, and so could be no key of a limit.
    """

    __slots__ = ("address", "cost", "group", "holds_slot", "plan", "priority", "route", "slo_s", "user")

    def __init__(  # noqa: PLR0913 - one argument for each thing that a limit can depend on
        self,
        priority: Priority = Priority.MID,
        user: str = "",
        cost: float = 1.0,
        *,
        plan: str | None = None,
        route: str | None = None,
        address: str = "",
        group: str = "",
        slo_s: float | None = None,
        holds_slot: bool = True,
    ) -> None:
        if not 0.0 < cost < math.inf:
            raise ValueError(f"cost must be a finite number above 0, not {cost!r}")
        if slo_s is not None and not 0.0 < slo_s < math.inf:
            raise ValueError(f"slo_s must be a finite number above 0, not {slo_s!r}")
        if not (isinstance(user, str) and isinstance(address, str) and isinstance(group, str)):
            raise TypeError(f"user, address and group must be texts, not {user!r}, {address!r}, {group!r}")
        self.priority: Priority = priority
        self.user: str = user
        self.cost: float = cost
        self.plan: str | None = plan
        self.route: str | None = route
        self.address: str = address
        self.group: str = group
        self.slo_s: float | None = slo_s
        self.holds_slot: bool = holds_slot

    def __repr__(self) -> str:
        return f"Demand({self.priority.label}, user={self.user!r}, cost={self.cost:g})"


EXACT_AT_MOST = 1000
"""Units: a limit up to here is kept as an exact log, a larger one as 60 strict sub-buckets."""

SUB_BUCKETS = 60
"""Sub-buckets of a window in the compact form; one partly expired counts whole, so no limit is passed."""


@dataclass(frozen=True, slots=True)
class UserLimit:
    """So many units in any window of so many seconds, for each user."""

    name: str
    """``user-60s``: what headers and refusals call it."""
    limit: int
    """Units, 1..16 777 215 (what the shared store's compact form can count)."""
    window_s: int
    """Whole seconds, at least 1: the notation knows no shorter granularity."""

    @property
    def exact(self) -> bool:
        """Whether it is kept as an exact log; else in the compact form."""
        return self.limit <= EXACT_AT_MOST


@dataclass(slots=True)
class WindowState:
    """One user limit after a decision: what the RateLimit header fields are made of."""

    name: str
    limit: int
    """Units in a window."""
    window_s: int
    remaining: int
    """Units left now, after this request was charged."""
    reset_s: float
    """Seconds until the oldest counted unit leaves the window; 0 if nothing is counted."""


@dataclass(slots=True)
class Decision:
    """The answer to a Demand: numbers and a reason, no HTTP.

    ``retry_after_s`` is exact: refused at every instant before it, admissible at it,
    if nobody else spends and the Regime stays. It is infinite when no wait can help.
    """

    allowed: bool
    reason: Reason
    detail: str = ""
    """The finer reason, such as ``rate:low`` or ``user:user-60s``."""
    policy: str = ""
    """Name of the limit that decided, empty for an admission without a user limit."""
    limit: float = math.inf
    """Units that the deciding limit holds at most."""
    remaining: float = math.inf
    """Units left now; after an admission, with this request charged."""
    retry_after_s: float = 0.0
    reset_after_s: float = 0.0
    """Seconds until the deciding limit gives back the oldest unit it counts."""
    window_s: int = 0
    """Length of the deciding limit's window; 0 where it is no user limit."""
    others: tuple[WindowState, ...] = ()
    """The user limits that were looked at beside the deciding one."""
    would: Decision | None = None
    """The refusal that a dry run has turned into this admission."""

    @property
    def items(self) -> tuple[WindowState, ...]:
        """Every user limit that was looked at; none where a rate or the GPU decided."""
        if not self.window_s:
            return ()
        limit, remaining = int(self.limit), int(self.remaining)
        return (WindowState(self.policy, limit, self.window_s, remaining, self.reset_after_s), *self.others)


class Refused(ThrottleError):
    """Raised where an additional charge is refused in the midst of a request; carries the decision."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail)
        self.decision = decision


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One device at one moment. ``None`` means not known, never 0.

    Field names follow NVML; units are in the names.
    """

    device: str
    """A stable id: ``GPU-...``, ``MIG-...``."""
    index: int
    """The provider's own numbering; the metric label."""
    taken_at_s: float
    """Monotonic time at which the read ended."""
    source: str
    """Name of the provider."""
    host: str = ""
    """Empty for this host."""
    kind: Literal["gpu", "mig"] = "gpu"
    name: str = ""
    health: Literal["ok", "degraded", "lost"] = "ok"
    notes: tuple[str, ...] = ()
    utilization_pct: float | None = None
    """Share of the last sampling period in which any kernel ran: a duty cycle, not load."""
    memory_busy_pct: float | None = None
    """Duty cycle of the memory interface, not its fill."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class GpuView:
    """All known devices as one value."""

    taken_at_s: float
    """When the newest usable row was read."""
    utilization_pct: float | None
    """By the chosen aggregate over usable devices; None if none of them tells."""
    utilization_max_pct: float | None
    memory_ratio: float | None
    """The fullest device: one full card is an out-of-memory error."""
    power_ratio: float | None
    capacity: float
    """Usable share of the known capacity, 0..1. A lost device lowers it and is never read as 0 %."""
    devices: tuple[GpuSample, ...]
    """Every known device, lost ones included."""


@runtime_checkable
class GpuProvider(Protocol):
    """A source of samples. Only the sampler's thread calls it."""

    name: str
    min_interval_s: float

    def read(self) -> Sequence[GpuSample]:
        """Read all devices now; blocking; opens lazily.

        Raises:
            ProviderUnavailable: nothing usable now; the sampler tries again.
            ProviderMisconfigured: trying again cannot help.
        """
        ...

    def close(self) -> None:
        """Let go of the driver. Called on the sampler's thread; idempotent."""
        ...

    def forget(self) -> None:
        """Drop handles after a fork, without calling the driver."""
        ...
