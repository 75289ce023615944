"""Settings of breakers and of degradation, and those of one guard in code."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings import BreakerSettings, ConfigError, Settings, SettingSource, settings_table
from autoglm_throttle.types import BreakerMode, SlowCallMode, StreamSettleMode, TooManyRequestsMode, TripRule
from tests.settings.guard_settings import breaker_of


def reported(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return [str(problem) for problem in caught.value.problems]


def reported_for_one(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        BreakerSettings(**values)
    return [str(problem) for problem in caught.value.problems]


def test_the_defaults_are_the_founding_figures() -> None:
    settings = Settings()
    assert (settings.breaker.failures, settings.breaker.open_s, settings.breaker.half_open_max) == (
        5,
        10.0,
        1,
    )
    thresholds = (settings.degradation.shed_at, settings.degradation.stale_at, settings.degradation.static_at)
    assert thresholds == (0.80, 0.90, 0.95)


def test_breaker_without_own_settings_has_the_defaults() -> None:
    assert breaker_of(Settings(), "any") == BreakerSettings() == Settings().breaker
    assert breaker_of(Settings(breaker_failures=7), "any") == BreakerSettings(failures=7)


def test_guard_has_the_settings_of_all_guards_without_prefix() -> None:
    names = {f"breaker_{name}" for name in BreakerSettings.model_fields}
    shared = {"breaker_shared", "breaker_store_deadline_s", "breaker_max_names"}
    assert names | shared == {name for name in settings_table() if name.startswith("breaker_")}


@pytest.mark.parametrize(
    ("values", "stale_s"),
    [
        ({}, 3.0),
        ({"sample_interval_s": 0.2}, 3.0),
        ({"sample_interval_s": 5}, 15.0),
        ({"sample_interval_s": 5, "degrade_load_stale_s": 6}, 6.0),
    ],
)
def test_load_is_known_until_three_samples_are_missing(values: dict[str, Any], stale_s: float) -> None:
    settings = Settings(**values)
    assert settings.degradation.load_stale_s == stale_s
    assert (settings.source_of("degrade_load_stale_s") == "code") is ("degrade_load_stale_s" in values)


def test_starred_settings_are_those_of_the_readme() -> None:
    ours = {name for name in settings_table() if name.startswith(("breaker_", "degrade_"))}
    assert [name for name, known in settings_table().items() if known.starred and name in ours] == [
        "breaker_failures",
        "breaker_open_s",
        "degrade_shed_at",
    ]


@pytest.mark.parametrize(("text", "size"), [("64KiB", 65_536), ("1 MB", 1_000_000), ("0.5kib", 512), (7, 7)])
def test_size_with_unit_is_read_in_bytes(text: Any, size: int) -> None:
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
    "trip": (["consecutive", TripRule.FAILURE_RATE, "slow_rate"], frozenset(TripRule)),
    "failure_window_s": ("2m", 120.0),
    "window": ("20", 20),
    "window_s": ("30s", 30.0),
    "min_calls": ("15", 15),
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
"""Key -> a text, and its value: no default among them."""


@pytest.mark.parametrize("other_window", ["window", "window_s"])
def test_texts_of_one_guard_are_read_as_those_of_all(other_window: str) -> None:
    texts: dict[str, Any] = {key: text for key, (text, _) in TEXTS.items() if key != other_window}
    values: dict[str, Any] = {key: TEXTS[key][1] for key in texts}
    own = BreakerSettings(**texts)
    of_all = Settings(**{f"breaker_{key}": text for key, text in texts.items()})
    assert own.explicit() == values
    assert dict(breaker_of(of_all, "any")) == values | {other_window: None}
    assert dict(breaker_of(Settings(), "any", own)) == dict(own)
    assert set(TEXTS) == set(BreakerSettings.model_fields)


@pytest.mark.parametrize("key", TEXTS)
def test_one_value_of_a_guard_replaces_that_of_all_alone(key: str) -> None:
    text, value = TEXTS[key]
    needed: dict[str, Any] = {"slow_call_s": "1s"} if key in {"slow_is", "slow_rate", "trip"} else {}
    made = dict(breaker_of(Settings(), "db", BreakerSettings(**{key: text}, **needed)))
    defaults = dict(BreakerSettings())
    implied = {"trip"} if key in {"failure_rate", "slow_rate"} else set()
    assert {name for name in made if made[name] != defaults[name]} == {key, *needed, *implied}
    assert made[key] == value


IMPLIED: list[tuple[dict[str, Any], str]] = [
    ({"failure_rate": 0.3}, "failure_rate"),
    ({"failure_rate": 0.5}, "failure_rate"),
    ({"slow_rate": "25%"}, "slow_rate"),
    ({"failure_rate": 0.3, "slow_rate": 0.3}, "failure_rate,slow_rate"),
    ({"failure_rate": 0.3, "failures": 3}, "consecutive,failure_rate"),
    ({"failures": 3}, "consecutive"),
    ({"min_calls": 30, "window_s": 60}, "consecutive"),
    ({"trip": "consecutive,failure_rate", "failure_rate": 0.3}, "consecutive,failure_rate"),
    ({"trip": None, "failure_rate": 0.3}, "failure_rate"),
]
"""Values of one place, and the rules that they put in force."""


@pytest.mark.parametrize(("values", "trip"), IMPLIED)
def test_rate_without_trip_puts_its_rule_in_force(values: dict[str, Any], trip: str) -> None:
    of_all = {f"breaker_{key}": value for key, value in values.items()}
    defaults = Settings(breaker_slow_call_s=1)
    found = [
        breaker_of(Settings(**of_all, breaker_slow_call_s=1), "db").trip,
        breaker_of(Settings(guards={"db": values}, breaker_slow_call_s=1), "db").trip,
        breaker_of(defaults, "db", BreakerSettings(**values)).trip,
    ]
    assert found == [frozenset(map(TripRule, trip.split(",")))] * 3


def test_rate_of_a_guard_wins_over_trip_of_all() -> None:
    settings = Settings(breaker_trip="consecutive", guards={"a": {"failure_rate": 0.3}})
    in_code = breaker_of(settings, "b", BreakerSettings(failure_rate=0.3))
    assert breaker_of(settings, "a").trip == in_code.trip == {TripRule.FAILURE_RATE}
    by_rate = Settings(breaker_failure_rate=0.3, guards={"a": {"trip": "consecutive"}})
    assert breaker_of(by_rate, "a").trip == {TripRule.CONSECUTIVE}


def test_implied_rule_has_the_place_of_its_rate() -> None:
    settings = Settings(breaker_slow_rate=0.3, breaker_first_item_s=1)
    assert settings.source_of("breaker_trip") is SettingSource.CODE
    assert settings.place_of("breaker_trip") == "breaker_slow_rate"
    assert Settings(breaker_window=9).source_of("breaker_trip") is SettingSource.DEFAULT


@pytest.mark.parametrize(
    ("of_all", "own", "windows"),
    [
        ({}, {}, (None, None)),
        ({"breaker_window": 30}, {}, (30, None)),
        ({"breaker_window": 30}, {"window_s": 5}, (None, 5.0)),
        ({"breaker_window_s": 30}, {"window": 25}, (25, None)),
        ({"breaker_window": 30}, {"window": 25}, (25, None)),
    ],
)
def test_window_of_a_guard_replaces_one_of_the_other_kind(
    of_all: dict[str, Any], own: dict[str, Any], windows: tuple[int | None, float | None]
) -> None:
    in_code = breaker_of(Settings(**of_all), "db", BreakerSettings(**own))
    in_table = breaker_of(Settings(guards={"db": own | {"failures": 3}}, **of_all), "db")
    assert (in_code.window, in_code.window_s) == (in_table.window, in_table.window_s) == windows


@pytest.mark.parametrize("key", BreakerSettings.model_fields)
def test_none_in_a_guard_leaves_the_value_of_all(key: str) -> None:
    unset: dict[str, Any] = {key: None}
    assert BreakerSettings(**unset).explicit() == {}
    of_all = Settings(breaker_failures=7, breaker_timeout_s=2)
    assert breaker_of(of_all, "db", BreakerSettings(**unset)) == breaker_of(of_all, "db")


def test_breaker_settings_are_frozen_and_show_what_was_set() -> None:
    own = BreakerSettings()
    assert own.explicit() == {}
    assert repr(own) == "BreakerSettings()"
    assert repr(BreakerSettings(open_s="1m", ramp="none")) == "BreakerSettings(open_s=60.0, ramp=())"
    assert BreakerSettings(open_s="1m") == BreakerSettings(open_s=60)
    copied = pickle.loads(pickle.dumps(BreakerSettings(failures=3)))
    assert copied == BreakerSettings(failures=3)
    assert copied.explicit() == {"failures": 3}
    with pytest.raises(AttributeError, match="frozen"):
        own.failures = 3
    positional: Any = (3,)
    with pytest.raises(TypeError):
        BreakerSettings(*positional)


@pytest.mark.parametrize(
    ("values", "lease_s", "needed"),
    [
        ({}, 30.0, 1),
        ({"timeout_s": 9}, 30.0, 1),
        ({"timeout_s": 11}, 33.0, 1),
        ({"timeout_s": 11, "trial_lease_s": 12}, 12.0, 1),
        ({"half_open_max": 3}, 30.0, 3),
        ({"half_open_max": 3, "success_threshold": 2}, 30.0, 2),
    ],
)
def test_values_not_set_follow_from_others(values: dict[str, Any], lease_s: float, needed: int) -> None:
    made = BreakerSettings(**values)
    assert (made.lease_s, made.successes_needed) == (lease_s, needed)


def test_open_time_grows_up_to_its_maximum() -> None:
    growing = BreakerSettings(open_s=10, backoff=2)
    assert [growing.wait_s(rounds) for rounds in range(4)] == [10.0, 20.0, 40.0, 80.0]
    limited = BreakerSettings(open_s=10, backoff=2, open_max_s=30)
    assert [limited.wait_s(rounds) for rounds in (0, 1, 2, 10**6)] == [10.0, 20.0, 30.0, 30.0]
    assert growing.wait_s(10**6) == growing.wait_s(10**7) > 1e12


def test_all_problems_of_one_guard_are_reported_together() -> None:
    assert reported_for_one(failures=0, open_s=20, open_max_s=10, ramp=[0.5, 0.5], mode="off") == [
        "failures: must be a whole number from 1 to 10000 failures, not '0' (for example 1)",
        "mode: must be one of enforce, metrics_only, disabled, not 'off' (for example enforce)",
        "ramp: must be a list, separated by commas, of rising shares between 0 and 1, not '[0.5, 0.5]' "
        "(0.5 does not rise above 0.5)",
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
        "must be at least breaker_min_calls, 20",
        "or lower breaker_min_calls",
    ),
    (
        {"trip": "failure_rate", "min_calls": 11, "window": 10},
        "min_calls",
        "must be at most breaker_window, 10",
        "else no rate is ever evaluated",
    ),
    (
        {"window": 30, "window_s": 30},
        "window",
        "excludes breaker_window_s, 30",
        "leave one of them out",
    ),
    (
        {"trip": "consecutive", "failure_rate": 0.3},
        "failure_rate",
        "needs failure_rate in BREAKER_TRIP",
        "or leave BREAKER_TRIP out",
    ),
    (
        {"trip": "consecutive,failure_rate", "slow_rate": 0.3},
        "slow_rate",
        "needs slow_rate in BREAKER_TRIP",
        "or leave BREAKER_TRIP out",
    ),
    (
        {"slow_rate": 0.3},
        "slow_rate",
        "needs BREAKER_SLOW_CALL_S with slow_rate",
        "for streams breaker_first_item_s",
    ),
    (
        {"trip": "slow_rate"},
        "trip",
        "needs BREAKER_SLOW_CALL_S with slow_rate",
        "for streams breaker_first_item_s",
    ),
]


@pytest.mark.parametrize(("values", "key", "message", "hint"), CONTRADICTIONS)
def test_contradiction_of_all_guards_is_one_problem(
    values: dict[str, Any], key: str, message: str, hint: str
) -> None:
    assert reported(**{f"breaker_{name}": value for name, value in values.items()}) == [
        f"breaker_{key}: {message} ({hint})"
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"breaker_open_max_s": 10},
        {"breaker_open_s": 20, "breaker_open_max_s": None},
        {"breaker_timeout_s": 30, "breaker_trial_lease_s": 30},
        {"breaker_timeout_s": 60},
        {"breaker_min_calls": 11, "breaker_window": 10},
        {"breaker_trip": "failure_rate", "breaker_min_calls": 11, "breaker_window_s": 60},
        {"breaker_trip": "failure_rate", "breaker_min_calls": 100_000},
        {"breaker_trip": "failure_rate", "breaker_min_calls": 9, "breaker_window": 9},
        {"breaker_trip": "slow_rate", "breaker_slow_call_s": 1},
        {"breaker_trip": "slow_rate", "breaker_first_item_s": 1},
        {"degrade_shed_at": 0.01, "degrade_margin": 0},
        {"degrade_shed_at": 0.3, "degrade_stale_at": 0.4, "degrade_static_at": 0.5},
        {"breaker_shared": True, "redis_url": "redis://h"},
        {"breaker_shared": False},
    ],
)
def test_breaker_settings_that_agree_are_allowed(values: dict[str, Any]) -> None:
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
def test_wrong_thresholds_name_the_other_setting(values: dict[str, Any], problems: list[str]) -> None:
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
        "breaker_trip",
        "breaker_open_max_s",
        "breaker_shared",
        "degrade_shed_at",
    ]


VALUES = st.fixed_dictionaries(
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
        "failure_rate": st.just(0.3),
        "slow_call_s": st.just(1),
    },
)


def made_or_places(make: Callable[..., Any], **values: Any) -> Any:
    """Return the result of a call, or the places of its problems."""
    try:
        return make(**values)
    except ConfigError as error:
        return {problem.variable for problem in error.problems}


@given(VALUES, VALUES)
def test_accepted_settings_of_a_guard_agree(of_all: dict[str, Any], own: dict[str, Any]) -> None:
    """Accepted values agree; a problem stands where a value was written."""
    settings = made_or_places(Settings, **{f"breaker_{key}": value for key, value in of_all.items()})
    if not isinstance(settings, Settings):
        assert settings <= {f"breaker_{key}" for key in of_all}
        return
    made = made_or_places(lambda **own: breaker_of(settings, "db", BreakerSettings(**own)), **own)
    if not isinstance(made, BreakerSettings):
        assert {place.rpartition(".")[2] for place in made} <= set(own)
        return
    assert made.open_max_s is None or made.open_s <= made.open_max_s
    assert made.timeout_s is None or made.trial_lease_s is None or made.timeout_s <= made.trial_lease_s
    by_rate = made.trip & {TripRule.FAILURE_RATE, TripRule.SLOW_RATE}
    assert None in {made.window, made.window_s}
    assert not by_rate or made.window is None or made.min_calls <= made.window
    assert "failure_rate" not in {*of_all, *own} or TripRule.FAILURE_RATE in made.trip or "trip" in own
    assert TripRule.SLOW_RATE not in made.trip or made.slow_call_s is not None


def test_contradiction_in_code_names_the_other_setting() -> None:
    settings = Settings(breaker_open_max_s=300, guards={"db": {"timeout_s": 5}})
    with pytest.raises(ConfigError) as caught:
        breaker_of(settings, "db", BreakerSettings(open_s=301, trial_lease_s=4))
    assert [str(problem) for problem in caught.value.problems] == [
        "guards.db.open_s: must be at most breaker_open_max_s, 300 (or raise breaker_open_max_s)",
        "guards.db.trial_lease_s: must be at least guards.db.timeout_s, 5 "
        "(else a probe call within its time limit loses its slot)",
    ]


@pytest.mark.parametrize("text", ["0.1", "0.1,0.5", "0.001,0.002,0.999"])
def test_text_of_a_ramp_reads_back(text: str) -> None:
    form = settings_table()["breaker_ramp"].field_type
    assert form.text(form.parse(text)) == text
    assert form.text(()) == "none"


def test_trip_rules_are_written_in_one_order() -> None:
    form = settings_table()["breaker_trip"].field_type
    assert form.text(frozenset(reversed(TripRule))) == "consecutive,failure_rate,slow_rate"
