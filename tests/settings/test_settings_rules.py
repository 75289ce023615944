"""What settings must hold together, and advice."""

from __future__ import annotations

import pytest

from autoglm_throttle.settings import ConfigError, Plan, RoutePolicy, Settings, advice

SECRET = "0123456789abcdef"
MEMBER = "07f3a9c2d4e5b617"


@pytest.mark.parametrize(
    ("values", "blamed"),
    [
        ({"gpu_stale_after_s": 10, "gpu_blind_after_s": 19.9}, "gpu_blind_after_s"),
        ({"sample_interval_s": 10, "gpu_blind_after_s": 59}, "gpu_blind_after_s"),
        ({"gpu_blind_after_s": 5.9}, "gpu_blind_after_s"),
        ({"sample_interval_s": 5, "gpu_stale_after_s": 5}, "gpu_stale_after_s"),
        ({"tier_release_margin_pct": 85.1}, "tier_release_margin_pct"),
        ({"gpu_required": True, "gpu": "none"}, "gpu_required"),
        ({"plans": [Plan("gold", members=[MEMBER])]}, "plans"),
    ],
)
def test_a_contradiction_is_a_problem(values: dict[str, object], blamed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    assert [problem.variable for problem in caught.value.problems] == [blamed]


@pytest.mark.parametrize(
    "values",
    [
        {"gpu_stale_after_s": 10, "gpu_blind_after_s": 20},
        {"sample_interval_s": 60},
        {"gpu_stale_after_s": 100},
        {"tier_release_margin_pct": 85},
        {"gpu_required": True},
        {"gpu_required": False, "gpu": "none"},
        {"plans": [Plan("gold", members=[MEMBER])], "key_secret": SECRET},
        {"plans": [Plan("gold")]},
    ],
)
def test_what_fits_together_is_allowed(values: dict[str, object]) -> None:
    Settings(**values)


def test_rules_are_asked_beside_other_faults_but_not_about_faulty_values() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(workers=0, gpu_required=True, gpu="none", sample_interval_s="soon", gpu_blind_after_s=1)
    names = [problem.variable for problem in caught.value.problems]
    assert names == ["workers", "gpu_required", "sample_interval_s"]


def variables(settings: Settings) -> list[str]:
    return [remark.variable.removeprefix("AUTOGLM_THROTTLE_") for remark in advice(settings)]


def quiet(**values: object) -> Settings:
    return Settings(**({"workers": 1, "user_limit": "5/s", "key_secret": SECRET} | values))


def test_advice_on_defaults_and_none_on_a_full_configuration() -> None:
    assert variables(Settings()) == ["WORKERS", "USER_LIMIT", "KEY_SECRET"]
    assert variables(quiet()) == []


@pytest.mark.parametrize(
    ("values", "about"),
    [
        ({"priority_header_trust": "any"}, "PRIORITY_HEADER_TRUST"),
        ({"priority_header_trust": "proxy"}, "PRIORITY_HEADER_TRUST"),
        ({"trusted_proxies": "0.0.0.0/0"}, "TRUSTED_PROXIES"),
        ({"trusted_proxies": "::/0"}, "TRUSTED_PROXIES"),
        ({"gpu_devices": "0", "gpu": "none"}, "GPU_DEVICES"),
        ({"routes": [RoutePolicy("/*"), RoutePolicy("/a")]}, "routes[1]"),
        ({"routes": [RoutePolicy("/health")]}, "routes[0]"),
    ],
)
def test_advice(values: dict[str, object], about: str) -> None:
    assert variables(quiet(**values)) == [about]


@pytest.mark.parametrize(
    "values",
    [
        {"priority_header_trust": "proxy", "trusted_proxies": "10.0.0.1"},
        {"gpu_devices": "0", "gpu": "nvml"},
        {"routes": [RoutePolicy("/health", exempt=True), RoutePolicy("/*"), RoutePolicy("/metrics/{x}")][:2]},
        {"user_limit": "off", "user_limit_low": "1/s"},
    ],
)
def test_no_advice(values: dict[str, object]) -> None:
    assert variables(quiet(**values)) == []


def test_advice_repeats_what_was_let_pass() -> None:
    environ = {"AUTOGLM_THROTTLE_FUTURE": "1", "AUTOGLM_THROTTLE_UNKNOWN_ENV": "warn"}
    assert "FUTURE" in variables(Settings.from_env(environ))


@pytest.mark.parametrize(
    ("values", "route", "why"),
    [
        ({"workers": 100}, RoutePolicy("/big", priority="low", cost=5), "low bucket of one worker holds 1"),
        ({}, RoutePolicy("/big", cost=5, user_limit="4/minute"), "user limit user-60s is 4"),
        ({"user_limit": "3/s"}, RoutePolicy("/big", cost=4), "user limit user-1s is 3"),
    ],
)
def test_a_route_that_can_never_be_admitted_is_told(
    values: dict[str, object], route: RoutePolicy, why: str
) -> None:
    told = [problem.message for problem in advice(Settings(routes=[route], **values))]
    assert any("can never be admitted" in message and why in message for message in told)
    dear_no_more = RoutePolicy("/big", priority="low", cost=1, user_limit="4/minute")
    fine = advice(Settings(routes=[dear_no_more], **values))
    assert not any("can never be admitted" in problem.message for problem in fine)
