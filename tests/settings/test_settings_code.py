"""Settings made in code."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import SecretStr

from autoglm_throttle.settings import (
    PREFIX,
    ConfigError,
    PlanPolicy,
    RoutePolicy,
    Settings,
    SettingSource,
    settings_table,
)
from autoglm_throttle.settings.groups import GROUPS
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import BorrowMode, Policy, Priority, ThrottleError, UserLimit


def problems(**values: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return [(problem.variable, problem.hint) for problem in caught.value.problems]


def pickled(settings: Settings) -> Settings:
    """Return the settings that another process would receive."""
    copied: Settings = pickle.loads(pickle.dumps(settings))
    return copied


def test_defaults_are_the_founding_figures() -> None:
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
    texts: dict[str, Any] = {
        "policy": "FIXED",
        "rate_high_rps": "6000/m",
        "borrow": "down",
        "tiers": "80%:50%",
        "user_limit": "10/s",
        "key_secret": "0123456789abcdef",
        "priority_default": "1",
        "exempt_paths": "/a, /b,/a",
        "gpu_devices": [0, "GPU-1a2b"],
        "gpu_required": "yes",
        "trusted_proxies": ["10.0.0.0/8", "unix"],
    }
    from_texts = Settings(**texts)
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
    assert ready.users.user_limit == (UserLimit("user-1s", 10, 1),)


def test_limits_by_priority_replace_the_general_one() -> None:
    settings = Settings(user_limit="5/s", user_limit_high="50/s", user_limit_low="off")
    high, mid, low = settings.users.by_priority
    assert [limit.limit for limit in high + mid] == [50, 5]
    assert low == ()


def test_settings_are_frozen_and_not_hashable() -> None:
    settings = Settings(workers=2)
    with pytest.raises(AttributeError, match="frozen"):
        settings.rates = Settings().rates
    with pytest.raises(AttributeError, match="frozen"):
        settings.rates.workers = 3
    with pytest.raises(TypeError):
        hash(settings)


@pytest.mark.parametrize("attribute", GROUPS)
def test_group_is_frozen_and_made_alone_with_defaults(attribute: str) -> None:
    group = getattr(Settings(), attribute)
    assert type(group) is GROUPS[attribute]
    assert group == GROUPS[attribute]()
    assert group.explicit() == {}
    for field in type(group).model_fields:
        with pytest.raises(AttributeError, match="frozen"):
            setattr(group, field, getattr(group, field))


def test_group_made_alone_reports_its_problems() -> None:
    assert ConcurrencySettings(slo_s=1.5) == Settings(slo_s=1.5).concurrency
    texts: dict[str, Any] = {"slo_s": "1m", "websockets": "Slot"}
    assert ConcurrencySettings(**texts).slo_s == 60.0
    wrong: dict[str, Any] = {"slo_s": 0, "queue_maxx": 1, "websockets": "seat"}
    with pytest.raises(ConfigError) as caught:
        ConcurrencySettings(**wrong)
    assert [problem.variable for problem in caught.value.problems] == ["slo_s", "websockets", "queue_maxx"]
    positional: Any = (1.5,)
    with pytest.raises(TypeError, match="positional arguments of"):
        ConcurrencySettings(*positional)


SAMPLES: list[dict[str, Any]] = [
    {},
    {"workers": 2, "plans": [PlanPolicy("gold")], "routes": [RoutePolicy("/a")]},
    {"resource_policy": {"gpu_memory_ratio": 0.4}, "guards": MappingProxyType({"db": {"failures": 3}})},
    {"routes": [{"pattern": "/a", "resource_policy": {}}], "key_secret": "0123456789abcdef"},
    {"redis_url": "redis://me:secret@h", "gpu": ["vllm:http://me:secret@h:8000"]},
]
FILE = """\
workers = 3
unknown_env = "warn"
[resource_policy]
precision_hint = "fp16"
[[routes]]
pattern = "/a"
resource_policy = { gpu_memory_ratio = 0.4 }
[guards.db]
failures = 3
"""


@pytest.mark.parametrize("copy_of", [copy.deepcopy, copy.copy, pickled, Settings.model_copy])
@pytest.mark.parametrize("values", SAMPLES)
def test_copy_of_settings_is_equal_with_sources(
    values: dict[str, Any], copy_of: Callable[[Settings], Settings], tmp_path: Path
) -> None:
    file = tmp_path / "throttle.toml"
    file.write_text(FILE)
    environ = {PREFIX + "SLO_S": "9", PREFIX + "FUTURE": "1", "WEB_CONCURRENCY": "4"}
    for settings in (Settings(**values), Settings.from_env(environ, config_file=file, **values)):
        other = copy_of(settings)
        assert other == settings
        assert repr(other) == repr(settings)
        assert other.ignored == settings.ignored
        for name in (*settings_table(), "routes", "plans", "guards"):
            assert other.source_of(name) is settings.source_of(name)
            assert other.place_of(name) == settings.place_of(name)


def test_equality_is_about_values_not_sources() -> None:
    assert Settings.from_env({"AUTOGLM_THROTTLE_WORKERS": "2"}) == Settings(workers=2)
    assert Settings(workers=1) == Settings()
    assert Settings(workers=2) != Settings(workers=3)
    assert Settings() != "settings"


def test_raw_values_are_gone_after_validation() -> None:
    settings = Settings(key_secret="correct horse battery")
    assert "correct horse" not in repr(settings.__pydantic_private__)
    assert settings.identity_key == b"correct horse battery"


def test_sources_in_code() -> None:
    settings = Settings(workers=1)
    assert settings.source_of("workers") is SettingSource.CODE
    assert settings.source_of("borrow") is SettingSource.DEFAULT
    assert settings.source_of("routes") == "default"
    with pytest.raises(KeyError):
        settings.source_of("wrokers")


def test_all_problems_are_reported_together_by_argument() -> None:
    assert [where for where, _ in problems(wrokers=2, gpu="cuda", workers=0, routes=[{"pattern": "x"}])] == [
        "workers",
        "gpu",
        "routes[0].pattern",
        "wrokers",
    ]
    assert problems(wrokers=2) == [("wrokers", "did you mean workers?")]
    assert problems(zzzzzz=2) == [("zzzzzz", "")]


def test_config_file_for_the_constructor_is_a_problem() -> None:
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
    assert text == "Settings(workers='2', key_secret='********')"
    assert secret not in text


def test_text_of_masks_secrets() -> None:
    settings = Settings(key_secret="0123456789abcdef", workers=3)
    assert settings.text_of("key_secret") == "********"
    assert settings.text_of("workers") == "3"
    assert Settings().text_of("key_secret") == ""


@pytest.mark.parametrize("name", ["wrokers", "routes", "breaker", ""])
def test_unknown_name_is_a_key_error(name: str) -> None:
    with pytest.raises(KeyError):
        Settings().value_of(name)
    with pytest.raises(KeyError):
        Settings().text_of(name)


def test_field_of_settings_is_a_group_or_a_table() -> None:
    assert list(Settings.model_fields) == [*GROUPS, "routes", "plans", "guards"]


def test_plans_may_be_a_list_or_a_table() -> None:
    plan = PlanPolicy("gold")
    shapes: list[Any] = [[plan], (plan,), {"gold": plan}, {"gold": {}}, Settings(plans=[plan]).plans]
    for given in shapes:
        assert Settings(plans=given).plans == {"gold": plan}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"plans": {"gold": PlanPolicy("free")}}, [("plans.gold", "")]),
        ({"plans": [PlanPolicy("a"), PlanPolicy("a")]}, [("plans.a", "")]),
        ({"plans": ["gold"]}, [("plans", "for example [plans.gold]")]),
        ({"plans": 5}, [("plans", "for example [plans.gold]")]),
        ({"plans": {"gold": 5}}, [("plans.gold", "for example [plans.gold]")]),
        ({"routes": "/x"}, [("routes", 'for example [[routes]] with pattern = "/v1/*"')]),
        ({"routes": [5]}, [("routes[0]", 'for example [[routes]] with pattern = "/v1/*"')]),
        ({"routes": [{}]}, [("routes[0].pattern", "for example /v1/*")]),
    ],
)
def test_other_shape_of_a_table_is_a_problem(values: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert problems(**values) == expected


def test_path_of_the_config_file_may_be_a_path(tmp_path: Path) -> None:
    assert Settings.from_env({}, config_file=None).loading.config_file is None
    (tmp_path / "a.toml").touch()
    assert Settings.from_env({}, config_file=tmp_path / "a.toml").loading.config_file == tmp_path / "a.toml"
