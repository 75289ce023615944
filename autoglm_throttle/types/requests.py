"""Requests: priorities, demands, decisions, user limits and the advice for admitted ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, Literal, NamedTuple

from autoglm_throttle.types.errors import ThrottleError

PriorityName = Literal["high", "mid", "low"]
"""The labels of `Priority`, accepted wherever a user states one in code."""
LimitedReason = Literal["rate", "user", "concurrency", "too_large"]
"""The reasons of a rejection with 429 or 413: the caller's own limit."""
ShedReason = Literal["gpu", "queue", "breaker", "store"]
"""The reasons of a rejection with 503: the load of the service, an open breaker, an unavailable store."""
DecisionLabel = Literal["admitted", "limited", "shed", "degraded", "exempt"]

Clock = Callable[[], float]
"""Monotonic seconds. ``time.monotonic`` in a service, a ``ManualClock`` in tests."""

STALL_S: Final = 0.005
"""Seconds: a timer that fires later was delayed by the event loop, so a shorter deadline means nothing."""


class Priority(IntEnum):
    """The three priorities, the most important first."""

    HIGH = 0
    MID = 1
    LOW = 2

    @property
    def label(self) -> str:
        """The lower-case name, as in settings, logs and metrics."""
        return self._name_.lower()

    @classmethod
    def parse(cls, stated: str) -> Priority:
        """Read ``high mid low`` or ``1 2 3``, in any case and with blanks around; anything else is low."""
        return _STATED.get(stated.strip().lower(), cls.LOW)

    @classmethod
    def knows(cls, stated: str) -> bool:
        """Whether a stated priority is one of the known texts."""
        return stated.strip().lower() in _STATED


_PRIORITIES = tuple(Priority)
_STATED = dict(zip(["high", "mid", "low", "1", "2", "3"], 2 * list(Priority), strict=True))


class Reason(StrEnum):
    """Reason of a decision on a request: a closed set, also the metric label."""

    # That of its text, in C: the one of `Enum` is a Python function, called for each look-up in a dictionary.
    __hash__ = str.__hash__

    OK = "ok"
    RATE = "rate"
    USER = "user"
    CONCURRENCY = "concurrency"  # too many requests of the user are in progress
    TOO_LARGE = "too_large"
    GPU = "gpu"
    QUEUE = "queue"
    BREAKER = "breaker"  # the breaker around the app itself is open
    STORE = "store"  # the shared store of user limits is unavailable, and REDIS_ON_ERROR=deny


class Outcome(StrEnum):
    """Outcome of an admitted request, or of a guarded call."""

    SUCCESS = "success"
    FAILURE = "failure"
    SLOW = "slow"  # a success that exceeded its time limit
    NEUTRAL = "neutral"
    """No evidence about the service: the client disconnected, or the error was the caller's own."""


class WebSocketMode(StrEnum):
    """How an open websocket counts."""

    RATE = "rate"  # charged once, when it connects
    SLOT = "slot"  # charged when it connects, and in flight as long as it is open


class Fairness(StrEnum):
    """Order of the queued requests of one priority."""

    USER = "user"  # the users in turn, the one served least first
    FIFO = "fifo"  # in order of arrival


class SlotUse(StrEnum):
    """When a request of a route holds a slot of the concurrency limit."""

    REQUEST = "request"  # while the app works; an event stream not while it is idle
    STREAM = "stream"  # the same for a stream of any type; its body is not awaited before it gets the slot
    NONE = "none"  # never: it waits for others only, or costs nothing


class TokenReserve(StrEnum):
    """Output tokens that are reserved for a request that states a maximum."""

    EXPLICIT = "explicit"  # the maximum
    LEARNED = "learned"  # the learned length of answers, if it is less


class TokenOverrun(StrEnum):
    """What happens to a stream that outgrows its reservation while its user has no tokens left."""

    ALLOW = "allow"  # it goes on, and is charged in full
    STOP = "stop"  # it ends as if the answer had reached its maximum length
    ABORT = "abort"  # its connection is closed


class BorrowMode(StrEnum):
    """Other classes that lend tokens when a bucket is short."""

    OFF = "off"
    DOWN = "down"
    ANY = "any"


class StoreFailureMode(StrEnum):
    """How user limits are decided while their shared store is unavailable (``REDIS_ON_ERROR``)."""

    LOCAL = "local"  # by each process, on its fair share of the limits
    ALLOW = "allow"  # all requests are admitted
    DENY = "deny"  # all requests are rejected with 503


EXACT_AT_MOST: Final = 1000
"""Units: a limit up to here uses an exact log, a larger one 60 strict sub-buckets."""
UNITS_AT_MOST: Final = 2**24 - 1
"""Units: the maximum of any limit; the range of three bytes, the size of a counter in a shared store."""
SUB_BUCKETS: Final = 60
"""Sub-buckets of a window in the compact form; a partly expired one counts fully, so no limit is exceeded."""


@dataclass(frozen=True, slots=True)
class UserLimit:
    """A limit of units in any window of the given seconds, for each user."""

    name: str  # user-60s: its name in headers and rejections
    limit: int  # units, 1..`UNITS_AT_MOST`
    window_s: int  # whole seconds, at least 1

    @property
    def exact(self) -> bool:
        """Whether it uses an exact log; else the compact form."""
        return self.limit <= EXACT_AT_MOST

    @property
    def counted_at_most(self) -> int:
        """Units of a user that are ever counted: no more are charged than the limit allows."""
        return self.limit


COUNTED_LIMITS: Final = 256
"""Times a limit of tokens that is counted at most: answers longer than reserved are charged in full."""


@dataclass(frozen=True, slots=True)
class TokenLimit(UserLimit):
    """A limit of tokens in any window of the given seconds, for each user.

    It uses the compact form at any size: a log would have an entry for each token.
    """

    @property
    def exact(self) -> bool:
        """Whether it uses an exact log: never."""
        return False

    @property
    def counted_at_most(self) -> int:
        """Tokens of a user that are ever counted, above the limit."""
        return self.limit * COUNTED_LIMITS


CONCURRENCY: Final = "concurrency"
"""Name of the limit of requests in progress; of an address ``address-concurrency``."""
SLOT_HOLD_S: Final = 300
"""Seconds after which a shared store frees a slot that nobody has released: its process was killed."""


@dataclass(frozen=True, slots=True)
class SlotLimit(UserLimit):
    """A limit of requests of each user in progress at once, of which a store counts each for its window."""


@dataclass(slots=True)
class LimitStatus:
    """One user limit after a decision: the source of the RateLimit header fields."""

    name: str
    limit: int  # units in a window
    window_s: int
    remaining: int  # units left now, after this request was charged
    reset_s: float  # seconds until the oldest counted unit leaves the window; 0 if nothing is counted


WORK_TOKENS: Final = 1000.0
"""Input tokens that count as a request of cost 1 among queued requests."""
OUTPUT_WORK: Final = 2.0
"""Input tokens that count as one of output. [weights of the virtual token counter]"""


class TokenCost(NamedTuple):
    """Tokens of a request and of its answer."""

    input: int
    output: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.input + self.output

    @property
    def work(self) -> float:
        """Work of the service, as the cost of a demand: 1 is that of a request of usual length."""
        return (self.input + OUTPUT_WORK * self.output) / WORK_TOKENS


NO_TOKENS: Final = TokenCost(0, 0)
"""The cost of a request that has not run."""


class Demand:
    """The demand of one request.

    Args:
        priority: its class.
        user: the user limit it is charged to; all unidentified demands, with an empty user, share one.
        cost: units taken from the priority bucket and, rounded up, from the user limit; > 0.
        plan: name of the caller's plan; its user limit replaces the default one.
        route: name of the route policy that applies; its user limit replaces both.
        address: a second identity to be limited beside an unverified ``user``; no limit if empty.
        group: identity of the caller's network, charged while the user table is full.
        slo_s: seconds allowed for its complete answer; None: the service's own objective.
        holds_slot: whether it counts as a request in flight and may have to wait in the queue.
        memory_bytes: device memory that it will need beside the resident part, > 0; None: as learned.
            Only resource quotas read this and the next.
        precision: label that the caller accepts; it may only lower the service's choice.
        work_class: name of what costs alike, for the concurrency limit; empty: the route, if there is one,
            else the one class of the service.
        tokens: tokens that `Throttle.admit` reserves under the token limits of its user.

    Raises:
        ValueError: ``cost`` or ``slo_s`` is not a finite number above 0, ``memory_bytes`` is below 1, or one
            of ``tokens`` is below 0.
        TypeError: ``user``, ``address``, ``group`` or ``precision`` is no text, ``memory_bytes`` no int, or
            ``tokens`` are no two.
    """

    __slots__ = (
        *("_group", "address", "cost", "group_of", "holds_slot", "memory_bytes", "plan", "precision"),
        *("rank", "route", "slo_s", "tokens", "user", "work_class"),
    )

    def __init__(  # noqa: PLR0913 - one argument for each input of a limit
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
        memory_bytes: int | None = None,
        precision: str = "",
        work_class: str = "",
        tokens: TokenCost | None = None,
    ) -> None:
        if not 0.0 < cost < math.inf:
            raise ValueError(f"cost must be a finite number above 0, not {cost!r}")
        if slo_s is not None and not 0.0 < slo_s < math.inf:
            raise ValueError(f"slo_s must be a finite number above 0, not {slo_s!r}")
        if not (isinstance(user, str) and isinstance(address, str) and isinstance(group, str)):
            raise TypeError(f"user, address and group must be texts, not {user!r}, {address!r}, {group!r}")
        if memory_bytes is not None or precision != "":
            _check_resources(memory_bytes, precision)
        if tokens is not None:
            _check_tokens(tokens)
        # The priority as a plain int, which indexes a tuple four times as fast as a member does.
        self.rank: int = int(priority)
        self.user: str = user
        self.cost: float = cost
        self.plan: str | None = plan
        self.route: str | None = route
        self.address: str = address
        self._group = group
        # Computes the identity of the network from ``group``; only a full user table asks for it.
        self.group_of: Callable[[str], str] | None = None
        self.slo_s: float | None = slo_s
        self.holds_slot: bool = holds_slot
        self.memory_bytes: int | None = memory_bytes
        self.precision: str = precision
        self.work_class: str = work_class or route or ""
        self.tokens: TokenCost | None = tokens

    @property
    def priority(self) -> Priority:
        """Its class."""
        return _PRIORITIES[self.rank]

    @property
    def group(self) -> str:
        """Identity of the caller's network."""
        return self._group if self.group_of is None else self.group_of(self._group)

    def __repr__(self) -> str:
        return f"Demand({self.priority.label}, user={self.user!r}, cost={self.cost:g})"


def _check_resources(memory_bytes: int | None, precision: str) -> None:
    if isinstance(memory_bytes, bool) or not isinstance(memory_bytes, int | None):
        raise TypeError(f"memory_bytes must be a whole number of bytes, not {memory_bytes!r}")
    if memory_bytes is not None and memory_bytes < 1:
        raise ValueError(f"memory_bytes must be 1 or more, not {memory_bytes!r}")
    if not isinstance(precision, str):
        raise TypeError(f"precision must be a text, not {precision!r}")


def _check_tokens(tokens: TokenCost) -> None:
    if len(tokens) != 2 or any(isinstance(each, bool) or not isinstance(each, int) for each in tokens):
        raise TypeError(f"tokens must be two whole numbers, such as TokenCost(200, 500), not {tokens!r}")
    if min(tokens) < 0:
        raise ValueError(f"tokens must be 0 or more, not {tokens!r}")


LIMITED = frozenset({Reason.RATE, Reason.USER, Reason.CONCURRENCY, Reason.TOO_LARGE})
"""Rejections by the caller's own limit; all others are caused by our load."""


def decision_label(reason: Reason) -> DecisionLabel:
    """Return ``limited`` for the caller's own limit, ``shed`` for our load, else ``admitted``."""
    if reason is Reason.OK:
        return "admitted"
    return "limited" if reason in LIMITED else "shed"


@dataclass(slots=True)
class Decision:
    """The decision on a Demand: numbers and a reason, no HTTP.

    ``retry_after_s`` is exact: the demand is rejected at every instant before it and admissible at it,
    if no other request takes units and the control state stays. It is infinite when no wait can help.
    """

    allowed: bool
    reason: Reason
    detail: str = ""
    """The finer reason, such as ``rate:low`` or ``user:user-60s``."""
    policy: str = ""
    """Name of the limit that decided, empty for an admission without a user limit."""
    limit: float = math.inf
    """Maximum units of the deciding limit."""
    remaining: float = math.inf
    """Units left now; after an admission, with this request charged."""
    retry_after_s: float = 0.0
    reset_after_s: float = 0.0
    """Seconds until the deciding limit releases the oldest unit it counts."""
    window_s: int = 0
    """Length of the deciding limit's window; 0 if it is no user limit."""
    others: tuple[LimitStatus, ...] = ()
    """The other user limits that were checked."""
    would_reject: Decision | None = None
    """The rejection that a dry run has turned into this admission."""

    @property
    def limits(self) -> tuple[LimitStatus, ...]:
        """All checked user limits; empty where a rate or the GPU decided."""
        if not self.window_s:
            return ()
        # Only a limit without a window may be infinite.
        limit, remaining = int(self.limit), int(self.remaining)
        return (LimitStatus(self.policy, limit, self.window_s, remaining, self.reset_after_s), *self.others)


class Rejected(ThrottleError):
    """Raised by `Throttle.slot`, and for a rejected additional charge inside a handler."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail)
        self.decision = decision


@dataclass(frozen=True, slots=True)
class ResourceAdvice:
    """Advice for the app, a router or the engine, computed at admission; nothing here enforces it."""

    precision: str
    """Label from ``precisions`` of the variant that should serve the request; empty: no label."""
    compute_priority: int
    """0 for high, 5 for mid, 9 for low: lower is earlier, as in vLLM. For SGLang pass 9 minus this."""
    memory_bytes: int | None
    """Bytes left under the cap of the fullest device, this request included, >= 0; None: not known."""
