"""Settings of breakers: the defaults of guards without settings of their own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.breaker_field_types import RampType, Trips
from autoglm_throttle.settings.field import CHOSEN, FOUNDING, setting
from autoglm_throttle.settings.field_types import ChoiceType, Flag, Number, Whole, WithNone
from autoglm_throttle.settings.quota_fields import QuotaSettings
from autoglm_throttle.types import BreakerMode, SlowCallMode, StreamSettleMode, TooManyRequestsMode, TripRule

_TIME: Final = Number(0.001, 86_400, "s")
_CALLS: Final = Whole(1, 10_000, "calls")
_WINDOW: Final = Whole(1, 100_000, "calls")
_RATE: Final = Number(0, 1, "share", above=True)

_RESILIENCE4J: Final = "convention: half of the calls, as in resilience4j"


class BreakerFields(QuotaSettings):
    """Declarations of the breaker settings; ``BreakerSettings`` has the same for one guard."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    breaker_failures: Annotated[int, Whole(1, 10_000, "failures")] = setting(
        5, "Failures in a row that open a breaker.", FOUNDING, starred=True
    )
    breaker_open_s: Annotated[float, _TIME] = setting(
        10.0, "Time that it stays open before a probe call is let through.", FOUNDING, starred=True
    )
    breaker_open_max_s: Annotated[float | None, WithNone(_TIME)] = setting(
        None,
        "Longest open time, however often BREAKER_BACKOFF prolonged it; not set: no maximum.",
        CHOSEN,
    )
    breaker_backoff: Annotated[float, Number(1, 100)] = setting(
        1.0,
        "Factor by which the open time grows with each probe call that fails; 1: it stays the same.",
        CHOSEN,
    )
    breaker_half_open_max: Annotated[int, _CALLS] = setting(
        1, "Probe calls that may be in flight at once (half-open).", FOUNDING
    )
    breaker_success_threshold: Annotated[int | None, WithNone(_CALLS)] = setting(
        None, "Probe calls that must succeed before it closes; not set: BREAKER_HALF_OPEN_MAX.", CHOSEN
    )
    breaker_timeout_s: Annotated[float | None, WithNone(_TIME)] = setting(
        None,
        "Time limit of a call inside the guard, for coroutines only: a call that exceeds it is a failure.",
        CHOSEN,
    )
    breaker_trial_lease_s: Annotated[float | None, WithNone(_TIME)] = setting(
        None,
        "Time after which a probe call that has not ended releases its slot; not set: three times "
        "BREAKER_TIMEOUT_S, at least 30 s.",
        CHOSEN,
    )
    breaker_trip: Annotated[frozenset[TripRule], Trips()] = setting(
        frozenset({TripRule.CONSECUTIVE}),
        "Conditions that open a breaker, any of them: consecutive failures, the failure rate, the "
        "slow-call rate.",
        FOUNDING,
    )
    breaker_failure_window_s: Annotated[float | None, WithNone(_TIME)] = setting(
        None, "Failures in a row count only if they lie within this time; not set: however long.", CHOSEN
    )
    breaker_window: Annotated[int, _WINDOW] = setting(
        10, "Number of last calls over which the rates are measured.", CHOSEN
    )
    breaker_window_s: Annotated[float | None, WithNone(_TIME)] = setting(
        None, "Time over which the rates are measured instead; not set: BREAKER_WINDOW.", CHOSEN
    )
    breaker_min_calls: Annotated[int, _WINDOW] = setting(
        10, "Calls below which no rate is evaluated.", CHOSEN
    )
    breaker_failure_rate: Annotated[float, _RATE] = setting(
        0.5, "Share of failures from which failure_rate opens.", _RESILIENCE4J
    )
    breaker_slow_rate: Annotated[float, _RATE] = setting(
        0.5, "Share of slow calls from which slow_rate opens.", _RESILIENCE4J
    )
    breaker_slow_call_s: Annotated[float | None, WithNone(_TIME)] = setting(
        None, "A call that succeeds after more than this was slow; not set: none is.", CHOSEN
    )
    breaker_slow_is: Annotated[SlowCallMode, ChoiceType(SlowCallMode)] = setting(
        SlowCallMode.FAILURE,
        "How a slow call counts: as a failure, or as a success for every rule but slow_rate.",
        CHOSEN,
    )
    breaker_ramp: Annotated[tuple[float, ...], RampType()] = setting(
        (),
        "Shares of the calls that are let through when it closes, step by step; none: all.",
        CHOSEN,
    )
    breaker_ramp_step_s: Annotated[float, _TIME] = setting(
        5.0, "How long each of these steps lasts; each needs a success, too.", CHOSEN
    )
    breaker_first_item_s: Annotated[float | None, WithNone(_TIME)] = setting(
        None, "The same as BREAKER_SLOW_CALL_S for a stream: until its first item.", CHOSEN
    )
    breaker_stream_idle_s: Annotated[float | None, WithNone(_TIME)] = setting(
        None, "A longer gap between two items of a stream is a failure.", CHOSEN
    )
    breaker_stream_settle: Annotated[StreamSettleMode, ChoiceType(StreamSettleMode)] = setting(
        StreamSettleMode.END,
        "When the probe call of a stream has succeeded: at its end, or, for long ones, at its first item.",
        CHOSEN,
    )
    breaker_max_in_flight: Annotated[int, Whole(0, 1_000_000, "calls")] = setting(
        0,
        "Calls that may be in flight at once through one breaker; 0: no maximum. Before the first result "
        "nothing else limits them.",
        CHOSEN,
    )
    breaker_on_429: Annotated[TooManyRequestsMode, ChoiceType(TooManyRequestsMode)] = setting(
        TooManyRequestsMode.NEUTRAL,
        "Effect of a response 429: none, or open for the time of its Retry-After.",
        CHOSEN,
    )
    breaker_mode: Annotated[BreakerMode, ChoiceType(BreakerMode)] = setting(
        BreakerMode.ENFORCE,
        "Initial mode of a breaker; metrics_only lets every call through "
        "and counts calls that would be rejected.",
        CHOSEN,
    )
    breaker_shared: Annotated[bool, Flag()] = setting(
        False,
        "Whether all processes on the Redis share open breakers and their probe calls. A closed breaker "
        "sends no queries.",
        CHOSEN,
    )
