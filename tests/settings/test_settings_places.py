"""Places of settings: a variable, an argument, or file, line and key; and WEB_CONCURRENCY as one of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.settings import PREFIX, ConfigError, Problem, Settings, SettingSource, settings_table

FILE = """\
workers = 3
tier_samples = 5
resource_policy.precision_hint = "fp16"

[[routes]]
pattern = "/a"

[[routes]]
pattern = "/b"
cost = 2

[guards."https://a.b:1"]
failures = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "throttle.toml"
    made.write_text(FILE)
    return made


class TestPlaceOf:
    """The place of each value, by its source."""

    def test_default_has_the_place_where_it_can_be_set(self) -> None:
        settings = Settings()
        for name, known in settings_table().items():
            assert settings.place_of(name) == known.variable
        assert [settings.place_of(name) for name in ("routes", "guards.db.failures")] == [
            "routes",
            "guards.db.failures",
        ]

    def test_argument_is_its_own_place(self) -> None:
        settings = Settings(workers=2, period_s=1, routes=[{"pattern": "/a"}])
        places = [settings.place_of(where) for where in ("workers", "period_s", "routes[0].cost", "slo_s")]
        assert places == ["workers", "period_s", "routes[0].cost", PREFIX + "SLO_S"]

    def test_variable_and_env_file_are_places(self, tmp_path: Path) -> None:
        (tmp_path / "prod.env").write_text(f"{PREFIX}SLO_S=9\n{PREFIX}WORKERS=2\n")
        settings = Settings.from_env({PREFIX + "WORKERS": "3"}, tmp_path / "prod.env")
        assert settings.place_of("workers") == PREFIX + "WORKERS"
        assert settings.place_of("slo_s") == PREFIX + "SLO_S in prod.env"

    @pytest.mark.parametrize(
        ("where", "place"),
        [
            ("workers", "throttle.toml:1: workers"),
            ("tier_samples", "throttle.toml:2: tier_samples"),
            ("precisions", "throttle.toml:3: resource_policy.precision_hint"),
            ("quotas", "throttle.toml:3: resource_policy"),
            ("routes", "throttle.toml:5: routes"),
            ("routes[0]", "throttle.toml:5: routes[0]"),
            ("routes[1]", "throttle.toml:8: routes[1]"),
            ("routes[1].cost", "throttle.toml:10: routes[1].cost"),
            ("routes[1].priority", "throttle.toml:8: routes[1].priority"),
            ('guards."https://a.b:1".failures', 'throttle.toml:13: guards."https://a.b:1".failures'),
            ('guards."https://a.b:1".mode', 'throttle.toml:12: guards."https://a.b:1".mode'),
            ("slo_s", PREFIX + "SLO_S"),
        ],
    )
    def test_file_line_and_key_are_the_place(self, file: Path, where: str, place: str) -> None:
        assert Settings.from_env({}, config_file=file).place_of(where) == place

    def test_quotas_of_a_route_are_at_the_routes(self, file: Path) -> None:
        file.write_text('[[routes]]\npattern = "/a"\nresource_policy = {}\n')
        settings = Settings.from_env({}, config_file=file)
        assert settings.quota.quotas
        assert settings.place_of("quotas") == "throttle.toml:1: routes"

    def test_stronger_source_gives_the_place(self, file: Path) -> None:
        settings = Settings.from_env({PREFIX + "WORKERS": "2"}, config_file=file, tier_samples=1)
        assert settings.place_of("workers") == PREFIX + "WORKERS"
        assert settings.place_of("tier_samples") == "tier_samples"


class TestWebConcurrency:
    """The variable of servers as the default of WORKERS."""

    @pytest.mark.parametrize(
        ("text", "workers"), [("4", 4), (" 8 ", 8), ("1", 1), ("10000", 10_000), (" " * 30 + "02", 2)]
    )
    def test_number_of_processes_is_the_default_of_workers(self, text: str, workers: int) -> None:
        settings = Settings.from_env({"WEB_CONCURRENCY": text})
        assert settings == Settings(workers=workers)
        assert settings.source_of("workers") is SettingSource.ENV
        assert settings.place_of("workers") == "WEB_CONCURRENCY"
        assert settings.ignored == ()

    @pytest.mark.parametrize("text", ["", " "])
    def test_empty_number_of_processes_is_not_set(self, text: str) -> None:
        settings = Settings.from_env({"WEB_CONCURRENCY": text})
        assert settings.source_of("workers") is SettingSource.DEFAULT
        assert settings.ignored == ()

    @pytest.mark.parametrize("text", ["auto", "0", "-1", "2.5", "10001", "9" * 5000, "\u0664", "+4"])
    def test_other_text_is_ignored_with_a_warning(self, text: str, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "autoglm_throttle"):
            settings = Settings.from_env({"WEB_CONCURRENCY": text})
        assert settings == Settings()
        assert settings.source_of("workers") is SettingSource.DEFAULT
        (problem,) = settings.ignored
        assert problem.variable == "WEB_CONCURRENCY"
        assert "is no default of WORKERS: it must be a whole number from 1 to 10000" in problem.message
        assert len(str(problem)) < 200
        assert "WEB_CONCURRENCY" in caplog.text

    @pytest.mark.parametrize("text", ["4", "auto"])
    def test_workers_of_any_source_win(self, text: str, file: Path) -> None:
        environ = {"WEB_CONCURRENCY": text}
        made = [
            Settings.from_env(environ | {PREFIX + "WORKERS": "3"}),
            Settings.from_env(environ, workers=3),
            Settings.from_env(environ, config_file=file),
        ]
        assert [settings.rates.workers for settings in made] == [3, 3, 3]
        assert [settings.ignored for settings in made] == [(), (), ()]

    def test_invalid_workers_are_a_problem_beside_it(self) -> None:
        with pytest.raises(ConfigError) as caught:
            Settings.from_env({"WEB_CONCURRENCY": "4", PREFIX + "WORKERS": "0"})
        assert [problem.variable for problem in caught.value.problems] == [PREFIX + "WORKERS"]

    @pytest.mark.parametrize("fleet", [True, "true", " Yes", "1", "ON"])
    def test_fleet_counts_its_processes_itself(self, fleet: Any) -> None:
        settings = Settings.from_env({"WEB_CONCURRENCY": "4"}, fleet=fleet, redis_url="redis://h")
        assert settings.source_of("workers") is SettingSource.DEFAULT
        without = Settings.from_env({"WEB_CONCURRENCY": "4"}, fleet=False)
        assert without.rates.workers == 4

    def test_object_that_cannot_be_printed_is_one_problem(self) -> None:
        class Unprintable:
            def __str__(self) -> str:
                raise RuntimeError

        with pytest.raises(ConfigError) as caught:
            Settings.from_env({"WEB_CONCURRENCY": "4"}, fleet=Unprintable())  # type: ignore[arg-type]  # wrong on purpose
        assert [problem.variable for problem in caught.value.problems] == ["fleet"]

    def test_constructor_and_env_file_do_not_read_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WEB_CONCURRENCY", "4")
        (tmp_path / ".env").write_text("WEB_CONCURRENCY=4\n")
        assert Settings().rates.workers == 1
        assert Settings.from_env({}, tmp_path / ".env").rates.workers == 1
        assert Settings.from_env().rates.workers == 4

    def test_problem_is_as_of_other_variables(self) -> None:
        settings = Settings.from_env({"WEB_CONCURRENCY": "auto"})
        message = "is no default of WORKERS: it must be a whole number from 1 to 10000 processes, not 'auto'"
        assert settings.ignored == (Problem("WEB_CONCURRENCY", message),)
