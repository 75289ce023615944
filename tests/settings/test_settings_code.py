"""Settings made in code."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from autoglm_throttle.settings import (
    ConfigError,
    PlanPolicy,
    RoutePolicy,
    Settings,
    SettingSource,
    settings_table,
)
from autoglm_throttle.types import BorrowMode, Policy, Priority, ThrottleError, UserLimit


def problems(**values: object) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return [(problem.variable, problem.hint) for problem in caught.value.problems]


def test_the_defaults_are_the_founding_figures() -> None:
    settings = Settings()
    assert settings.rates.rates_rps == (1000.0, 500.0, 100.0)
    assert settings.control.tiers == ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0))
    assert (settings.control.tier_samples, settings.gpu.sample_interval_s) == (3, 1.0)
    assert settings.users.by_priority == ((), (), ())


def test_code_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RATE_HIGH_RPS", "rate_high_rps", "AUTOGLM_THROTTLE_RATE_HIGH_RPS"):
        monkeypatch.setenv(name, "7")
    assert Settings().rates.rate_high_rps == 1000.0


def test_texts_and_ready_values_are_the_same() -> None:
    from_texts = Settings(
        policy="FIXED",
        rate_high_rps="6000/m",
        borrow="down",
        tiers="80%:50%",
        user_limit="10/s",
        key_secret="0123456789abcdef",
        priority_default="1",
        exempt_paths="/a, /b,/a",
        gpu_devices=[0, "GPU-1a2b"],
        gpu_required="yes",
        trusted_proxies=["10.0.0.0/8", "unix"],
    )
    ready = Settings(
        policy=Policy.FIXED,
        rate_high_rps=100,
        borrow=BorrowMode.DOWN,
        tiers=[(80, 0.5)],
        user_limit=[UserLimit("any name", 10, 1)],
        key_secret=SecretStr("0123456789abcdef"),
        priority_default=Priority.HIGH,
        exempt_paths=("/a", "/b"),
        gpu_devices=("0", "GPU-1a2b"),
        gpu_required=True,
        trusted_proxies="10.0.0.0/8,unix",
    )
    assert from_texts == ready
    assert ready.user_limit == (UserLimit("user-1s", 10, 1),)


def test_limits_by_priority_replace_the_general_one() -> None:
    settings = Settings(user_limit="5/s", user_limit_high="50/s", user_limit_low="off")
    high, mid, low = settings.users.by_priority
    assert [limit.limit for limit in high + mid] == [50, 5]
    assert low == ()


def test_it_is_frozen_and_can_be_copied() -> None:
    settings = Settings(workers=2, plans=[PlanPolicy("gold")], routes=[RoutePolicy("/a")])
    with pytest.raises(ValidationError):
        settings.rates.workers = 3
    with pytest.raises(TypeError):
        settings.plans["free"] = PlanPolicy("free")  # type: ignore[index]
    with pytest.raises(TypeError):
        hash(settings)
    for other in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings)), settings.model_copy()):
        assert other == settings
        assert other.source_of("workers") is SettingSource.CODE


def test_equality_is_about_values_not_sources() -> None:
    assert Settings.from_env({"AUTOGLM_THROTTLE_WORKERS": "2"}) == Settings(workers=2)
    assert Settings(workers=2) != Settings(workers=3)
    assert Settings() != "settings"


def test_sources_in_code() -> None:
    settings = Settings(workers=1)
    assert settings.source_of("workers") is SettingSource.CODE
    assert settings.source_of("borrow") is SettingSource.DEFAULT
    assert settings.source_of("routes") == "default"
    with pytest.raises(KeyError):
        settings.source_of("wrokers")


def test_all_faults_are_reported_together_by_argument() -> None:
    assert [where for where, _ in problems(wrokers=2, gpu="cuda", workers=0, routes=[{"pattern": "x"}])] == [
        "workers",
        "gpu",
        "routes[0].pattern",
        "wrokers",
    ]
    assert problems(wrokers=2) == [("wrokers", "did you mean workers?")]
    assert problems(zzzzzz=2) == [("zzzzzz", "")]


def test_a_config_file_is_not_silently_left_unread() -> None:
    assert problems(config_file="x.toml") == [("config_file", "Settings.from_env(config_file=...) reads it")]


def test_config_error_is_ours_and_a_value_error() -> None:
    with pytest.raises(ThrottleError) as caught:
        Settings(workers=0)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith("workers: must be a whole number from 1 to 10000 processes, not '0'")
    assert caught.value.__context__ is None or "input" not in str(caught.value.__context__)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_repr_shows_what_was_given_and_no_secret() -> None:
    secret = "correct horse battery"
    text = repr(Settings(key_secret=secret, workers=2))
    assert "workers=2" in text
    assert "rate_high_rps" not in text
    assert secret not in text


def test_text_of_masks_secrets() -> None:
    settings = Settings(key_secret="0123456789abcdef", workers=3)
    assert settings.text_of("key_secret") == "********"
    assert settings.text_of("workers") == "3"
    assert Settings().text_of("key_secret") == ""


@pytest.mark.parametrize("name", settings_table)
def test_every_default_is_allowed_and_reads_back(name: str) -> None:
    known = settings_table()[name]
    assert known.field_type.parse(known.default) == known.default
    if known.default is not None:
        assert known.field_type.parse(known.default_text) == known.default
    assert known.about.endswith(".")
    assert known.provenance
    assert known.field_type.allowed
    assert known.variable == (name if known.file_only else "AUTOGLM_THROTTLE_" + name.upper())
    assert not (known.file_only and known.starred)


@pytest.mark.parametrize("name", settings_table)
def test_every_example_is_allowed(name: str) -> None:
    form = settings_table()[name].field_type
    for example in form.example.split(" or ")[:1]:
        if not form.secret:
            form.parse(example)


def test_settings_know_nothing_else_than_the_list() -> None:
    assert len(settings_table) == 144
    assert [name for name in Settings.model_fields if name not in settings_table] == ["routes", "plans", "guards"]


def test_other_shapes_of_plans() -> None:
    plan = PlanPolicy("gold")
    shapes: list[object] = [[plan], {"gold": plan}, {"gold": {}}, Settings(plans=[plan]).plans]
    for given in shapes:
        assert Settings(plans=given).plans == {"gold": plan}
    assert problems(plans={"gold": PlanPolicy("free")}) == [("plans.gold", "")]
    assert problems(plans=["gold"]) == [("plans", "for example [plans.gold]")]
    assert problems(plans=5) == [("plans", "for example [plans.gold]")]
    assert problems(routes="/x")[0][0] == "routes"
    assert problems(plans={"gold": 5}) == [("plans.gold", "")]
    assert problems(routes=[5]) == [("routes[0]", "")]


def test_a_path_may_be_a_path() -> None:
    assert Settings.from_env({}, config_file=None).loading.config_file is None
    assert settings_table()["config_file"].field_type.parse(Path("a.toml")) == Path("a.toml")
