"""The table ``resource_policy``: of the whole service and of a route, in a file and in code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.admission import factory
from autoglm_throttle.control.quota import Quota
from autoglm_throttle.settings import (
    PREFIX,
    ConfigError,
    RoutePolicy,
    Settings,
    SettingSource,
)
from autoglm_throttle.settings.advice import collect_advice
from autoglm_throttle.settings.route_policy import ResourcePolicy
from autoglm_throttle.types import Demand, Priority
from tests.control.quotas import card, seen

TABLE: Any = {
    "precision_hint": "FP16, int8",
    "gpu_memory_ratio": "60%",
    "compute_priority": "high",
}


def reported(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return [str(problem) for problem in caught.value.problems]


def of_file(tmp_path: Path, text: str, **environ: str) -> Settings:
    file = tmp_path / "throttle.toml"
    file.write_text(text)
    own = {PREFIX + "CONFIG_FILE": str(file)}
    return Settings.from_env(own | {PREFIX + name: value for name, value in environ.items()})


def quota_of(settings: Settings) -> Quota:
    quota = factory.quota(settings)
    assert quota is not None
    return quota


def test_quotas_are_off_by_default() -> None:
    assert not Settings().quota.quotas
    assert factory.quota(Settings()) is None
    assert quota_of(Settings(quotas=True)).caps == (0.92, 0.7, 0.5)


def test_resource_policy_sets_values_and_turns_quotas_on() -> None:
    settings = Settings(resource_policy=TABLE)
    assert settings.quota.quotas
    assert (settings.quota.precisions, settings.quota.gpu_memory_ratio) == (("fp16", "int8"), 0.6)
    assert settings.quota.compute_priority is Priority.HIGH
    assert Settings(resource_policy=ResourcePolicy(**TABLE)) == settings
    quota = quota_of(settings)
    assert quota.caps == (0.92, 0.6, 0.5)
    advice = quota.advice(Demand(Priority.LOW), 0.0)
    assert (advice.precision, advice.compute_priority) == ("fp16", 0)


def test_empty_resource_policy_turns_quotas_on() -> None:
    assert Settings(resource_policy={}).quota.quotas
    unset: dict[str, Any] = {"resource_policy": None}
    assert not Settings(**unset).quota.quotas


def test_resource_policy_of_a_file_is_the_weakest_source(tmp_path: Path) -> None:
    text = '[resource_policy]\nprecision_hint = "fp16,int8"\ngpu_memory_ratio = 0.6\n'
    settings = of_file(tmp_path, text)
    assert settings.quota.quotas
    assert (settings.quota.precisions, settings.quota.gpu_memory_ratio) == (("fp16", "int8"), 0.6)
    assert settings.source_of("precisions") is SettingSource.CONFIG_FILE
    stronger = Settings.from_env({}, config_file=tmp_path / "throttle.toml", gpu_memory_ratio=0.65)
    assert (stronger.quota.precisions, stronger.quota.gpu_memory_ratio) == (("fp16", "int8"), 0.65)
    assert stronger.source_of("gpu_memory_ratio") is SettingSource.CODE
    assert not of_file(tmp_path, text, QUOTAS="false").quota.quotas


@pytest.mark.parametrize(
    "text",
    [
        '[[routes]]\npattern = "/a"\nname = "a"\nresource_policy = { gpu_memory_ratio = 0.4 }\n',
        '[[routes]]\npattern = "/a"\nname = "a"\n[routes.resource_policy]\ngpu_memory_ratio = 0.4\n',
    ],
    ids=["inline", "table"],
)
def test_resource_policy_of_a_route_turns_quotas_on(tmp_path: Path, text: str) -> None:
    settings = of_file(tmp_path, text)
    assert settings.quota.quotas
    assert settings.source_of("quotas") is SettingSource.CONFIG_FILE
    assert [route.resource_policy for route in settings.routes] == [ResourcePolicy(gpu_memory_ratio=0.4)]
    assert not of_file(tmp_path, text, QUOTAS="false").quota.quotas


def test_routes_without_resource_policy_leave_quotas_off() -> None:
    assert not Settings(routes=[RoutePolicy("/a")]).quota.quotas


def test_problems_of_resource_policies_have_their_places(tmp_path: Path) -> None:
    text = (
        "[resource_policy]\n"
        "gpu_memory_ratio = 7\n"
        "precision = 1\n"
        "[[routes]]\n"
        'pattern = "/a"\n'
        'resource_policy = { compute_priority = "urgent", gpu_memory = 1 }\n'
    )
    with pytest.raises(ConfigError) as caught:
        of_file(tmp_path, text)
    lines = [problem.variable for problem in caught.value.problems]
    assert lines == [
        "throttle.toml:2: resource_policy.gpu_memory_ratio",
        "throttle.toml:6: routes[0].resource_policy.compute_priority",
        "throttle.toml:6: routes[0].resource_policy.gpu_memory",
        "throttle.toml:3: resource_policy.precision",
    ]
    assert "did you mean precision_hint?" in str(caught.value)


@pytest.mark.parametrize("table", [5, "fp16", ["fp16"], True])
def test_resource_policy_that_is_no_table_is_a_problem(table: Any) -> None:
    assert reported(resource_policy=table) == [
        "resource_policy: must be a table (for example [resource_policy])"
    ]
    (problem,) = reported(routes=[{"pattern": "/a", "resource_policy": table}])
    assert problem.startswith("routes[0].resource_policy: must be a table with precision_hint")


def test_value_in_two_places_is_a_problem() -> None:
    assert reported(resource_policy=TABLE, precisions="fp8") == [
        "resource_policy.precision_hint: is set beside precisions (leave one of them out)"
    ]


def test_variable_for_resource_policy_is_a_problem() -> None:
    with pytest.raises(ConfigError, match="stand in CONFIG_FILE or in code"):
        Settings.from_env({PREFIX + "RESOURCE_POLICY": "fp16"})


def test_exempt_route_with_resource_policy_is_a_problem() -> None:
    with pytest.raises(ConfigError, match="never charged"):
        RoutePolicy("/a", exempt=True, resource_policy={})


def test_route_accepts_a_resource_policy_made_in_code() -> None:
    policy = ResourcePolicy(gpu_memory_ratio=0.4)
    assert RoutePolicy("/a", resource_policy=policy) == RoutePolicy(
        "/a", resource_policy={"gpu_memory_ratio": 0.4}
    )


def test_columns_of_a_resource_policy_are_read() -> None:
    policy = ResourcePolicy(precision_hint="FP16", gpu_memory_ratio=0.5, compute_priority="low")
    assert (policy.precision_hint, policy.gpu_memory_ratio) == (("fp16",), 0.5)
    assert policy.compute_priority is Priority.LOW
    assert ResourcePolicy().explicit() == {}
    assert ResourcePolicy(gpu_memory_ratio=None) == ResourcePolicy()
    assert policy.explicit().keys() == TABLE.keys()
    wrong: dict[str, Any] = {"precision_hint": "-", "gpu_memory_ratio": 7, "compute_priority": "urgent"}
    with pytest.raises(ConfigError) as caught:
        ResourcePolicy(**wrong)
    assert [problem.variable for problem in caught.value.problems] == list(TABLE)
    positional: Any = ("FP16",)
    with pytest.raises(TypeError, match="positional arguments of"):
        ResourcePolicy(*positional)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"gpu_memory_ratio": 0.95},
            "gpu_memory_ratio: must be at most GPU_MEMORY_TARGET, 0.92 (or raise GPU_MEMORY_TARGET)",
        ),
        (
            {"gpu_memory_ratio_low": 0.8},
            "gpu_memory_ratio_low: must be at most gpu_memory_ratio, 0.7 (or raise gpu_memory_ratio)",
        ),
    ],
)
def test_caps_that_fall_with_the_class_are_a_problem(values: dict[str, Any], problem: str) -> None:
    assert reported(**values) == [problem]


def test_default_cap_is_lowered_to_a_given_one() -> None:
    assert quota_of(Settings(quotas=True, gpu_memory_ratio=0.4)).caps == (0.92, 0.4, 0.4)
    assert quota_of(Settings(quotas=True, gpu_memory_target=0.6)).caps == (0.6, 0.6, 0.5)


@pytest.mark.parametrize(("stale_after_s", "stale_s"), [(None, 6.0), (9.0, 9.0)])
def test_memory_is_unknown_after_the_stale_age(stale_after_s: float | None, stale_s: float) -> None:
    made = quota_of(Settings(quotas=True, sample_interval_s=2.0, gpu_stale_after_s=stale_after_s))
    made.learn(seen(card(10.0, 0.0)), 0.0)
    assert made.memory.renewal_s == 2.0
    assert [made.view(now).basis for now in (stale_s, stale_s + 0.1)] == ["device", "unknown"]


def test_unused_setting_is_reported() -> None:
    found = {p.variable: p.message for p in collect_advice(Settings(quotas=True, gpu="none"))}
    assert "reserves no memory" in found[PREFIX + "QUOTAS"]
    for quotas in (True, False):
        settings = Settings(quotas=quotas, policy="fixed", gpu_memory_target=0.8)
        unread = PREFIX + "GPU_MEMORY_TARGET" in {p.variable for p in collect_advice(settings)}
        assert unread is not quotas
