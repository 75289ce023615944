"""Breaker settings of one guard that differ from the defaults of all guards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from autoglm_throttle.settings.breaker_checks import GUARD_ONLY_KEYS, cross_field_problems
from autoglm_throttle.settings.breaker_fields import BreakerFields
from autoglm_throttle.settings.field import setting_of
from autoglm_throttle.settings.field_types import FieldType, WithNone, read_all
from autoglm_throttle.settings.problems import ConfigError
from autoglm_throttle.types import BreakerMode, SlowCallMode, StreamSettleMode, TooManyRequestsMode, TripRule

BREAKER_PREFIX: Final = "breaker_"
"""Prefix of the settings that hold the defaults of all guards."""

DEFAULTS_ONLY: Final = frozenset({"breaker_shared"})
"""Settings that cannot differ between guards."""

BREAKER_FIELD_TYPES: Final[Mapping[str, FieldType[Any]]] = {
    name.removeprefix(BREAKER_PREFIX): WithNone(setting_of(name, info).field_type)
    for name, info in BreakerFields.model_fields.items()
    if name.startswith(BREAKER_PREFIX) and name not in DEFAULTS_ONLY
}
"""Key of a guard -> its field type, which is that of the setting."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BreakerSettings:
    """Settings of one guard instead of ``BREAKER_*``; None leaves a value to them.

    Texts are parsed as in the environment: after ``BreakerSettings(open_s="1m")`` the value is 60.0.

    Args:
        failures: consecutive failures that open it, 1..10000.
        open_s: seconds that it stays open, 0.001..86400.
        open_max_s: maximum of the open time, however often it was prolonged; at least ``open_s``.
        backoff: factor by which the open time grows with each failed probe call, 1..100.
        half_open_max: probe calls in flight at once, 1..10000.
        success_threshold: probe calls that must succeed before it closes.
        timeout_s: time limit of a call inside the guard, for coroutines.
        trial_lease_s: seconds after which a probe call releases its slot; at least ``timeout_s``.
        trip: the conditions that open it.
        failure_window_s: seconds within which consecutive failures must lie.
        window: number of last calls over which rates are measured, 1..100000.
        window_s: seconds over which rates are measured instead.
        min_calls: calls below which no rate is evaluated; with ``window`` at most that.
        failure_rate: share of failures that opens it, above 0 up to 1.
        slow_rate: share of slow calls that opens it, above 0 up to 1.
        slow_call_s: seconds after which a successful call was slow.
        slow_is: how a slow call counts for the other conditions.
        ramp: rising shares between 0 and 1 in which it closes; empty: at once.
        ramp_step_s: seconds of each of these steps.
        first_item_s: seconds until the first item of a stream, after which it was slow.
        stream_idle_s: a longer gap between two items of a stream is a failure.
        stream_settle: when the probe call of a stream has succeeded.
        max_in_flight: calls in flight at once, 0..1000000; 0: any number.
        on_429: effect of a response 429.
        mode: initial mode.

    Raises:
        ConfigError: one problem for each argument that is not allowed, and for each two that
            contradict each other.
    """

    failures: int | str | None = None
    open_s: float | str | None = None
    open_max_s: float | str | None = None
    backoff: float | str | None = None
    half_open_max: int | str | None = None
    success_threshold: int | str | None = None
    timeout_s: float | str | None = None
    trial_lease_s: float | str | None = None
    trip: Collection[TripRule] | str | None = None
    failure_window_s: float | str | None = None
    window: int | str | None = None
    window_s: float | str | None = None
    min_calls: int | str | None = None
    failure_rate: float | str | None = None
    slow_rate: float | str | None = None
    slow_call_s: float | str | None = None
    slow_is: SlowCallMode | str | None = None
    ramp: Sequence[float] | str | None = None
    ramp_step_s: float | str | None = None
    first_item_s: float | str | None = None
    stream_idle_s: float | str | None = None
    stream_settle: StreamSettleMode | str | None = None
    max_in_flight: int | str | None = None
    on_429: TooManyRequestsMode | str | None = None
    mode: BreakerMode | str | None = None

    field_types: ClassVar[Mapping[str, FieldType[Any]]] = BREAKER_FIELD_TYPES

    def __post_init__(self) -> None:

        raw = {field.name: getattr(self, field.name) for field in fields(self)}
        values, problems = read_all(self.field_types, raw)
        own = {key: value for key, value in values.items() if value is not None or key in GUARD_ONLY_KEYS}
        problems += cross_field_problems(own, own)
        if problems:
            raise ConfigError(problems)
        for key, value in values.items():
            # The dataclass is frozen.
            object.__setattr__(self, key, value)

    def explicit_fields(self) -> dict[str, Any]:
        """Return the breaker values that are set."""
        return {key: value for key in BREAKER_FIELD_TYPES if (value := getattr(self, key)) is not None}

    def __repr__(self) -> str:
        fields_set = ((key, getattr(self, key)) for key in self.field_types)
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in fields_set if v is not None)})"
