"""Settings of circuit breakers and of degradation: the defaults of guards, and those of one guard."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self, Unpack

from pydantic import ValidationInfo, model_validator

from autoglm_throttle import types as t
from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import FieldType, FieldTypeError, choice, number, whole
from autoglm_throttle.settings.groups.base import DEFAULTS, Group, Override
from autoglm_throttle.settings.problems import ConfigError, Problem, repr_for_user

if TYPE_CHECKING:
    import autoglm_throttle.settings.values as v

LEASE_LEAST_S: Final = 30.0  # default lease of a probe: longer than the common time-outs of clients
LEASE_TIMEOUTS: Final = 3.0  # lease in multiples of the time limit: a retry inside the call, and a margin
_UNLIMITED_S: Final = float(1 << 40)  # open time that stands for no limit: a time must be finite
_TIME: Final = number(0.001, 86_400, "s")
_CALLS: Final = whole(1, 10_000, "calls")
_WINDOW: Final = whole(1, 100_000, "calls")
_RATE: Final = number(0, 1, "share", above=True)


_RULES: Final = ", ".join(t.TripRule)
_TRIP_WORDS: Final = f.listed(
    f.word("|".join(t.TripRule), _RULES, "consecutive,failure_rate", lower=True, reason="not one of them")
)


def _trips(raw: object) -> frozenset[t.TripRule]:
    trips = frozenset(map(t.TripRule, _TRIP_WORDS.parse(raw)))
    if not trips:
        raise FieldTypeError("a breaker that is never to open has the mode disabled or metrics_only")
    return trips


def _ramp(raw: object) -> tuple[float, ...]:
    """Parse rising shares of the calls that are let through; the word ``none`` is the empty list."""
    shares: list[float] = []
    for part in f.list_of(raw):
        try:
            share = float(f.SHARE.parse(part))
        except ValueError as error:
            raise FieldTypeError(f"{repr_for_user(part)}: {str(error) or 'not between 0 and 1'}") from None
        if share == 1:
            raise FieldTypeError("omit the last step: after the ramp all calls are let through")
        if not 0 < share < 1:
            raise FieldTypeError(f"{repr_for_user(part)}: not between 0 and 1")
        if shares and share <= shares[-1]:
            raise FieldTypeError(f"{f.plain(share)} does not rise above {f.plain(shares[-1])}")
        shares.append(share)
    return tuple(shares)


TRIPS: Final = replace(
    _TRIP_WORDS, parse=_trips, text=lambda trips: ",".join(trip for trip in t.TripRule if trip in trips)
)
RAMP: Final = FieldType(
    "a list, separated by commas, of rising shares between 0 and 1",
    "10%,50%",
    _ramp,
    text=lambda shares: ",".join(map(f.plain, shares)) or f.NOTHING,
)
# Key -> the rule whose limit it sets.
_RULE_OF: Final = {
    "failures": t.TripRule.CONSECUTIVE,
    "failure_rate": t.TripRule.FAILURE_RATE,
    "slow_rate": t.TripRule.SLOW_RATE,
}
_RATES: Final = frozenset({t.TripRule.FAILURE_RATE, t.TripRule.SLOW_RATE})


# Sign -> comparison, its words, what to do with the other value, and the sign seen from that one.
RELATIONS: Final = {
    "<=": (operator.le, "at most", "raise", ">="),
    "<": (operator.lt, "below", "raise", ">"),
    ">=": (operator.ge, "at least", "lower", "<="),
    ">": (operator.gt, "above", "lower", "<"),
}
Messages = Mapping[str, tuple[str, str]]
"""Key -> message and hint of a problem there; ``{key}`` becomes a key's name, in messages with its value."""


def order_messages(first: str, sign: str, second: str, reason: str = "") -> Messages:
    """Return the messages for two values that must stand in a relation; ``reason``: the hint of the first."""
    _, words, remedy, mirrored = RELATIONS[sign]
    _, others, other_remedy, _ = RELATIONS[mirrored]
    return {
        first: (f"must be {words} {{{second}}}", reason or f"or {remedy} {{{second}}}"),
        second: (f"must be {others} {{{first}}}", f"or {other_remedy} {{{first}}}"),
    }


_Check = tuple[str, Callable[..., bool], Messages]


def _rate_in_force(rate: str) -> _Check:
    def is_violated(trip: frozenset[t.TripRule], _: float) -> bool:
        return _RULE_OF[rate] not in trip

    return f"trip {rate}", is_violated, {rate: (f"needs {rate} in {{trip}}", "or leave {trip} out")}


def _order(first: str, sign: str, second: str, reason: str = "") -> _Check:
    def is_violated(left: Any, right: Any) -> bool:  # noqa: ANN401 - values of any keys
        return None not in {left, right} and not RELATIONS[sign][0](left, right)

    return f"{first} {second}", is_violated, order_messages(first, sign, second, reason)


# Keys, whether their values contradict each other, and the messages: that of the first written key counts.
_CHECKS: Final[Sequence[_Check]] = (
    _order("open_max_s", ">=", "open_s"),
    _order("trial_lease_s", ">=", "timeout_s", "else a probe call within its time limit loses its slot"),
    (
        "window window_s",
        lambda calls, time_s: None not in {calls, time_s},
        {
            "window": ("excludes {window_s}", "leave one of them out"),
            "window_s": ("excludes {window}", "leave one of them out"),
        },
    ),
    _rate_in_force("failure_rate"),
    _rate_in_force("slow_rate"),
    (
        "trip window min_calls",
        lambda trip, window, least: bool(_RATES & trip) and window is not None and least > window,
        {
            **order_messages("min_calls", "<=", "window", "else no rate is ever evaluated"),
            **dict.fromkeys(
                ("failure_rate", "slow_rate", "trip"),
                (
                    "has a rate that is never evaluated: {window} is less than {min_calls}",
                    "lower {min_calls}, or raise {window}",
                ),
            ),
        },
    ),
    (
        "trip slow_call_s first_item_s",
        lambda trip, call, item: t.TripRule.SLOW_RATE in trip and call is None and item is None,
        dict.fromkeys(
            ("slow_rate", "trip"), ("needs {slow_call_s} with slow_rate", "for streams {first_item_s}")
        ),
    ),
    (
        "shed_above criticality",
        lambda above, criticality: above is not None and criticality is not t.Criticality.NON_CORE,
        {"shed_above": ("needs the criticality non_core beside it", "core features are never shed")},
    ),
    _order("shed_above", ">", "margin"),
)


def cross_field_problems(
    values: Mapping[str, Any], given: Collection[str], name_of: Callable[[str], str] = str
) -> list[Problem]:
    """Find each contradiction, as a problem under a key of those ``given`` at this place.

    A check runs only if ``values`` has all keys that it needs; ``name_of`` names another key in messages.
    """
    problems = []
    for needs, is_violated, messages in _CHECKS:
        used = {key: values[key] for key in needs.split() if key in values}
        reported_key = next((key for key in messages if key in given), None)
        if reported_key is None or len(used) < len(needs.split()) or not is_violated(*used.values()):
            continue
        message, hint = messages[reported_key]
        names = {key: name_of(key) for key in used}
        numbers = {
            key: f", {f.plain(value)}" for key, value in used.items() if isinstance(value, int | float)
        }
        texts = {key: name + numbers.get(key, "") for key, name in names.items()}
        problems.append(Problem(reported_key, message.format(**texts), hint.format(**names)))
    return problems


class BreakerSettings(Override):
    """Settings of circuit breakers: the defaults of all guards, or those of one guard.

    For one guard, only the values that are set replace ``BREAKER_*``; None counts as not set.
    Texts are parsed as in the environment: after ``BreakerSettings(open_s="1m")`` the value is 60.0.

    Raises:
        ConfigError: one problem for each argument that is not allowed, and for each contradiction.
    """

    prefix: ClassVar[str] = "breaker_"
    environment: ClassVar[str] = "FAILURES* OPEN_S* HALF_OPEN_MAX TIMEOUT_S TRIP SLOW_CALL_S MODE"

    failures: Annotated[int, whole(1, 10_000, "failures")] = 5
    """Failures in a row that open a breaker. [founding figure]"""
    open_s: Annotated[float, _TIME] = 10.0
    """Time that it stays open before a probe call is let through. [founding figure]"""
    half_open_max: Annotated[int, _CALLS] = 1
    """Probe calls that may be in flight at once (half-open). [founding figure]"""
    timeout_s: Annotated[float, _TIME] | None = None
    """Time limit of a call inside the guard, for coroutines only: a call that exceeds it is a failure."""
    trip: Annotated[frozenset[t.TripRule], TRIPS] = frozenset({t.TripRule.CONSECUTIVE})
    """Conditions that open a breaker, any of them: consecutive failures, the failure rate, the slow-call
    rate; not set beside breaker_failure_rate or breaker_slow_rate: those whose limits are set. [founding
    figure]"""
    slow_call_s: Annotated[float, _TIME] | None = None
    """A call that succeeds after more than this was slow; not set: none is."""
    max_in_flight: Annotated[int, whole(0, 1_000_000, "calls")] = 0
    """Calls that may be in flight at once through one breaker; 0: no maximum. Before the first result nothing
    else limits them."""
    mode: Annotated[t.BreakerMode, choice(t.BreakerMode)] = t.BreakerMode.ENFORCE
    """Initial mode of a breaker; metrics_only lets every call through and counts calls that would be
    rejected."""
    open_max_s: Annotated[float, _TIME] | None = None
    """Longest open time, however often breaker_backoff prolonged it; not set: no maximum."""
    backoff: Annotated[float, number(1, 100)] = 1.0
    """Factor by which the open time grows with each probe call that fails; 1: it stays the same."""
    success_threshold: Annotated[int, _CALLS] | None = None
    """Probe calls that must succeed before it closes; not set: BREAKER_HALF_OPEN_MAX."""
    trial_lease_s: Annotated[float, _TIME] | None = None
    """Time after which a probe call that has not ended releases its slot; not set: three times
    BREAKER_TIMEOUT_S, at least 30 s."""
    failure_window_s: Annotated[float, _TIME] | None = None
    """Failures in a row count only if they lie within this time; not set: however long."""
    window: Annotated[int, _WINDOW] | None = None
    """Number of last calls over which the rates are measured; not set: breaker_window_s."""
    window_s: Annotated[float, _TIME] | None = None
    """Time over which the rates are measured; not set: breaker_window, or 10 s if that is not set either.
    [measured: at 100 calls per second and 10 % errors, 90 % of the calls are answered, 41 % with 10 calls]"""
    min_calls: Annotated[int, _WINDOW] = 20
    """Calls below which no rate is evaluated."""
    failure_rate: Annotated[float, _RATE] = 0.5
    """Share of failures from which failure_rate opens. [convention: half of the calls, as in resilience4j]"""
    slow_rate: Annotated[float, _RATE] = 0.5
    """Share of slow calls from which slow_rate opens. [convention: half of the calls, as in resilience4j]"""
    slow_is: Annotated[t.SlowCallMode, choice(t.SlowCallMode)] = t.SlowCallMode.FAILURE
    """How a slow call counts: as a failure, or as a success for every rule but slow_rate."""
    ramp: Annotated[tuple[float, ...], RAMP] = ()
    """Shares of the calls that are let through when it closes, step by step; none: all."""
    ramp_step_s: Annotated[float, _TIME] = 5.0
    """How long each of these steps lasts; each needs a success, too."""
    first_item_s: Annotated[float, _TIME] | None = None
    """The same as BREAKER_SLOW_CALL_S for a stream: until its first item."""
    stream_idle_s: Annotated[float, _TIME] | None = None
    """A longer gap between two items of a stream is a failure."""
    stream_settle: Annotated[t.StreamSettleMode, choice(t.StreamSettleMode)] = t.StreamSettleMode.END
    """When the probe call of a stream has succeeded: at its end, or, for long ones, at its first item."""
    on_429: Annotated[t.TooManyRequestsMode, choice(t.TooManyRequestsMode)] = t.TooManyRequestsMode.NEUTRAL
    """Effect of a response 429: none, or open for the time of its Retry-After."""

    if TYPE_CHECKING:

        def __init__(self, **values: Unpack[v.BreakerValues]) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _imply_trip(cls, values: Any) -> Any:  # noqa: ANN401 - pydantic passes anything
        """Set ``trip`` where a rate is set without it: to the rules whose limits are set."""
        if isinstance(values, Mapping) and values.get("trip") is None:
            trips = frozenset(rule for key, rule in _RULE_OF.items() if values.get(key) is not None)
            return {**values, "trip": trips} if trips & _RATES else values
        return values

    def own_values(self) -> dict[str, Any]:
        """Return the values that are set."""
        return self.explicit()

    def __eq__(self, other: object) -> bool:
        """Whether values are equal, and the same ones are set: the others are those of all guards."""
        return super().__eq__(other) and self.explicit().keys() == other.explicit().keys()  # type: ignore[attr-defined]  # of one class

    def __hash__(self) -> int:
        return hash(tuple(self.explicit().items()))

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        # Those of all guards are checked in `settings/checks.py`, which names their variables.
        if info.context != DEFAULTS:
            wrong = info.context or ()
            own = {key: value for key, value in self.own_values().items() if key not in wrong}
            if problems := cross_field_problems(own, own):
                raise ConfigError(problems)
        return self

    @property
    def lease_s(self) -> float:
        """Longest time in seconds for which a probe holds its slot."""
        if self.trial_lease_s is not None:
            return self.trial_lease_s
        return max(LEASE_TIMEOUTS * (self.timeout_s or 0.0), LEASE_LEAST_S)

    @property
    def successes_needed(self) -> int:
        """Probes that must succeed before the breaker closes."""
        return self.success_threshold or self.half_open_max

    def wait_s(self, rounds: int) -> float:
        """Return the seconds of an open period; ``rounds`` counts the openings before it since a closing."""
        max_s = _UNLIMITED_S if self.open_max_s is None else self.open_max_s
        try:
            return min(self.open_s * self.backoff**rounds, max_s)
        except OverflowError:  # the power exceeds the range of floats after some hundred rounds
            return max_s


class SharedBreakerSettings(Group):
    """Settings of all breakers together: their number, and the state that processes share."""

    prefix: ClassVar[str] = "breaker_"
    environment: ClassVar[str] = "SHARED"

    shared: Annotated[bool, f.FLAG] = False
    """Whether all processes on the Redis share open breakers and their probe calls. A closed breaker sends no
    queries."""
    store_deadline_s: Annotated[float, number(t.STALL_S, 10, "s")] = 0.05
    """Longest wait of a call for the Redis under BREAKER_SHARED, then the process decides by itself. [that of
    REDIS_DEADLINE_S]"""
    max_names: Annotated[int, whole(1, 1_000_000, "names")] = 1000
    """Maximum of guards; beyond it, closed and idle guards are removed."""


class DegradationSettings(Group):
    """Settings of degradation: load thresholds of fallbacks, and the stale cache."""

    prefix: ClassVar[str] = "degrade_"
    environment: ClassVar[str] = "SHED_AT* STALE_AT STATIC_AT"

    shed_at: Annotated[float, f.LOAD] = 0.80
    """Load above which features that are not core are shed. [founding figure]"""
    stale_at: Annotated[float, f.LOAD] = 0.90
    """Load above which core features are answered from the stale cache, if it has a response. [founding
    figure]"""
    static_at: Annotated[float, f.LOAD] = 0.95
    """Load above which they are answered by their static fallback, where there is one. [founding figure]"""
    fallback_timeout_s: Annotated[float, number(0.001, 3600, "s")] = 1.0
    """Longest time that a dynamic fallback may take."""
    max_stale_s: Annotated[float, f.AGE] = 60.0
    """Age up to which a cached response may replace a new one."""
    margin: Annotated[float, number(0, 1, "share")] = 0.05
    """How far the load must fall below a threshold before its step is left."""
    samples: Annotated[int, whole(1, 100, "samples")] = 3
    """Samples in a row that must agree before a step is taken. [that of TIER_SAMPLES]"""
    load_stale_s: Annotated[float, number(0.1, 3600, "s")] = 3.0
    """Time for which a step stays without a sample, then nothing is shed; not set: three SAMPLE_INTERVAL_S,
    at least 3 s. [that of gpu_stale_after_s]"""
    cache_entries: Annotated[int, whole(1, 10_000_000, "answers")] = 1024
    """Maximum of cached responses for one guard; the least recently used one is evicted."""
    cache_body_bytes: Annotated[int, whole(1, 1 << 30, "bytes")] = 1 << 20
    """Longest body of an HTTP response that is cached."""
