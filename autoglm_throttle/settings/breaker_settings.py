"""The figures of one guard that differ from those of all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from autoglm_throttle.model import Mode, On429, SlowIs, StreamSettle, Trip
from autoglm_throttle.settings.breaker_fields import BreakerFields
from autoglm_throttle.settings.breaker_rules import OWN_ALONE, contradictions
from autoglm_throttle.settings.field import setting_of
from autoglm_throttle.settings.form import Form, WithNone, read_all
from autoglm_throttle.settings.problem import ConfigError

BREAKER: Final = "breaker_"
"""How the settings begin that say the same of all guards."""

OF_ALL: Final = frozenset({"breaker_shared"})
"""What is said of all guards or none."""

BREAKER_FORMS: Final[Mapping[str, Form[Any]]] = {
    name.removeprefix(BREAKER): WithNone(setting_of(name, info).form)
    for name, info in BreakerFields.model_fields.items()
    if name.startswith(BREAKER) and name not in OF_ALL
}
"""Key of a guard -> its form, which is that of the setting."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BreakerSettings:
    """What one guard goes by instead of ``BREAKER_*``; None leaves a figure to them.

    The texts that the environment would have are read, too: after ``BreakerSettings(open_s="1m")`` the
    figure is 60.0.

    Args:
        failures: failures in a row that open it, 1..10000.
        open_s: seconds that it stays open, 0.001..86400.
        open_max_s: longest such time, however often it was prolonged; at least ``open_s``.
        backoff: factor by which the time grows with each trial that fails, 1..100.
        half_open_max: trials under way at once, 1..10000.
        success_threshold: trials that must succeed before it closes.
        timeout_s: time limit of a call inside the guard, for coroutines.
        trial_lease_s: seconds after which a trial leaves its place; at least ``timeout_s``.
        trip: the rules by which it opens.
        failure_window_s: seconds within which failures in a row must lie.
        window: calls that the shares are taken of, 1..100000.
        window_s: the calls of so many seconds instead.
        min_calls: calls below which no share is judged; with ``window`` at most that.
        failure_rate: share of failures that opens it, above 0 up to 1.
        slow_rate: share of slow calls that opens it, above 0 up to 1.
        slow_call_s: seconds after which a call that succeeds was slow.
        slow_is: what a slow call is to the other rules.
        ramp: rising shares between 0 and 1 in which it closes; empty: at once.
        ramp_step_s: seconds of each of these steps.
        first_item_s: seconds until the first item of a stream, after which it was slow.
        stream_idle_s: a longer gap between two items of a stream is a failure.
        stream_settle: when the trial of a stream has succeeded.
        max_in_flight: calls under way at once, 0..1000000; 0: any number.
        on_429: what an answer 429 means.
        mode: how it begins.

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
    trip: Collection[Trip] | str | None = None
    failure_window_s: float | str | None = None
    window: int | str | None = None
    window_s: float | str | None = None
    min_calls: int | str | None = None
    failure_rate: float | str | None = None
    slow_rate: float | str | None = None
    slow_call_s: float | str | None = None
    slow_is: SlowIs | str | None = None
    ramp: Sequence[float] | str | None = None
    ramp_step_s: float | str | None = None
    first_item_s: float | str | None = None
    stream_idle_s: float | str | None = None
    stream_settle: StreamSettle | str | None = None
    max_in_flight: int | str | None = None
    on_429: On429 | str | None = None
    mode: Mode | str | None = None

    forms: ClassVar[Mapping[str, Form[Any]]] = BREAKER_FORMS

    def __post_init__(self) -> None:

        raw = {field.name: getattr(self, field.name) for field in fields(self)}
        values, problems = read_all(self.forms, raw)
        own = {key: value for key, value in values.items() if value is not None or key in OWN_ALONE}
        problems += contradictions(own, own)
        if problems:
            raise ConfigError(problems)
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def given(self) -> dict[str, Any]:
        """The figures of the breaker that it says something about."""
        return {key: value for key in BREAKER_FORMS if (value := getattr(self, key)) is not None}

    def __repr__(self) -> str:
        told = ((key, getattr(self, key)) for key in self.forms)
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in told if v is not None)})"
