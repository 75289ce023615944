"""The TOML of CONFIG_FILE."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings import PREFIX, ConfigError, Settings, SettingSource
from autoglm_throttle.settings.problems import quoted_key
from autoglm_throttle.settings.sources import BYTES_AT_MOST, place_in_file
from autoglm_throttle.settings.sources import _lines as lines_of
from autoglm_throttle.types import Priority
from docs.generate.settings import EXAMPLE

FULL = """\
tier_samples = 5
tiers = [[80, 0.5], [90, 0]]
exempt_paths = ["/health"]
workers = 3

[[routes]]
pattern = "/payments/*"
priority = "high"

[[routes]]
pattern = "/v1/chat"
methods = ["POST"]
cost = 4
name = "chat"

[plans.gold]
user_limit = "1000/minute"
members = ["07f3a9c2d4e5b617"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "throttle.toml"


def read(file: Path, text: str, **environ: str) -> Settings:
    file.write_text(text)
    return Settings.from_env(
        {PREFIX + "CONFIG_FILE": str(file)} | {PREFIX + k: v for k, v in environ.items()}
    )


def reported(file: Path, text: str) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        read(file, text)
    return [(problem.variable, problem.hint) for problem in caught.value.problems]


def test_settings_routes_and_plans_are_read(file: Path) -> None:
    settings = read(file, FULL, KEY_SECRET="0123456789abcdef", WORKERS="2")
    assert settings.control.tiers == ((80.0, 0.5), (90.0, 0.0))
    assert (settings.control.tier_samples, settings.rates.workers) == (5, 2)
    assert [route.name for route in settings.routes] == ["/payments/*", "chat"]
    assert settings.routes[0].priority is Priority.HIGH
    assert settings.plans["gold"].members == ("07f3a9c2d4e5b617",)
    sources = [settings.source_of(name) for name in ("tier_samples", "workers", "routes", "config_file")]
    assert sources == [
        SettingSource.CONFIG_FILE,
        SettingSource.ENV,
        SettingSource.CONFIG_FILE,
        SettingSource.ENV,
    ]


def test_file_only_settings_are_read_from_file_and_code(file: Path) -> None:
    settings = read(file, 'period_s = "250ms"\nreserve_mid = 0.2\nreserve_low = 0.4\n', SLO_S="30")
    assert (settings.concurrency.period_s, settings.rates.reserve_mid, settings.rates.reserve_low) == (
        0.25,
        0.2,
        0.4,
    )
    assert settings.source_of("period_s") is SettingSource.CONFIG_FILE
    assert Settings.from_env({}, config_file=file, period_s=1).concurrency.period_s == 1.0
    assert reported(file, "period_s = 0\nreserve_mid = 0.7") == [
        ("throttle.toml:2: reserve_mid", "or raise reserve_low"),
        ("throttle.toml:1: period_s", "for example 1"),
    ]


def test_route_of_the_file_has_an_objective_of_its_own(file: Path) -> None:
    text = '[[routes]]\npattern = "/a"\nslo_s = "30s"\n[[routes]]\npattern = "/b"\nslo_s = 0.5\n'
    assert [route.slo_s for route in read(file, text).routes] == [30.0, 0.5]
    assert reported(file, text + "[[routes]]\npattern = '/c'\nslo_s = 0\n") == [
        ("throttle.toml:9: routes[2].slo_s", "for example 1")
    ]


def test_example_of_the_documentation_is_read(file: Path) -> None:
    settings = read(file, EXAMPLE)
    assert [route.pattern for route in settings.routes] == ["/payments/*", "/v1/generate", "/status/{job}"]
    assert list(settings.plans) == ["gold"]
    assert list(settings.guards) == ["vector-db", "https://models.example.org:8443"]


def test_problems_name_file_line_and_key(file: Path) -> None:
    text = """\
tier_sample = 5
workers = 0
config_file = "other.toml"
key_secret = "short"

[[routes]]
pattern = "/a"
cost = 0

[[routes]]
patern = "/b"

[[routes]]
pattern = "/c"
name = "/a"

[plans.gold]
user_limit = "often"
member = []

[plans."silver"]
members = ["sk-live-123"]
"""
    places = [place for place, _ in reported(file, text)]
    assert places == [
        "throttle.toml:2: workers",
        "throttle.toml:4: key_secret",
        "throttle.toml:8: routes[0].cost",
        "throttle.toml:10: routes[1].pattern",
        "throttle.toml:11: routes[1].patern",
        "throttle.toml:15: routes[2].name",
        "throttle.toml:18: plans.gold.user_limit",
        "throttle.toml:19: plans.gold.member",
        "throttle.toml:22: plans.silver.members",
        "throttle.toml:3: config_file",
        "throttle.toml:1: tier_sample",
    ]
    hints = dict(reported(file, text))
    assert hints["throttle.toml:1: tier_sample"] == "did you mean tier_samples?"
    assert hints["throttle.toml:11: routes[1].patern"] == "did you mean pattern?"


def test_two_routes_of_one_name_are_a_problem(file: Path) -> None:
    text = '[[routes]]\npattern = "/a"\n[[routes]]\npattern = "/a/"\n'
    assert [place for place, _ in reported(file, text)] == ["throttle.toml:3: routes[1].name"]


def test_two_plans_with_one_member_are_a_problem(file: Path) -> None:
    text = "[plans]\na = {members = ['0000000000000000']}\nb = {members = ['0000000000000000']}\n"
    assert [place for place, _ in reported(file, f"key_secret = '{'x' * 16}'\n{text}")] == [
        "throttle.toml:4: plans.b.members"
    ]


def test_unknown_keys_are_warnings_with_unknown_env_warn(file: Path) -> None:
    settings = read(file, 'unknown_env = "warn"\nfuture = 1\n[alarms.db]\nabove = 5\n')
    assert [problem.variable for problem in settings.ignored] == [
        "throttle.toml:2: future",
        "throttle.toml:3: alarms",
    ]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("workers = 1979-05-27", ["throttle.toml:1: workers"]),
        ("routes = 5", ["throttle.toml:1: routes"]),
        ("routes = [5]", ["throttle.toml:1: routes[0]"]),
        ("plans = 5", ["throttle.toml:1: plans"]),
        ("[plans]\ngold = 5", ["throttle.toml:2: plans.gold"]),
        ("[routes]\npattern = '/a'", ["throttle.toml:1: routes"]),
        ("priority_default = 1", ["throttle.toml:1: priority_default"]),
        ("'workers' = 0", ["throttle.toml:1: workers"]),
        ("[guards]\ndb.failures = 0", ["throttle.toml:2: guards.db.failures"]),
        ("text = '''\n\"\\q\" = 1'''", ["throttle.toml:1: text"]),
        ("", []),
    ],
)
def test_wrong_shape_in_the_file_is_a_problem(file: Path, text: str, places: list[str]) -> None:
    if places:
        assert [place for place, _ in reported(file, text)] == places
    else:
        assert read(file, text).rates.workers == 1


def test_unusable_file_is_one_problem_among_others(file: Path, tmp_path: Path) -> None:
    cases: list[tuple[Path, bytes | None, str]] = [
        (tmp_path / "absent.toml", None, "No such file"),
        (tmp_path, None, "directory"),
        (file, b"workers = ", "not TOML"),
        (file, b"\xff", "not UTF-8 at byte 0"),
        (file, b"#" * (BYTES_AT_MOST + 1), "longer than"),
    ]
    for path, data, messages in cases:
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(ConfigError, match=messages) as caught:
            Settings.from_env({PREFIX + "CONFIG_FILE": str(path), PREFIX + "WORKERS": "0"})
        places = [problem.variable for problem in caught.value.problems]
        assert places == [PREFIX + "WORKERS", PREFIX + "CONFIG_FILE"]


def test_file_named_in_code_is_read(file: Path) -> None:
    file.write_text("workers = 3")
    settings = Settings.from_env({}, config_file=file)
    assert settings.rates.workers == 3
    assert settings.source_of("config_file") is SettingSource.CODE


NAMES = st.sampled_from(["a", "a-b", "a.b", "x y", 'say "hi"', "back\\slash", "a[1]", "größe", "[0]", "."])
WHERE = st.builds(
    lambda table, name, rest: f"{table}.{quoted_key(name)}{rest}",
    st.sampled_from(["plans", "guards", "other"]),
    NAMES,
    st.sampled_from(["", ".failures", ".failures[2]", ".mode", "[0]"]),
) | st.builds(
    lambda number, rest: f"routes[{number}]{rest}",
    st.integers(0, 4),
    st.sampled_from(["", ".cost", ".cost.x"]),
)


def text_of(tables: list[tuple[str, str]]) -> str:
    """Format tables with one key each, and routes before them."""
    routes = '[[routes]]\npattern = "/a"\n[[routes]]\npattern = "/b"\ncost = 2\n'
    named = (f"[{table}.{quoted_key(name)}]\nfailures = 3\n" for table, name in dict.fromkeys(tables))
    return routes + "".join(named)


@given(st.lists(st.tuples(st.sampled_from(["plans", "guards"]), NAMES), max_size=5), WHERE)
def test_place_is_the_longest_known_part_of_a_key(tables: list[tuple[str, str]], where: str) -> None:
    lines = lines_of(text_of(tables))
    place = partial(place_in_file, "t.toml", lines)
    around = [where[:end] for end in range(len(where) + 1) if where[end : end + 1] in {"", ".", "["}]
    known = [part for part in around if part in lines]
    line = f":{lines[max(known, key=len)]}" if known else ""
    assert place(where) == f"t.toml{line}: {where}"


class CountedLines(dict[str, int]):
    """Lines that count how often they are looked up, and cannot be listed."""

    lookups = 0

    def __contains__(self, key: object) -> bool:
        self.lookups += 1
        return super().__contains__(key)

    def __iter__(self) -> NoReturn:
        raise AssertionError("all lines are read")

    items = keys = values = __iter__


def test_place_in_a_long_file_needs_a_few_lookups() -> None:
    lines = CountedLines(lines_of('[[routes]]\npattern = "/a"\n' * 2000))
    place = partial(place_in_file, "t.toml", lines)
    assert place("routes[1999].cost") == "t.toml:3999: routes[1999].cost"
    assert place("routes[1999].pattern") == "t.toml:4000: routes[1999].pattern"
    assert place("plans.gold") == "t.toml: plans.gold"
    assert lines.lookups <= 6
