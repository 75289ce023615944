"""Advice on settings of breakers and of degradation, of all guards or of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.settings import BreakerSettings, Settings, settings_table
from autoglm_throttle.settings.advice import USED_IF, collect_advice

VARIABLES = {
    key: settings_table()[f"breaker_{key}"].variable.removeprefix("AUTOGLM_THROTTLE_")
    for key in BreakerSettings.model_fields
}
"""Key of a guard -> name of the setting of all guards in messages."""


def advised(**values: Any) -> dict[str, str]:
    full: dict[str, Any] = {
        "policy": "tiers",
        "workers": 1,
        "user_limit": "5/s",
        "key_secret": "0123456789abcdef",
    }
    advice = collect_advice(Settings(**(full | values)))
    return {p.variable.removeprefix("AUTOGLM_THROTTLE_"): p.message for p in advice}


SHARE = "failure_rate or slow_rate in BREAKER_TRIP"
UNREAD: dict[str, tuple[object, dict[str, Any], str]] = {
    "failures": (3, {"breaker_trip": "failure_rate"}, "consecutive in BREAKER_TRIP"),
    "failure_window_s": (3, {"breaker_trip": "failure_rate"}, "consecutive in BREAKER_TRIP"),
    "window": (20, {}, SHARE),
    "window_s": (20, {}, SHARE),
    "min_calls": (5, {}, SHARE),
    "slow_is": ("separate", {}, "BREAKER_SLOW_CALL_S or breaker_first_item_s"),
    "ramp_step_s": (2, {}, "breaker_ramp"),
    "open_max_s": (20, {}, "breaker_backoff above 1"),
}
READERS: dict[str, dict[str, Any]] = {
    "failures": {"trip": "consecutive"},
    "failure_window_s": {"trip": "consecutive,failure_rate"},
    "window": {"trip": "failure_rate"},
    "window_s": {"trip": "slow_rate", "slow_call_s": 1},
    "min_calls": {"trip": "failure_rate"},
    "slow_is": {"first_item_s": 1},
    "ramp_step_s": {"ramp": "50%"},
    "open_max_s": {"on_429": "open"},
}


@pytest.mark.parametrize("key", UNREAD)
def test_unused_breaker_setting_is_reported(key: str) -> None:
    value, beside, needed = UNREAD[key]
    given = {f"breaker_{key}": value}
    assert advised(**given, **beside) == {VARIABLES[key]: f"has no effect without {needed}"}
    assert advised(**given, **{f"breaker_{name}": text for name, text in READERS[key].items()}) == {}
    assert advised(**given, **beside, guards={"db": READERS[key]}) == {}, "one guard reads it"
    assert set(UNREAD) == set(READERS) == set(USED_IF)


ADVICE: list[tuple[dict[str, Any], str, str]] = [
    (
        {"mode": "metrics_only"},
        "mode",
        "is metrics_only: no call is rejected, rejections are only counted",
    ),
    ({"mode": "disabled"}, "mode", "is disabled: no failure opens anything"),
    ({"backoff": 2}, "backoff", "prolongs the open period without end"),
    (
        {"slow_call_s": 2, "timeout_s": 2},
        "slow_call_s",
        "never finds a slow coroutine: {timeout_s} ends it before {slow_call_s}",
    ),
]


@pytest.mark.parametrize(("values", "key", "message"), ADVICE)
def test_advice_on_all_guards_and_on_one(values: dict[str, Any], key: str, message: str) -> None:
    of_all = {f"breaker_{key}": value for key, value in values.items()}
    assert advised(**of_all) == {VARIABLES[key]: message.format(**VARIABLES)}
    own = {f"guards.db.{key}": message.format(**{name: name for name in BreakerSettings.model_fields})}
    assert advised(guards={"db": values}) == own


@pytest.mark.parametrize(
    "values",
    [
        {"breaker_backoff": 2, "breaker_open_max_s": 300},
        {"breaker_slow_call_s": 1, "breaker_timeout_s": 2},
        {"breaker_slow_call_s": 1},
        {"breaker_timeout_s": 1},
        {"breaker_mode": "enforce"},
        {"degrade_static_at": 0.99},
    ],
)
def test_consistent_breaker_settings_give_no_advice(values: dict[str, Any]) -> None:
    assert advised(**values) == {}


def test_degradation_step_never_reached_is_reported() -> None:
    assert advised(degrade_static_at=1) == {
        "DEGRADE_STATIC_AT": "is 1: no load exceeds it, so it gives no static fallback"
    }


@pytest.mark.parametrize(
    ("own", "of_all", "key", "message"),
    [
        (
            {"min_calls": 5},
            {},
            "min_calls",
            "has no effect without failure_rate or slow_rate in BREAKER_TRIP",
        ),
        (
            {"timeout_s": 1},
            {"breaker_slow_call_s": 2},
            "timeout_s",
            "never finds a slow coroutine: timeout_s ends it before BREAKER_SLOW_CALL_S",
        ),
        ({"shed_above": 1, "criticality": "non_core"}, {}, "shed_above", "is 1: no load exceeds it"),
        (
            {"shed_above": 0.9, "criticality": "non_core"},
            {"policy": "fixed"},
            "shed_above",
            "has no effect with POLICY=fixed",
        ),
    ],
)
def test_unusual_settings_of_a_guard_give_advice(
    own: dict[str, Any], of_all: dict[str, Any], key: str, message: str
) -> None:
    assert advised(guards={"db": own}, **of_all) == {f"guards.db.{key}": message}


def test_guard_gets_no_advice_on_defaults() -> None:
    reported_for_all = advised(breaker_mode="metrics_only", guards={"db": {"failures": 3}})
    assert list(reported_for_all) == ["BREAKER_MODE"]
    assert advised(guards={"db": {"failures": 3, "shed_above": 0.9, "criticality": "non_core"}}) == {}


def test_advice_on_a_guard_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "throttle.toml"
    file.write_text('[guards."https://a.b:1"]\nmode = "disabled"\n')
    places = {problem.variable for problem in collect_advice(Settings.from_env({}, config_file=file))}
    assert 'throttle.toml:2: guards."https://a.b:1".mode' in places
