"""Every setting reaches its mechanism."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import SecretStr

from autoglm_throttle import Demand, Priority, Settings
from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.admission import factory
from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter, Ticket
from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.limiting.fixed_limit import FixedConcurrencyLimit
from autoglm_throttle.limiting.token_bucket import SharedBudget, TokenBucket
from autoglm_throttle.limiting.user_limits import UserLimits
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import AnyCharge, StoreErrorKind, WindowEntry
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.store.shared_limits import SharedUserLimits
from autoglm_throttle.types import BorrowMode, ControlState, Policy, ServiceStats, Signal, StoreFailureMode
from autoglm_throttle.types.identity import CallerHasher
from tests.control.views import view, waiting

NOW_S = 1000.0


class TestConcurrencyLimiter:
    """The limiter of the requests in flight."""

    @pytest.mark.parametrize("policy", [Policy.ADAPTIVE, Policy.CONCURRENCY])
    def test_it_receives_its_group(self, policy: Policy) -> None:
        settings = Settings(policy=policy, slo_s=9.0)
        limiter = factory.concurrency_limiter(settings, NOW_S)
        assert isinstance(limiter, AdaptiveConcurrencyLimiter)
        assert limiter.settings is settings.concurrency

    @pytest.mark.parametrize(("target", "blind"), [(0.92, False), (0.81, True)])
    def test_memory_target_is_a_setting(self, target: float, blind: bool) -> None:
        limiter = factory.concurrency_limiter(Settings(policy="concurrency", gpu_memory_target=target), NOW_S)
        limiter.update_memory(0.8)
        assert limiter.view(NOW_S).memory_blind is blind

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_dry_run_is_a_setting(self, dry_run: bool) -> None:
        limiter = factory.concurrency_limiter(Settings(policy="concurrency", dry_run=dry_run), NOW_S)
        for _ in range(65):
            limiter.occupy_over_limit(Demand(Priority.MID), limiter.work_classes[""])
        assert limiter.report().confirmed is dry_run

    @pytest.mark.parametrize("policy", [Policy.TIERS, Policy.FIXED])
    @pytest.mark.parametrize(("inflight_max", "limit"), [(0, math.inf), (77, 77)])
    def test_without_a_measured_service_it_is_a_cap(
        self, policy: Policy, inflight_max: int, limit: float
    ) -> None:
        cap = factory.concurrency_limiter(Settings(policy=policy, inflight_max=inflight_max), NOW_S)
        assert isinstance(cap, FixedConcurrencyLimit)
        assert cap.limit == limit

    @pytest.mark.parametrize("policy", list(Policy))
    def test_each_policy_has_one(self, policy: Policy) -> None:
        limiter = factory.concurrency_limiter(Settings(policy=policy), NOW_S)
        assert (policy in {Policy.ADAPTIVE, Policy.CONCURRENCY}) == isinstance(
            limiter, AdaptiveConcurrencyLimiter
        )

    def test_queue_of_length_0_rejects(self) -> None:
        limiter = factory.concurrency_limiter(
            Settings(policy="concurrency", queue_max=0, inflight_start=2), NOW_S
        )
        one = limiter.work_classes[""]
        assert [bool(limiter.try_acquire(Demand(), one, NOW_S)) for _ in range(3)] == [True, True, False]
        assert not isinstance(limiter.enqueue(Demand(), one, NOW_S), Ticket)

    @pytest.mark.parametrize(
        ("start", "floor", "workers", "most"), [(64, 2, 4, 16), (9, 2, 2, 5), (4, 2, 8, 1), (64, 2, 1, 64)]
    )
    def test_the_first_limit_is_shared_by_all_workers(
        self, start: int, floor: int, workers: int, most: int
    ) -> None:
        settings = Settings(policy="concurrency", inflight_start=start, inflight_floor=floor, workers=workers)
        assert factory.concurrency_limiter(settings, NOW_S).limit == most


class TestRates:
    """The buckets of the classes and their shared budget."""

    def test_each_process_gets_its_part(self) -> None:
        settings = Settings(rate_high_rps=80, rate_mid_rps=40, rate_low_rps=20, workers=4, burst_s=3.0)
        buckets = factory.priority_buckets(settings, NOW_S)
        assert [(bucket.rate, bucket.burst) for bucket in buckets.all] == [(20, 60), (10, 30), (5, 15)]

    @pytest.mark.parametrize(("borrow", "lent"), [(BorrowMode.OFF, False), (BorrowMode.ANY, True)])
    def test_lending_is_a_setting(self, borrow: BorrowMode, lent: bool) -> None:
        buckets = factory.priority_buckets(Settings(rate_high_rps=1, borrow=borrow), NOW_S)
        taken = [buckets.take(Demand(Priority.HIGH), NOW_S) for _ in range(2)]
        assert isinstance(taken[1], TokenBucket) == lent

    def test_high_uses_all_and_others_leave_reserves(self) -> None:
        budget = SharedBudget(RateSettings(reserve_mid=0.2, reserve_low=0.5), NOW_S)
        assert budget.reserves == (0.0, 0.2, 0.5)


def states_at(pct: float, samples: int, **settings: Any) -> list[ControlState]:
    """Show so many hot samples to the controller while requests are queued; the state after each."""
    controller = factory.controller(Settings(**settings), NOW_S)
    return [
        controller.observe(view(pct, memory=0.5), waiting(service_rps=1.0), ServiceStats(), NOW_S + second)
        for second in range(samples)
    ]


class TestControl:
    """The controller of the policy."""

    def test_its_table_is_a_setting(self) -> None:
        states = states_at(55.0, 3, policy="tiers", tiers="50:0.5,60:0.1", tier_samples=2)
        assert [state.factor for state in states] == [1.0, 0.5, 0.5]

    def test_its_signal_and_targets_are_settings(self) -> None:
        (state,) = states_at(99.0, 1, policy="fixed", signal="pressure", gpu_memory_target=0.8)
        assert (state.signal, state.term) == (Signal.PRESSURE, "memory")
        (state,) = states_at(99.0, 1, policy="tiers", signal="pressure", gpu_memory_target=0.8)
        assert state.load == 0.5 / 0.8

    @pytest.mark.parametrize("policy", [Policy.TIERS, Policy.ADAPTIVE])
    def test_its_age_limits_are_settings(self, policy: Policy) -> None:
        stale = Settings(policy=policy, gpu_stale_after_s=9.0, gpu_blind_after_s=44.0)
        controller = factory.controller(stale, NOW_S)
        controller.observe(view(50.0), waiting(), ServiceStats(), NOW_S)
        telemetry = [controller.control_state(NOW_S + age_s).telemetry.value for age_s in (9.0, 44.0, 45.0)]
        assert telemetry == ["late", "stale", "blind"]

    @pytest.mark.parametrize(
        ("others", "budget_rps"), [({"workers": 4}, 14.0), ({"workers": 4, "fleet": True}, 56.0)]
    )
    def test_it_divides_the_rates_unless_a_fleet_does(
        self, others: dict[str, Any], budget_rps: float
    ) -> None:
        rates = {"rate_high_rps": 80, "rate_mid_rps": 40, "rate_low_rps": 20}
        states = states_at(92.0, 3, redis_url="redis://host", adaptive_headroom=1.0, **rates, **others)
        assert states[-1].budget_rps == pytest.approx(budget_rps)


class TestUserLimits:
    """The selection of user limits."""

    def test_limits_of_plans_routes_and_addresses_match_settings(self) -> None:
        settings = Settings(
            user_limit="5/minute",
            address_factor=3.0,
            max_users=123,
            plans={"gold": {"user_limit": "7/minute"}},
            routes=[{"pattern": "/r", "name": "r", "user_limit": "2/minute"}],
        )
        windows = factory.user_limits(
            settings, CallerHasher(b"a key of the tests"), SerialLock(), lambda: NOW_S
        )
        assert isinstance(windows, UserLimits)
        for demand, remaining in (
            (Demand(user="a"), 4),
            (Demand(user="b", plan="gold"), 6),
            (Demand(user="c", route="r"), 1),
        ):
            assert decision_of(windows.hit(demand, NOW_S)).remaining == remaining
        decision = decision_of(windows.hit(Demand(user="d", address="here"), NOW_S))
        assert [item.remaining for item in decision.others] == [14]
        assert windows.max_users == 123


class TestSharedStore:
    """The settings of a shared store."""

    URL = "redis://user:password@host:6379/3"

    def windows(self, **settings: Any) -> UserLimits | SharedUserLimits:
        values = {"user_limit": "5/minute", "redis_url": self.URL} | settings
        return factory.user_limits(
            Settings(**values), CallerHasher(b"a key of the tests"), SerialLock(), lambda: NOW_S
        )

    def shared(self, **settings: Any) -> SharedUserLimits:
        windows = self.windows(**settings)
        assert isinstance(windows, SharedUserLimits)
        return windows

    def test_a_store_that_no_limit_uses_is_not_opened(self) -> None:
        assert isinstance(self.windows(user_limit="off"), UserLimits)

    def test_redis_gets_its_times_sizes_and_names(self) -> None:
        chosen: dict[str, Any] = {
            "redis_prefix": "p",
            "service": "s",
            "redis_partitions": 1,
            "redis_deadline_s": 0.1,
        }
        store = self.shared(**chosen).store
        assert isinstance(store, RedisUserLimitStore)
        assert store.settings == StoreSettings(redis_url=SecretStr(self.URL), **chosen)
        (charge,) = self._pending_check(self.shared(redis_prefix="p", service="s", redis_partitions=1))
        assert store.protocol.build_check([charge]).keys == (f"p:s:w2:{{0}}:user:l60:{'a' * 16}",)

    def test_an_outage_goes_by_the_settings(self) -> None:
        windows = self.shared(redis_failures=7, redis_probe_s=2.5, redis_on_error="deny", workers=3)
        states = []
        for _ in range(7):
            lost = windows.store_health.record_result(StoreErrorKind.TIMEOUT, NOW_S)
            windows.record_change(lost, NOW_S)
            states.append(windows.store_health.state)
        assert states == [HealthState.UP] * 6 + [HealthState.DOWN]
        assert 2.0 <= windows.store_health.next_probe_s - NOW_S <= 3.0
        assert (windows.view().on_error, windows.view().processes) == (StoreFailureMode.DENY, 3)

    def test_what_is_remembered_is_bounded_by_the_settings(self) -> None:
        windows = self.shared(refused_cache=7, refused_cache_s=0.5, max_users=300)
        assert (windows.deny_cache.size, windows.deny_cache.recheck_after_s) == (7, 0.5)
        assert windows.fallback.last_known.size == 300
        assert windows.fallback.last_known.size == 300

    def test_a_name_that_is_no_identity_becomes_one(self) -> None:
        (named,) = self._pending_check(self.shared(), "somebody")
        assert named.user == CallerHasher(b"a key of the tests").hash("user", "somebody")
        (known,) = self._pending_check(self.shared(), "0123456789abcdef")
        assert known.user == "0123456789abcdef"

    def _pending_check(self, windows: SharedUserLimits, user: str = "a" * 16) -> tuple[AnyCharge, ...]:
        windows.is_usable = lambda: True
        question = windows.hit(Demand(user=user), NOW_S)
        assert isinstance(question, WindowEntry)
        return tuple(question.charges)
