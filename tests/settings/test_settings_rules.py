"""Checks of several settings together, and advice on unusual ones."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.settings import ConfigError, PlanPolicy, RoutePolicy, Settings, settings_table
from autoglm_throttle.settings.advice import PRESSURE_ONLY, READING_POLICIES, collect_advice
from autoglm_throttle.types import Policy

SECRET = "0123456789abcdef"
MEMBER = "07f3a9c2d4e5b617"


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"gpu_stale_after_s": 10, "gpu_blind_after_s": 19.9}, "gpu_blind_after_s"),
        ({"sample_interval_s": 10, "gpu_blind_after_s": 59}, "gpu_blind_after_s"),
        ({"gpu_blind_after_s": 5.9}, "gpu_blind_after_s"),
        ({"sample_interval_s": 5, "gpu_stale_after_s": 5}, "gpu_stale_after_s"),
        ({"tier_release_margin_pct": 85.1}, "tier_release_margin_pct"),
        ({"gpu_required": True, "gpu": "none"}, "gpu_required"),
        ({"plans": [PlanPolicy("gold", members=[MEMBER])]}, "plans"),
        ({"inflight_floor": 17}, "inflight_floor"),
        ({"inflight_start": 1}, "inflight_start"),
        ({"inflight_floor": 9, "inflight_start": 8}, "inflight_floor"),
        ({"inflight_start": 33, "inflight_max": 32}, "inflight_start"),
        ({"inflight_floor": 9, "inflight_max": 8}, "inflight_floor"),
        ({"reserve_mid": 0.7}, "reserve_mid"),
        ({"reserve_low": 0.2}, "reserve_low"),
        ({"reserve_mid": 0.5, "reserve_low": 0.4}, "reserve_mid"),
        ({"signal": "pressure", "gpu_pressure_terms": "none"}, "gpu_pressure_terms"),
        ({"verdict_power_stalled": 0.5}, "verdict_power_stalled"),
        ({"verdict_power_underfed": 0.2}, "verdict_power_underfed"),
        ({"verdict_sm_stalled": 0.3}, "verdict_sm_stalled"),
        ({"verdict_sm_underfed": 0.01}, "verdict_sm_underfed"),
        ({"sample_adaptive": True, "sample_interval_s": 11}, "sample_adaptive"),
        ({"sample_adaptive": True, "sample_interval_max_s": 0.9}, "sample_adaptive"),
        ({"deadline_header": "X-Priority"}, "deadline_header"),
        ({"deadline_header": "x-d", "priority_header": "x-d"}, "deadline_header"),
        ({"record_headers": "x-key", "identity": "header:x-key"}, "record_headers"),
    ],
)
def test_contradiction_is_one_problem(values: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    assert [problem.variable for problem in caught.value.problems] == [place]


def test_interval_of_an_idle_service_names_the_other_setting() -> None:
    with pytest.raises(ConfigError, match="sample_interval_max_s to be at least SAMPLE_INTERVAL_S, 60 s"):
        Settings(sample_adaptive=True, sample_interval_s=60)


@pytest.mark.parametrize(
    "values",
    [
        {"gpu_stale_after_s": 10, "gpu_blind_after_s": 20},
        {"sample_interval_s": 60},
        {"gpu_stale_after_s": 100},
        {"tier_release_margin_pct": 85},
        {"gpu_required": True},
        {"gpu_required": False, "gpu": "none"},
        {"plans": [PlanPolicy("gold", members=[MEMBER])], "key_secret": SECRET},
        {"plans": [PlanPolicy("gold")]},
        {"inflight_start": 2},
        {"inflight_floor": 8, "inflight_start": 8, "inflight_max": 8},
        {"inflight_max": 1},
        {"inflight_max": 32},
        {"inflight_start": 1000, "inflight_max": 0},
        {"reserve_mid": 0, "reserve_low": 0},
        {"reserve_mid": 0.875, "reserve_low": 0.875},
        {"gpu_pressure_terms": "none", "signal": "auto"},
        {"deadline_header": "x-deadline"},
        {"sample_adaptive": True, "sample_interval_s": 10},
        {"sample_adaptive": False, "sample_interval_s": 11},
    ],
)
def test_settings_that_agree_are_allowed(values: dict[str, Any]) -> None:
    Settings(**values)


def test_checks_need_valid_values() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(workers=0, gpu_required=True, gpu="none", sample_interval_s="soon", gpu_blind_after_s=1)
    names = [problem.variable for problem in caught.value.problems]
    assert names == ["workers", "gpu_required", "sample_interval_s"]


def test_contradiction_hint_gives_the_fix() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(inflight_floor=31, inflight_start=33, inflight_max=32, reserve_low=0.25)
    assert [str(problem) for problem in caught.value.problems] == [
        "reserve_low: must be at least reserve_mid, 0.3 (or lower reserve_mid)",
        "inflight_start: must be at most INFLIGHT_MAX, 32 (it can never be reached)",
    ]
    with pytest.raises(ConfigError, match=r"at most inflight_start, 33 \(or raise inflight_start\)"):
        Settings(inflight_floor=34, inflight_start=33)


def variables(settings: Settings) -> list[str]:
    return [
        advice_text.variable.removeprefix("AUTOGLM_THROTTLE_") for advice_text in collect_advice(settings)
    ]


def quiet(**values: Any) -> Settings:
    full: dict[str, Any] = {"policy": "tiers", "workers": 1, "user_limit": "5/s", "key_secret": SECRET}
    return Settings(**(full | values))


def test_full_configuration_gives_no_advice() -> None:
    assert variables(Settings(policy="tiers")) == ["WORKERS", "USER_LIMIT", "KEY_SECRET"]
    assert variables(Settings(policy="concurrency")) == ["WORKERS", "SLO_S", "USER_LIMIT", "KEY_SECRET"]
    assert variables(quiet()) == []
    assert variables(quiet(policy="adaptive", slo_s=2)) == []


@pytest.mark.parametrize(
    ("values", "about"),
    [
        ({"priority_header_trust": "any"}, "PRIORITY_HEADER_TRUST"),
        ({"priority_header_trust": "proxy"}, "PRIORITY_HEADER_TRUST"),
        ({"trusted_proxies": "0.0.0.0/0"}, "TRUSTED_PROXIES"),
        ({"trusted_proxies": "::/0"}, "TRUSTED_PROXIES"),
        ({"gpu_devices": "0", "gpu": "none"}, "GPU_DEVICES"),
        ({"gpu_devices": "0", "gpu": "vllm:http://h,fake:x"}, "GPU_DEVICES"),
        ({"gpu_devices": "0", "gpu": "vllm:http://h"}, "GPU_DEVICES"),
        ({"gpu_devices": "0", "gpu": "nvml,dcgm:http://h"}, "GPU_DEVICES"),
        ({"gpu_selector": 'a="b"', "gpu": "auto,dcgm:http://h"}, "GPU_SELECTOR"),
        ({"routes": [RoutePolicy("/*"), RoutePolicy("/a")]}, "routes[1]"),
        ({"routes": [RoutePolicy("/health")]}, "routes[0]"),
        ({"dry_run": True}, "DRY_RUN"),
        ({"websockets": "slot"}, "WEBSOCKETS"),
        ({"policy": "fixed", "websockets": "slot"}, "WEBSOCKETS"),
        ({"policy": "adaptive"}, "SLO_S"),
        ({"routes": [RoutePolicy("/a", slo_s=9)]}, "routes[0]"),
        ({"routes": [RoutePolicy("/a", slot="stream")]}, "routes[0]"),
        (
            {"policy": "concurrency", "slo_s": 9, "routes": [RoutePolicy("/a", exempt=True, slot="none")]},
            "routes[0]",
        ),
        (
            {"policy": "concurrency", "slo_s": 9, "routes": [RoutePolicy("/a", exempt=True, slo_s=9)]},
            "routes[0]",
        ),
    ],
)
def test_unusual_setting_gives_advice(values: dict[str, Any], about: str) -> None:
    assert variables(quiet(**values)) == [about]


@pytest.mark.parametrize(
    "values",
    [
        {"priority_header_trust": "proxy", "trusted_proxies": "10.0.0.1"},
        {"gpu_devices": "0", "gpu": "nvml"},
        {"gpu_devices": "0", "gpu": "nvml,vllm:http://h"},
        {"gpu_selector": 'a="b"', "gpu": "auto,prometheus:http://h"},
        {"routes": [RoutePolicy("/health", exempt=True), RoutePolicy("/*"), RoutePolicy("/metrics/{x}")][:2]},
        {"user_limit": "off", "user_limit_low": "1/s"},
        {"websockets": "slot", "inflight_max": 8},
        {"websockets": "slot", "policy": "concurrency", "slo_s": 30},
        {"policy": "concurrency", "slo_s": 9, "routes": [RoutePolicy("/a", slo_s=9, slot="none")]},
        {"inflight_max": 8, "routes": [RoutePolicy("/a", slot="stream")]},
    ],
)
def test_consistent_settings_give_no_advice(values: dict[str, Any]) -> None:
    assert variables(quiet(**values)) == []


GIVEN: dict[str, tuple[object, str]] = {
    "signal": ("utilization", "adaptive tiers"),
    "slo_s": (30, "adaptive concurrency"),
    "latency_budget": (0.5, "adaptive concurrency"),
    "slo_ttft_s": (1, "adaptive concurrency"),
    "slo_ttft_high_s": (1, "adaptive concurrency"),
    "slo_ttft_mid_s": (1, "adaptive concurrency"),
    "slo_ttft_low_s": (1, "adaptive concurrency"),
    "inflight_max": (64, "adaptive tiers concurrency fixed"),
    "queue_max": (9, "adaptive concurrency"),
    "min_share": (0.1, "adaptive concurrency"),
    "tiers": ("80:0.5", "adaptive tiers"),
    "tier_samples": (5, "adaptive tiers"),
    "tier_release_samples": (3, "tiers"),
    "tier_release_margin_pct": (5, "tiers"),
    "tier_recovery_step": (0.1, "tiers"),
    "nginx_flags_dir": ("/run/throttle", "adaptive tiers"),
    "deadline_header": ("x-deadline", "adaptive concurrency"),
    "gpu_unknown": ("last", "tiers"),
    "gpu_memory_target": (0.8, "adaptive concurrency"),
    "gpu_queue_target": (7, ""),
    "gpu_kv_target": (0.7, ""),
    "gpu_pressure_terms": ("memory", ""),
    "inflight_start": (32, "adaptive concurrency"),
    "inflight_floor": (4, "adaptive concurrency"),
    "wait_budget": (0.5, "adaptive concurrency"),
    "fairness": ("fifo", "adaptive concurrency"),
    "period_s": (1, "adaptive concurrency"),
    "period_completions": (16, "adaptive concurrency"),
    "adaptive_headroom": (1.5, "adaptive"),
    "adaptive_release_samples": (4, "adaptive"),
    "reserve_mid": (0.1, "adaptive"),
    "reserve_low": (0.7, "adaptive"),
    "degrade_shed_at": (0.7, "adaptive tiers concurrency"),
    "degrade_stale_at": (0.85, "adaptive tiers concurrency"),
    "degrade_static_at": (0.99, "adaptive tiers concurrency"),
    "degrade_margin": (0.1, "adaptive tiers concurrency"),
    "degrade_samples": (5, "adaptive tiers concurrency"),
    "degrade_load_stale_s": (9, "adaptive tiers concurrency"),
}
"""Setting -> a value, and the policies that read it with the signal ``auto``."""

UNDER_PRESSURE = {
    "slo_s": "adaptive tiers concurrency",
    "gpu_memory_target": "adaptive tiers concurrency",
    "gpu_queue_target": "adaptive tiers",
    "gpu_kv_target": "adaptive tiers",
    "gpu_pressure_terms": "adaptive tiers",
}


@pytest.mark.parametrize("signal", ["auto", "pressure"])
@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("name", GIVEN)
def test_unused_setting_is_reported(name: str, policy: Policy, signal: str) -> None:
    value, readers = GIVEN[name]
    if signal == "pressure":
        readers = UNDER_PRESSURE.get(name, readers)
    rest = {"slo_s": 2, "signal": signal, "policy": policy} | {name: value}
    reported = {problem.variable: problem for problem in collect_advice(quiet(**rest))}
    problem = reported.get(settings_table()[name].variable)
    assert (problem is None) is (policy.value in readers.split())
    if problem is not None:
        assert problem.message.startswith("has no effect with ")
        assert problem.hint.startswith("read ")


def test_hint_names_the_readers_of_a_setting() -> None:
    (reported,) = collect_advice(quiet(latency_budget=0.5))
    assert (reported.message, reported.hint) == (
        "has no effect with POLICY=tiers",
        "read by adaptive and concurrency",
    )
    (reported,) = collect_advice(quiet(slo_s=30, policy="fixed"))
    assert reported.hint == "read by adaptive, tiers and concurrency"
    (reported,) = collect_advice(quiet(reserve_low=0.7))
    assert (reported.variable, reported.hint) == ("reserve_low", "read by adaptive")
    (reported,) = collect_advice(quiet(gpu_pressure_terms="memory"))
    assert reported.message == "has no effect with SIGNAL=auto and no engine in GPU"
    assert reported.hint == "read with SIGNAL=pressure"
    (reported,) = collect_advice(
        quiet(gpu_pressure_terms="memory", signal="utilization", gpu="vllm:http://h")
    )
    assert reported.message == "has no effect with SIGNAL=utilization"


def test_engine_makes_the_pressure_the_signal() -> None:
    assert not list(
        collect_advice(quiet(gpu_kv_target=0.7, gpu="auto,sglang:http://h", policy="tiers", slo_s=2))
    )


def test_prometheus_server_may_know_an_engine() -> None:
    assert not list(collect_advice(quiet(gpu_kv_target=0.7, gpu="prometheus:http://h", slo_s=2)))


def test_longest_interval_needs_adaptive_sampling() -> None:
    (reported,) = collect_advice(quiet(sample_interval_max_s=5))
    assert reported.variable == settings_table()["sample_interval_max_s"].variable
    assert reported.message == "has no effect without SAMPLE_ADAPTIVE"
    assert not list(collect_advice(quiet(sample_interval_max_s=5, sample_adaptive=True)))


def test_unset_objective_is_said_to_be_learned() -> None:
    (reported,) = collect_advice(quiet(policy="concurrency"))
    assert "is learned" in reported.message


def test_settings_of_single_policies_are_all_tested() -> None:
    assert {name for name in READING_POLICIES if name not in GIVEN} == set()
    assert set(PRESSURE_ONLY) <= set(READING_POLICIES) <= set(settings_table())


def test_advice_repeats_ignored_names() -> None:
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
def test_route_that_is_never_admitted_is_reported(
    values: dict[str, Any], route: RoutePolicy, why: str
) -> None:
    reported = [problem.message for problem in collect_advice(Settings(routes=[route], **values))]
    assert any("can never be admitted" in message and why in message for message in reported)
    dear_no_more = RoutePolicy("/big", priority="low", cost=1, user_limit="4/minute")
    fine = collect_advice(Settings(routes=[dear_no_more], **values))
    assert not any("can never be admitted" in problem.message for problem in fine)
