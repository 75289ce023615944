"""Settings of breakers and of degradation, and the figures of one guard in code."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from autoglm_throttle.settings.breaker_settings import BREAKER_FIELD_TYPES
from autoglm_throttle.settings.guard_advice import USED_IF
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.breaker_rules import BreakerRules
from autoglm_throttle.resilience.degradation import LadderRules
from autoglm_throttle.settings import (
    BreakerSettings,
    ConfigError,
    Settings,
    breaker_of,
    collect_advice,
    settings_table,
)
from autoglm_throttle.types import BreakerMode, SlowCallMode, StreamSettleMode, TooManyRequestsMode, TripRule

SHARES = frozenset({TripRule.FAILURE_RATE, TripRule.CONSECUTIVE})


def reported(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return [str(problem) for problem in caught.value.problems]


def reported_for_one(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        BreakerSettings(**values)
    return [str(problem) for problem in caught.value.problems]


def advised(**values: Any) -> dict[str, str]:
    full = {"policy": "tiers", "workers": 1, "user_limit": "5/s", "key_secret": "0123456789abcdef"}
    advice = collect_advice(Settings(**(full | values)))
    return {p.variable.removeprefix("AUTOGLM_THROTTLE_"): p.message for p in advice}


def test_the_defaults_are_the_founding_figures() -> None:
    settings = Settings()
    assert (settings.breaker.failures, settings.breaker.open_s, settings.breaker.half_open_max) == (
        5,
        10.0,
        1,
    )
    thresholds = (settings.degradation.shed_at, settings.degradation.stale_at, settings.degradation.static_at)
    assert thresholds == (0.80, 0.90, 0.95)


def test_the_mechanisms_have_the_same_defaults() -> None:
    settings = Settings()
    assert BreakerRules(**breaker_of(settings, "any")) == BreakerRules()
    ladder = {f.name: getattr(settings, f"degrade_{f.name}") for f in fields(LadderRules)}
    assert LadderRules(**ladder) == LadderRules()


def test_a_guard_has_the_figures_of_the_mechanism_and_no_others() -> None:
    names = [f.name for f in fields(BreakerRules)]
    assert [f.name for f in fields(BreakerSettings)] == names == list(BREAKER_FIELD_TYPES)
    assert {f"breaker_{name}" for name in names} <= set(settings_table)


@pytest.mark.parametrize(
    ("values", "stale_s"),
    [
        ({}, 3.0),
        ({"sample_interval_s": 0.2}, 3.0),
        ({"sample_interval_s": 5}, 15.0),
        ({"sample_interval_s": 5, "degrade_load_stale_s": 6}, 6.0),
    ],
)
def test_a_load_is_not_forgotten_between_two_samples(values: dict[str, Any], stale_s: float) -> None:
    settings = Settings(**values)
    assert settings.degradation.load_stale_s == stale_s
    assert (settings.source_of("degrade_load_stale_s") == "code") is ("degrade_load_stale_s" in values)


def test_what_stands_in_the_readme_and_what_only_in_the_file() -> None:
    ours = {name: known for name, known in settings_table().items() if name.startswith(("breaker_", "degrade_"))}
    assert [name for name, known in ours.items() if known.starred] == [
        "breaker_failures",
        "breaker_open_s",
        "degrade_shed_at",
    ]
    assert [name for name, known in ours.items() if known.file_only] == [
        "breaker_store_deadline_s",
        "breaker_max_names",
        "degrade_margin",
        "degrade_samples",
        "degrade_load_stale_s",
        "degrade_cache_entries",
        "degrade_cache_body_bytes",
    ]


@pytest.mark.parametrize(("text", "size"), [("64KiB", 65_536), ("1 MB", 1_000_000), ("0.5kib", 512), (7, 7)])
def test_a_size_may_have_a_unit(text: object, size: int) -> None:
    assert Settings(degrade_cache_body_bytes=text).degradation.cache_body_bytes == size


TEXTS: dict[str, tuple[Any, Any]] = {
    "failures": ("3", 3),
    "open_s": ("1m", 60.0),
    "open_max_s": ("1h", 3600.0),
    "backoff": ("2", 2.0),
    "half_open_max": ("2", 2),
    "success_threshold": ("4", 4),
    "timeout_s": ("500ms", 0.5),
    "trial_lease_s": ("3s", 3.0),
    "trip": (["consecutive", TripRule.FAILURE_RATE], SHARES),
    "failure_window_s": ("2m", 120.0),
    "window": ("20", 20),
    "window_s": ("30s", 30.0),
    "min_calls": ("20", 20),
    "failure_rate": ("25%", 0.25),
    "slow_rate": ("10%", 0.1),
    "slow_call_s": ("250ms", 0.25),
    "slow_is": ("separate", SlowCallMode.SEPARATE),
    "ramp": ("10%,50%", (0.1, 0.5)),
    "ramp_step_s": ("2s", 2.0),
    "first_item_s": ("100ms", 0.1),
    "stream_idle_s": ("5s", 5.0),
    "stream_settle": ("first_item", StreamSettleMode.FIRST_ITEM),
    "max_in_flight": ("16", 16),
    "on_429": ("open", TooManyRequestsMode.OPEN),
    "mode": ("metrics_only", BreakerMode.METRICS_ONLY),
}
"""Figure -> a text, and what is read of it: no default among them."""


def test_texts_of_one_guard_are_read_as_those_of_all() -> None:
    texts: dict[str, Any] = {key: text for key, (text, _) in TEXTS.items()}
    read: dict[str, Any] = {key: value for key, (_, value) in TEXTS.items()}
    own = BreakerSettings(**texts)
    of_all = Settings(**{f"breaker_{key}": text for key, text in texts.items()})
    assert own.explicit_fields() == read == breaker_of(of_all, "any")
    assert BreakerRules(**read) == BreakerRules(**breaker_of(Settings(), "any", own))
    assert list(TEXTS) == list(BREAKER_FIELD_TYPES)


@pytest.mark.parametrize("key", TEXTS)
def test_one_figure_of_a_guard_replaces_that_of_all_and_no_other(key: str) -> None:
    text, value = TEXTS[key]
    beside: dict[str, Any] = {"slow_call_s": "1s"} if key == "slow_is" else {}
    figures = breaker_of(Settings(), "db", BreakerSettings(**{key: text}, **beside))
    changed = {name for name, figure in figures.items() if figure != getattr(BreakerRules(), name)}
    assert changed == {key, *beside}
    assert figures[key] == value


def test_guard_settings_have_defaults_for_all_guards() -> None:
    own = BreakerSettings()
    assert own.explicit_fields() == {}
    assert repr(own) == "BreakerSettings()"
    assert repr(BreakerSettings(open_s="1m", ramp="none")) == "BreakerSettings(open_s=60.0, ramp=())"
    assert BreakerSettings(open_s="1m") == BreakerSettings(open_s=60)
    assert pickle.loads(pickle.dumps(BreakerSettings(failures=3))) == BreakerSettings(failures=3)
    with pytest.raises(FrozenInstanceError):
        own.failures = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        BreakerSettings(3)  # type: ignore[call-arg]


def test_all_faults_of_one_guard_are_reported_together() -> None:
    assert reported_for_one(failures=0, open_s=20, open_max_s=10, ramp=[0.5, 0.5], mode="off") == [
        "failures: must be a whole number from 1 to 10000 failures, not '0' (for example 1)",
        "ramp: must be a list, separated by commas, of rising shares between 0 and 1, not '[0.5, 0.5]' "
        "(0.5 does not rise above 0.5)",
        "mode: must be one of enforce, metrics_only, disabled, not 'off' (for example enforce)",
        "open_max_s: must be at least open_s, 20 (or lower open_s)",
    ]


CONTRADICTIONS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"open_max_s": 9}, "open_max_s", "must be at least BREAKER_OPEN_S, 10", "or lower BREAKER_OPEN_S"),
    (
        {"open_s": 20, "open_max_s": 19},
        "open_max_s",
        "must be at least BREAKER_OPEN_S, 20",
        "or lower BREAKER_OPEN_S",
    ),
    (
        {"timeout_s": 31, "trial_lease_s": 30},
        "trial_lease_s",
        "must be at least BREAKER_TIMEOUT_S, 31",
        "else a probe call within its time limit loses its slot",
    ),
    (
        {"trip": "failure_rate", "window": 9},
        "window",
        "must be at least BREAKER_MIN_CALLS, 10",
        "or lower BREAKER_MIN_CALLS",
    ),
    (
        {"trip": "failure_rate", "min_calls": 11},
        "min_calls",
        "must be at most BREAKER_WINDOW, 10",
        "else no rate is ever evaluated",
    ),
    (
        {"trip": "slow_rate"},
        "trip",
        "needs BREAKER_SLOW_CALL_S with slow_rate",
        "for streams BREAKER_FIRST_ITEM_S",
    ),
]


@pytest.mark.parametrize(("values", "blamed", "message", "hint"), CONTRADICTIONS)
def test_a_contradiction_of_all_guards(values: dict[str, Any], blamed: str, message: str, hint: str) -> None:
    assert reported(**{f"breaker_{key}": value for key, value in values.items()}) == [
        f"breaker_{blamed}: {message} ({hint})"
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"breaker_open_max_s": 10},
        {"breaker_open_s": 20, "breaker_open_max_s": None},
        {"breaker_timeout_s": 30, "breaker_trial_lease_s": 30},
        {"breaker_timeout_s": 60},
        {"breaker_min_calls": 11},
        {"breaker_trip": "failure_rate", "breaker_min_calls": 11, "breaker_window_s": 60},
        {"breaker_trip": "failure_rate", "breaker_min_calls": 9, "breaker_window": 9},
        {"breaker_trip": "slow_rate", "breaker_slow_call_s": 1},
        {"breaker_trip": "slow_rate", "breaker_first_item_s": 1},
        {"degrade_shed_at": 0.01, "degrade_margin": 0},
        {"degrade_shed_at": 0.3, "degrade_stale_at": 0.4, "degrade_static_at": 0.5},
        {"breaker_shared": True, "redis_url": "redis://h"},
        {"breaker_shared": False},
    ],
)
def test_what_fits_together_is_allowed(values: dict[str, Any]) -> None:
    Settings(**values)


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        (
            {"degrade_shed_at": 0.9},
            ["degrade_shed_at: must be below DEGRADE_STALE_AT, 0.9 (or raise DEGRADE_STALE_AT)"],
        ),
        (
            {"degrade_stale_at": 0.8},
            ["degrade_stale_at: must be above DEGRADE_SHED_AT, 0.8 (or lower DEGRADE_SHED_AT)"],
        ),
        (
            {"degrade_stale_at": 0.96},
            ["degrade_stale_at: must be below DEGRADE_STATIC_AT, 0.95 (or raise DEGRADE_STATIC_AT)"],
        ),
        (
            {"degrade_static_at": 0.9},
            ["degrade_static_at: must be above DEGRADE_STALE_AT, 0.9 (or lower DEGRADE_STALE_AT)"],
        ),
        (
            {"degrade_shed_at": 0.92, "degrade_stale_at": 0.91},
            ["degrade_shed_at: must be below DEGRADE_STALE_AT, 0.91 (or raise DEGRADE_STALE_AT)"],
        ),
        (
            {"degrade_margin": 0.8},
            [
                "degrade_margin: must be below DEGRADE_SHED_AT, 0.8 "
                "(else no load is low enough to shed nothing)"
            ],
        ),
        (
            {"degrade_shed_at": 0.05},
            ["degrade_shed_at: must be above degrade_margin, 0.05 (or lower degrade_margin)"],
        ),
        (
            {"degrade_shed_at": 0.05, "degrade_margin": 0.06},
            [
                "degrade_margin: must be below DEGRADE_SHED_AT, 0.05 "
                "(else no load is low enough to shed nothing)"
            ],
        ),
        (
            {"degrade_load_stale_s": 5, "sample_interval_s": 5},
            [
                "degrade_load_stale_s: must be above SAMPLE_INTERVAL_S, 5 s "
                "(else a sample expires before the next)"
            ],
        ),
        ({"breaker_shared": True}, ["breaker_shared: needs REDIS_URL (processes share state through Redis)"]),
    ],
)
def test_thresholds_and_what_is_shared(values: dict[str, Any], problems: list[str]) -> None:
    assert reported(**values) == problems


def test_invalid_value_is_not_checked_against_others() -> None:
    assert len(reported(breaker_open_s=0, breaker_open_max_s=1)) == 1
    assert len(reported_for_one(open_s=0, open_max_s=1)) == 1


def test_contradictions_are_reported_together_in_page_order() -> None:
    problems = reported(
        breaker_open_max_s=1, breaker_trip="slow_rate", degrade_shed_at=0.99, breaker_shared=True, workers=0
    )
    assert [problem.partition(":")[0] for problem in problems] == [
        "workers",
        "breaker_open_max_s",
        "breaker_trip",
        "breaker_shared",
        "degrade_shed_at",
    ]


FIGURES = st.fixed_dictionaries(
    {},
    optional={
        "open_s": st.sampled_from([5, 10, 20]),
        "open_max_s": st.sampled_from([5, 10, 20]),
        "timeout_s": st.sampled_from([5, 10]),
        "trial_lease_s": st.sampled_from([5, 10]),
        "trip": st.sets(st.sampled_from(TripRule), min_size=1),
        "window": st.sampled_from([5, 10, 20]),
        "window_s": st.just(60),
        "min_calls": st.sampled_from([5, 10, 20]),
        "slow_call_s": st.just(1),
    },
)


def or_faults(make: Callable[..., Any], **values: Any) -> Any:
    """What is made of the values, or the places that are told."""
    try:
        return make(**values)
    except ConfigError as error:
        return {problem.variable for problem in error.problems}


@given(FIGURES, FIGURES)
def test_a_guard_never_gets_figures_that_contradict_each_other(
    of_all: dict[str, Any], own: dict[str, Any]
) -> None:
    """Whatever is accepted works together, and what is refused is blamed on one who wrote it."""
    settings = or_faults(Settings, **{f"breaker_{key}": value for key, value in of_all.items()})
    if not isinstance(settings, Settings):
        assert settings <= {f"breaker_{key}" for key in of_all}
        return
    figures = or_faults(lambda **own: breaker_of(settings, "db", BreakerSettings(**own)), **own)
    if not isinstance(figures, dict):
        assert {place.rpartition(".")[2] for place in figures} <= set(own)
        return
    rules = BreakerRules(**figures)
    assert rules.open_max_s is None or rules.open_s <= rules.open_max_s
    assert rules.timeout_s is None or rules.trial_lease_s is None or rules.timeout_s <= rules.trial_lease_s
    by_share = rules.trip & {TripRule.FAILURE_RATE, TripRule.SLOW_RATE}
    assert not by_share or rules.window_s is not None or rules.min_calls <= rules.window
    assert TripRule.SLOW_RATE not in rules.trip or rules.slow_call_s is not None


def test_contradiction_in_code_names_the_other_setting() -> None:
    settings = Settings(breaker_open_max_s=300, guards={"db": {"timeout_s": 5}})
    with pytest.raises(ConfigError) as caught:
        breaker_of(settings, "db", BreakerSettings(open_s=301, trial_lease_s=4))
    assert [str(problem) for problem in caught.value.problems] == [
        "guards.db.open_s: must be at most BREAKER_OPEN_MAX_S, 300 (or raise BREAKER_OPEN_MAX_S)",
        "guards.db.trial_lease_s: must be at least guards.db.timeout_s, 5 "
        "(else a probe call within its time limit loses its slot)",
    ]


SHARE = "failure_rate or slow_rate in BREAKER_TRIP"
UNREAD: dict[str, tuple[object, dict[str, Any], str]] = {
    "failures": (3, {"breaker_trip": "failure_rate"}, "consecutive in BREAKER_TRIP"),
    "failure_window_s": (3, {"breaker_trip": "failure_rate"}, "consecutive in BREAKER_TRIP"),
    "window": (20, {}, SHARE),
    "window_s": (20, {}, SHARE),
    "min_calls": (5, {}, SHARE),
    "failure_rate": (0.2, {}, "failure_rate in BREAKER_TRIP"),
    "slow_rate": (0.2, {}, "slow_rate in BREAKER_TRIP"),
    "slow_is": ("separate", {}, "BREAKER_SLOW_CALL_S or BREAKER_FIRST_ITEM_S"),
    "ramp_step_s": (2, {}, "BREAKER_RAMP"),
    "open_max_s": (20, {}, "BREAKER_BACKOFF above 1"),
}
READERS: dict[str, dict[str, Any]] = {
    "failures": {"trip": "consecutive"},
    "failure_window_s": {"trip": "consecutive,failure_rate"},
    "window": {"trip": "failure_rate"},
    "window_s": {"trip": "slow_rate", "slow_call_s": 1},
    "min_calls": {"trip": "failure_rate"},
    "failure_rate": {"trip": "failure_rate"},
    "slow_rate": {"trip": "slow_rate", "slow_call_s": 1},
    "slow_is": {"first_item_s": 1},
    "ramp_step_s": {"ramp": "50%"},
    "open_max_s": {"on_429": "open"},
}


@pytest.mark.parametrize("key", UNREAD)
def test_unused_guard_setting_is_reported(key: str) -> None:
    value, beside, needed = UNREAD[key]
    given = {f"breaker_{key}": value}
    variable = f"BREAKER_{key.upper()}"
    assert advised(**given, **beside) == {variable: f"has no effect without {needed}"}
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
    ({"window": 20, "window_s": 60, "trip": "failure_rate"}, "window", "has no effect beside {window_s}"),
    (
        {"slow_call_s": 2, "timeout_s": 2},
        "slow_call_s",
        "never finds a slow coroutine: {timeout_s} ends it before {slow_call_s}",
    ),
]


@pytest.mark.parametrize(("values", "about", "message"), ADVICE)
def test_advice_on_all_guards_and_on_one(values: dict[str, Any], about: str, message: str) -> None:
    variables = {key: f"BREAKER_{key.upper()}" for key in BREAKER_FIELD_TYPES}
    of_all = {f"breaker_{key}": value for key, value in values.items()}
    assert advised(**of_all) == {variables[about]: message.format(**variables)}
    own = {f"guards.db.{about}": message.format(**{key: key for key in BREAKER_FIELD_TYPES})}
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


@pytest.mark.parametrize("text", ["0.1", "0.1,0.5", "0.001,0.002,0.999"])
def test_a_ramp_reads_back(text: str) -> None:
    form = settings_table()["breaker_ramp"].field_type
    assert form.text(form.parse(text)) == text
    assert form.text(()) == "none"


def test_the_rules_are_written_in_the_order_of_the_page() -> None:
    form = settings_table()["breaker_trip"].field_type
    assert form.text(frozenset(reversed(TripRule))) == "consecutive,failure_rate,slow_rate"
