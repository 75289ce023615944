"""The tables ``[guards.<name>]``, and the same in code."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.settings import (
    PREFIX,
    BreakerSettings,
    ConfigError,
    GuardPolicy,
    Settings,
    SettingSource,
)
from autoglm_throttle.settings.problems import quoted_key
from autoglm_throttle.types import Criticality, TripRule
from tests.settings.guard_settings import breaker_of

ORIGIN = "https://a.b:1"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "throttle.toml"


def read(file: Path, text: str, **environ: str) -> Settings:
    file.write_text(text, "utf-8")
    return Settings.from_env(
        {PREFIX + "CONFIG_FILE": str(file)} | {PREFIX + k: v for k, v in environ.items()}
    )


def reported(file: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(file, text, **environ)
    return [str(problem) for problem in caught.value.problems]


def reported_for_code(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return [str(problem) for problem in caught.value.problems]


def test_guard_tables_of_the_file_are_read(file: Path) -> None:
    settings = read(
        file,
        """\
breaker_failures = 7

[guards.vector-db]
failures = 3
trip = ["consecutive", "failure_rate"]
criticality = "non_core"
shed_above = "85%"
max_stale_s = "5m"

[guards."https://a.b:1"]
open_s = "30s"
""",
        BREAKER_OPEN_S="20",
    )
    policy = settings.guards["vector-db"]
    assert (policy.name, policy.failures, policy.shed_above, policy.max_stale_s) == (
        "vector-db",
        3,
        0.85,
        300.0,
    )
    assert policy.criticality is Criticality.NON_CORE
    assert policy.explicit() == {
        "failures": 3,
        "trip": frozenset({TripRule.CONSECUTIVE, TripRule.FAILURE_RATE}),
        "name": "vector-db",
        "criticality": Criticality.NON_CORE,
        "shed_above": 0.85,
        "max_stale_s": 300.0,
    }
    assert settings.guards[ORIGIN].explicit() == {"open_s": 30.0, "name": ORIGIN}
    assert list(settings.guards) == ["vector-db", ORIGIN]
    assert settings.source_of("guards") is SettingSource.CONFIG_FILE


def test_code_wins_over_the_table_over_the_defaults(file: Path) -> None:
    text = "breaker_window = 20\n[guards.db]\nfailures = 3\nopen_s = 4\n"
    settings = read(file, text, BREAKER_FAILURES="7")
    made = breaker_of(settings, "db", BreakerSettings(failures=2))
    assert (made.failures, made.open_s, made.window) == (2, 4.0, 20)
    assert breaker_of(settings, "db").failures == 3
    assert breaker_of(settings, "other").failures == 7


@pytest.mark.parametrize(
    "name", [ORIGIN, "a.b", "x y", "größe", 'say "hi"', "back\\slash", "a]b", "a=b", "1", ""]
)
@pytest.mark.parametrize("literal", [False, True], ids=["basic", "literal"])
def test_guard_of_any_printable_name_has_its_line(file: Path, name: str, *, literal: bool) -> None:
    key = f"'{name}'" if literal else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    text = f"# a comment\n[ guards . {key} ] # another\nfailures = 3\nopen_s = 0\n"
    if not name:
        (_, problem) = reported(file, text)
        assert problem.startswith('throttle.toml:2: guards."": must be a name of 1 to 200')
        return
    (problem,) = reported(file, text)
    assert problem.startswith(
        f"throttle.toml:4: guards.{quoted_key(name)}.open_s: must be a number from 0.001"
    )
    settings = read(file, text.replace("open_s = 0", "open_s = 9"))
    assert settings.guards[name].open_s == 9.0
    place = f"guards.{quoted_key(name)}.failures"
    assert settings.place_of(place) == f"throttle.toml:3: {place}"


@pytest.mark.parametrize(
    "text",
    [
        f'[guards]\n"{ORIGIN}" = {{ open_s = 0 }}\n',
        f'[guards]\n"{ORIGIN}".open_s = 0\n',
        f"[guards]\n'{ORIGIN}'.'open_s' = 0\n",
        f'\nguards."{ORIGIN}".open_s = 0\n',
    ],
)
def test_guard_in_other_notation_has_its_line(file: Path, text: str) -> None:
    (problem,) = reported(file, text)
    assert problem.startswith('throttle.toml:2: guards."https://a.b:1".open_s: must be')


def test_guard_with_the_prefix_of_another_is_distinct(file: Path) -> None:
    text = '[guards.a]\nfailures = 3\n[guards."a.b"]\nfailures = 0\n[guards.a-b]\nfailures = 0\n'
    assert [problem.partition(": must")[0] for problem in reported(file, text)] == [
        'throttle.toml:4: guards."a.b".failures',
        "throttle.toml:6: guards.a-b.failures",
    ]


def test_problems_of_guards_are_reported_with_their_places(file: Path) -> None:
    text = """\
workers = 0
degrade_margin = 0.5
breaker_open_max_s = 9
breaker_window = 20

[guards.one]
failurs = 3
mode = "off"
shed_above = 0.5

[guards.two]
open_max_s = 5
timeout_s = 40
trial_lease_s = 30

[guards.three]
criticality = "core"
shed_above = 0.6
min_calls = 30

[guards]
four = 5
"""
    assert reported(file, text, BREAKER_TRIP="failure_rate") == [
        "throttle.toml:1: workers: must be a whole number from 1 to 10000 processes, not '0' (for example 1)",
        "throttle.toml:3: breaker_open_max_s: must be at least BREAKER_OPEN_S, 10 (or lower BREAKER_OPEN_S)",
        "throttle.toml:8: guards.one.mode: must be one of enforce, metrics_only, disabled, not 'off' "
        "(for example enforce)",
        "throttle.toml:7: guards.one.failurs: is not a known key (did you mean failures?)",
        "throttle.toml:9: guards.one.shed_above: needs the criticality non_core beside it "
        "(core features are never shed)",
        "throttle.toml:14: guards.two.trial_lease_s: must be at least timeout_s, 40 "
        "(else a probe call within its time limit loses its slot)",
        "throttle.toml:18: guards.three.shed_above: needs the criticality non_core beside it "
        "(core features are never shed)",
        'throttle.toml:22: guards.four: must be a table (for example [guards.vector-db] with open_s = "30s")',
        "throttle.toml:9: guards.one.shed_above: must be above degrade_margin, 0.5 (or lower degrade_margin)",
        "throttle.toml:12: guards.two.open_max_s: must be at least BREAKER_OPEN_S, 10 "
        "(or lower BREAKER_OPEN_S)",
        "throttle.toml:19: guards.three.min_calls: must be at most breaker_window, 20 "
        "(else no rate is ever evaluated)",
    ]


@pytest.mark.parametrize(
    ("own", "of_all", "problem"),
    [
        (
            {"open_s": 400},
            {"breaker_open_max_s": 300},
            "open_s: must be at most breaker_open_max_s, 300 (or raise breaker_open_max_s)",
        ),
        (
            {"timeout_s": 40},
            {"breaker_trial_lease_s": 30},
            "timeout_s: must be at most breaker_trial_lease_s, 30 (or raise breaker_trial_lease_s)",
        ),
        (
            {"trip": "failure_rate"},
            {"breaker_window": 10},
            "trip: has a rate that is never evaluated: breaker_window, 10 is less than breaker_min_calls, 20 "
            "(lower breaker_min_calls, or raise breaker_window)",
        ),
        (
            {"failure_rate": 0.3},
            {"breaker_window": 10},
            "failure_rate: has a rate that is never evaluated: breaker_window, 10 is less than "
            "breaker_min_calls, 20 (lower breaker_min_calls, or raise breaker_window)",
        ),
        (
            {"slow_rate": 0.3},
            {},
            "slow_rate: needs BREAKER_SLOW_CALL_S with slow_rate (for streams breaker_first_item_s)",
        ),
        (
            {"trip": "failure_rate", "window": 5},
            {},
            "window: must be at least breaker_min_calls, 20 (or lower breaker_min_calls)",
        ),
        (
            {"trip": "slow_rate", "slow_is": "separate"},
            {},
            "trip: needs BREAKER_SLOW_CALL_S with slow_rate (for streams breaker_first_item_s)",
        ),
        (
            {"shed_above": 0.05, "criticality": "non_core"},
            {},
            "shed_above: must be above degrade_margin, 0.05 (or lower degrade_margin)",
        ),
    ],
)
def test_guard_settings_are_checked_against_the_defaults(
    own: dict[str, Any], of_all: dict[str, Any], problem: str
) -> None:
    assert reported_for_code(guards={"db": own}, **of_all) == [f"guards.db.{problem}"]
    assert reported_for_code(guards=[GuardPolicy("db", **own)], **of_all) == [f"guards.db.{problem}"]


@pytest.mark.parametrize(
    ("own", "of_all"),
    [
        ({"trip": "slow_rate"}, {"breaker_slow_call_s": 1}),
        ({"trip": "slow_rate", "first_item_s": 1}, {}),
        ({"trip": "failure_rate", "window_s": 60}, {"breaker_window": 10}),
        ({"open_s": 400, "open_max_s": 500}, {"breaker_open_max_s": 300}),
        ({"shed_above": 0.05, "criticality": "non_core"}, {"degrade_margin": 0.04}),
        ({"shed_above": 0.9, "criticality": "non_core"}, {}),
        ({}, {}),
    ],
)
def test_guard_that_agrees_with_the_defaults_is_allowed(own: dict[str, Any], of_all: dict[str, Any]) -> None:
    assert Settings(guards={"db": own}, **of_all).guards["db"] == GuardPolicy("db", **own)


def test_guards_are_not_checked_against_invalid_settings() -> None:
    problems = reported_for_code(
        guards={"db": {"open_s": 400, "shed_above": 0.05, "criticality": "non_core"}},
        breaker_open_max_s="never",
        degrade_margin=5,
    )
    assert [problem.partition(":")[0] for problem in problems] == ["breaker_open_max_s", "degrade_margin"]


def test_guard_is_shed_only_if_declared_not_core() -> None:
    """Else the first call of a guard that no code has registered would find out."""
    needed = "shed_above: needs the criticality non_core beside it (core features are never shed)"
    for own in ({"shed_above": 0.9}, {"shed_above": 0.9, "criticality": "core"}):
        assert reported_for_code(guards={"db": own}) == [f"guards.db.{needed}"]
        with pytest.raises(ConfigError, match=r"^shed_above: needs the criticality"):
            GuardPolicy("db", **own)
    (problem,) = reported_for_code(guards={"db": {"shed_above": 0.9, "criticality": "noncore"}})
    assert problem.startswith("guards.db.criticality: must be one of core, non_core")


def test_guards_may_be_a_list_or_a_table() -> None:
    policy = GuardPolicy("db", failures=3)
    shapes: list[Any] = [
        [policy],
        (policy,),
        {"db": policy},
        {"db": {"failures": "3"}},
        {"db": {"failures": 3, "open_s": None}},
        {"db": BreakerSettings(failures=3)},
        Settings(guards=[policy]).guards,
    ]
    for given in shapes:
        settings = Settings(guards=given)
        assert settings.guards == {"db": policy}
        assert settings.place_of("guards.db.failures") == "guards.db.failures"
        assert settings.source_of("guards") is SettingSource.CODE
    assert Settings().guards == {}


@pytest.mark.parametrize(
    ("given", "shown"),
    [(5, "5"), ("db", "db"), ({5: {}}, "{5: {}}"), ([BreakerSettings()], "[BreakerSettings()]")],
)
def test_guards_of_another_shape_are_a_problem(given: Any, shown: str) -> None:
    example = 'for example [guards.vector-db] with open_s = "30s"'
    assert reported_for_code(guards=given) == [f"guards: must be guards by name, not '{shown}' ({example})"]


def test_guards_with_two_names_or_twice_are_a_problem() -> None:
    assert reported_for_code(guards={"db": GuardPolicy("other")}) == ["guards.db: holds that of other"]
    twice = [GuardPolicy("a.b"), GuardPolicy("a.b")]
    assert reported_for_code(guards=twice) == ['guards."a.b": is given twice']


def test_guard_name_too_long_or_unprintable_is_rejected() -> None:
    for name in ("a\nb", "x" * 201, "", 5):
        with pytest.raises(ConfigError, match="name: must be a name of 1 to 200 printable characters"):
            GuardPolicy(name)  # type: ignore[arg-type]
    (problem,) = reported_for_code(guards={"a\nb": {}})
    assert problem.startswith('guards."a\\nb": must be a name')
    assert Settings(guards={"x" * 200: {}}).guards.keys() == {"x" * 200}


def test_guard_policies_are_frozen_and_can_be_copied() -> None:
    settings = Settings(guards={"db": {"failures": 3}})
    with pytest.raises(AttributeError, match="frozen"):
        settings.guards["db"].failures = 4
    for other in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings)), settings.model_copy()):
        assert other == settings
        assert other.place_of("guards.db.mode") == "guards.db.mode"
    assert repr(settings) == "Settings(guards={'db': GuardPolicy(failures=3, name='db')})"


def test_variable_for_guards_names_the_config_file() -> None:
    with pytest.raises(ConfigError, match="guards stand in CONFIG_FILE or in code"):
        Settings.from_env({PREFIX + "GUARDS": "db"})


def test_code_replaces_the_guards_of_the_file(file: Path) -> None:
    file.write_text("[guards.db]\nfailures = 3\n[guards.other]\n")
    settings = Settings.from_env({}, config_file=file, guards={"db": {"open_s": 5}})
    assert settings.guards == {"db": GuardPolicy("db", open_s=5)}


def test_wrong_value_of_a_guard_is_one_problem() -> None:
    (problem,) = reported_for_code(
        guards={"db": {"open_s": 400, "open_max_s": "never"}}, breaker_open_max_s=300
    )
    assert problem.startswith("guards.db.open_max_s: must be a number")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("vector-db_2", "vector-db_2"),
        ("a.b", '"a.b"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("", '""'),
    ],
)
def test_guard_name_is_reported_as_written_in_the_file(name: str, key: str) -> None:
    assert quoted_key(name) == key
