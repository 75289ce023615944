"""Every setting arrives at the mechanism that it is for."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from autoglm_throttle import Demand, Policy, Priority, Settings, assembly
from autoglm_throttle.control.controller import ControlRules, Hysteresis
from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.limiting.cap import Cap
from autoglm_throttle.limiting.gate import Gate, GateRules, Ticket
from autoglm_throttle.limiting.token_bucket import TokenBucket
from autoglm_throttle.model import Borrow, Signal, Unknown

NOW_S = 1000.0

GATE_SETTINGS: dict[str, Any] = {
    "slo_s": 9.0,
    "latency_budget": 0.33,
    "wait_budget": 0.44,
    "inflight_start": 21,
    "inflight_floor": 3,
    "inflight_max": 77,
    "queue_max": 55,
    "period_s": 0.75,
    "period_completions": 11,
    "min_share": 0.07,
    "gpu_memory_target": 0.81,
    "dry_run": True,
}


class TestGate:
    """What limits the requests in flight."""

    @pytest.mark.parametrize("policy", [Policy.ADAPTIVE, Policy.GATE])
    def test_each_of_its_rules_is_a_setting(self, policy: Policy) -> None:
        gate = assembly.gate(Settings(policy=policy, **GATE_SETTINGS), NOW_S)
        assert isinstance(gate, Gate)
        expected = {name.removeprefix("gpu_"): value for name, value in GATE_SETTINGS.items()}
        assert {field.name: getattr(gate._rules, field.name) for field in fields(GateRules)} == expected

    def test_its_rules_and_the_settings_have_the_same_defaults(self) -> None:
        gate = assembly.gate(Settings(policy="gate"), NOW_S)
        assert isinstance(gate, Gate)
        assert gate._rules == GateRules()

    @pytest.mark.parametrize("policy", [Policy.TIERS, Policy.FIXED])
    @pytest.mark.parametrize(("inflight_max", "limit"), [(0, math.inf), (77, 77)])
    def test_without_a_measured_service_it_is_a_cap(
        self, policy: Policy, inflight_max: int, limit: float
    ) -> None:
        cap = assembly.gate(Settings(policy=policy, inflight_max=inflight_max), NOW_S)
        assert isinstance(cap, Cap)
        assert cap.limit == limit

    @pytest.mark.parametrize("policy", list(Policy))
    def test_each_policy_has_one(self, policy: Policy) -> None:
        gate = assembly.gate(Settings(policy=policy), NOW_S)
        assert (policy in assembly.WITH_GATE) == isinstance(gate, Gate)

    def test_a_line_without_places_refuses(self) -> None:
        gate = assembly.gate(Settings(policy="gate", queue_max=0, inflight_start=2), NOW_S)
        assert [gate.enter(Demand(), NOW_S) for _ in range(3)] == [True, True, False]
        assert not isinstance(gate.line_up(Demand(), NOW_S), Ticket)

    @pytest.mark.parametrize(
        ("start", "floor", "workers", "most"), [(64, 2, 4, 16), (9, 2, 2, 5), (4, 2, 8, 2), (64, 2, 1, 64)]
    )
    def test_the_first_limit_is_shared_by_all_workers(
        self, start: int, floor: int, workers: int, most: int
    ) -> None:
        settings = Settings(policy="gate", inflight_start=start, inflight_floor=floor, workers=workers)
        assert assembly.gate(settings, NOW_S).limit == most


class TestRates:
    """The buckets of the classes and the budget that they share."""

    def test_each_process_gets_its_part(self) -> None:
        settings = Settings(rate_high_rps=80, rate_mid_rps=40, rate_low_rps=20, workers=4, burst_s=3.0)
        buckets = assembly.priority_buckets(settings, NOW_S)
        assert [(bucket.rate, bucket.burst) for bucket in buckets.all] == [(20, 60), (10, 30), (5, 15)]
        assert assembly.control_rules(settings).rates == (20.0, 10.0, 5.0)

    @pytest.mark.parametrize(("borrow", "lent"), [(Borrow.OFF, False), (Borrow.ANY, True)])
    def test_lending_is_a_setting(self, borrow: Borrow, lent: bool) -> None:
        buckets = assembly.priority_buckets(Settings(rate_high_rps=1, borrow=borrow), NOW_S)
        taken = [buckets.take(Demand(Priority.HIGH), NOW_S) for _ in range(2)]
        assert isinstance(taken[1], TokenBucket) == lent

    def test_high_leaves_nothing_behind_and_the_others_their_reserves(self) -> None:
        budget = assembly.shared_budget(Settings(reserve_mid=0.2, reserve_low=0.5), NOW_S)
        assert budget._reserves == (0.0, 0.2, 0.5)


class TestControl:
    """What the controller goes by."""

    def test_each_of_its_rules_is_a_setting(self) -> None:
        rules = assembly.control_rules(
            Settings(
                policy="adaptive",
                tiers="50:0.5,60:0.1",
                tier_samples=4,
                tier_release_samples=5,
                tier_release_margin_pct=6.0,
                tier_recovery_step=0.2,
                sample_interval_s=2.0,
                gpu_stale_after_s=11.0,
                gpu_blind_after_s=44.0,
                gpu_unknown="closed",
                signal="pressure",
                gpu_memory_target=0.8,
                gpu_pressure_terms="latency",
                adaptive_headroom=1.4,
                adaptive_release_samples=7,
            )
        )
        assert rules.policy is Policy.ADAPTIVE
        assert (rules.table.edge_pct, rules.table.factor(55.0), rules.table.factor(61.0)) == (50.0, 0.5, 0.1)
        assert rules.hysteresis == Hysteresis(4, 5, 6.0, 0.2)
        expected = Staleness(2.0, 11.0, 44.0, Unknown.CLOSED)
        assert vars_of(rules.staleness) == vars_of(expected)
        assert (rules.interval_s, rules.signal, rules.memory_target) == (2.0, Signal.PRESSURE, 0.8)
        assert rules.pressure_terms == ("latency",)
        assert (rules.headroom, rules.release_samples) == (1.4, 7)

    def test_its_rules_and_the_settings_have_the_same_defaults(self) -> None:
        rules = assembly.control_rules(Settings())
        plain = ControlRules(
            Policy.ADAPTIVE, (1000.0, 500.0, 100.0), rules.table, Hysteresis(), rules.staleness, 1.0
        )
        assert rules == plain
        assert isinstance(rules.table, TierTable)


def vars_of(thing: object) -> dict[str, Any]:
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(thing, name) for name in names or vars(thing)}


class TestUserWindows:
    """Whose limit is in force."""

    def test_limits_of_plans_routes_and_addresses_are_those_of_the_settings(self) -> None:
        settings = Settings(
            user_limit="5/minute",
            address_factor=3.0,
            max_users=123,
            plans={"gold": {"user_limit": "7/minute"}},
            routes=[{"pattern": "/r", "name": "r", "user_limit": "2/minute"}],
        )
        windows = assembly.user_windows(settings)
        for demand, remaining in (
            (Demand(user="a"), 4),
            (Demand(user="b", plan="gold"), 6),
            (Demand(user="c", route="r"), 1),
        ):
            decision = windows.hit(demand, NOW_S)
            assert decision is not None
            assert decision.remaining == remaining
        decision = windows.hit(Demand(user="d", address="here"), NOW_S)
        assert decision is not None
        assert [item.remaining for item in decision.others] == [14]
        assert windows._max_users == 123
