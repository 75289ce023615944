"""From settings to mechanisms: what a Throttle is put together from."""

from __future__ import annotations

import math

from autoglm_throttle.control.controller import ControlRules, Hysteresis
from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.limiting.cap import Cap
from autoglm_throttle.limiting.gate import Gate, GateRules
from autoglm_throttle.limiting.limit_sets import LimitSets
from autoglm_throttle.limiting.shared_budget import SharedBudget
from autoglm_throttle.limiting.token_bucket import PriorityBuckets
from autoglm_throttle.limiting.user_windows import UserWindows
from autoglm_throttle.model import Policy
from autoglm_throttle.settings import Settings

WITH_GATE = frozenset({Policy.ADAPTIVE, Policy.GATE})


def priority_buckets(settings: Settings, now: float) -> PriorityBuckets:
    """The buckets of this process: its part of the rates."""
    return PriorityBuckets(_own_rates(settings), settings.burst_s, settings.borrow, now)


def user_windows(settings: Settings) -> UserWindows:
    """The user limits, kept in memory."""
    return UserWindows(limit_sets(settings), settings.max_users)


def limit_sets(settings: Settings) -> LimitSets:
    """Which user limits a request is held to."""
    return LimitSets(
        settings.user_limits,
        by_plan={name: plan.user_limit for name, plan in settings.plans.items()},
        by_route={route.name: route.user_limit for route in settings.routes},
        address_factor=settings.address_factor,
    )


def gate(settings: Settings, now: float) -> Gate | Cap:
    """What limits the requests in flight under this policy."""
    if settings.policy not in WITH_GATE:
        return Cap(settings.inflight_max or math.inf)
    rules = GateRules(
        slo_s=settings.slo_s,
        latency_budget=settings.latency_budget,
        wait_budget=settings.wait_budget,
        inflight_start=max(settings.inflight_floor, math.ceil(settings.inflight_start / settings.workers)),
        inflight_floor=settings.inflight_floor,
        inflight_max=settings.inflight_max,
        queue_max=settings.queue_max,
        period_s=settings.period_s,
        period_completions=settings.period_completions,
        min_share=settings.min_share,
        memory_target=settings.gpu_memory_target,
        dry_run=settings.dry_run,
    )
    return Gate(rules, now)


def shared_budget(settings: Settings, now: float) -> SharedBudget:
    """What all classes share while the policy ``adaptive`` cuts."""
    return SharedBudget((0.0, settings.reserve_mid, settings.reserve_low), now)


def control_rules(settings: Settings) -> ControlRules:
    """What the controller goes by."""
    return ControlRules(
        policy=settings.policy,
        rates=_own_rates(settings),
        table=TierTable(settings.tiers),
        hysteresis=Hysteresis(
            settings.tier_samples,
            settings.tier_release_samples,
            settings.tier_release_margin_pct,
            settings.tier_recovery_step,
        ),
        staleness=Staleness(
            settings.sample_interval_s,
            settings.gpu_stale_after_s,
            settings.gpu_blind_after_s,
            settings.gpu_unknown,
        ),
        interval_s=settings.sample_interval_s,
        signal=settings.signal,
        memory_target=settings.gpu_memory_target,
        pressure_terms=settings.gpu_pressure_terms,
        headroom=settings.adaptive_headroom,
        release_samples=settings.adaptive_release_samples,
    )


def _own_rates(settings: Settings) -> tuple[float, float, float]:
    high, mid, low = (rate / settings.workers for rate in settings.rates_rps)
    return (high, mid, low)
