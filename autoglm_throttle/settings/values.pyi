"""Types of the arguments of settings, so that an editor completes names and a type checker finds typos.

Type checkers alone read this file, which `docs/generate/argument_types.py` writes.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import SecretStr

from autoglm_throttle import types as t
from autoglm_throttle.settings.groups import callers as c
from autoglm_throttle.settings.groups import observe as o
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.policies import GuardPolicy, PlanPolicy
from autoglm_throttle.settings.route_policy import ResourcePolicy, RoutePolicy

class BreakerValues(TypedDict, total=False):
    """Arguments of ``BreakerSettings``."""

    failures: int | None
    open_s: float | str | None
    half_open_max: int | None
    timeout_s: float | str | None
    trip: str | Collection[t.TripRule | Literal["consecutive", "failure_rate", "slow_rate"]] | None
    slow_call_s: float | str | None
    max_in_flight: int | None
    mode: t.BreakerMode | Literal["enforce", "metrics_only", "disabled"] | None
    open_max_s: float | str | None
    backoff: float | str | None
    success_threshold: int | None
    trial_lease_s: float | str | None
    failure_window_s: float | str | None
    window: int | None
    window_s: float | str | None
    min_calls: int | None
    failure_rate: float | str | None
    slow_rate: float | str | None
    slow_is: t.SlowCallMode | Literal["failure", "separate"] | None
    ramp: str | Sequence[float] | None
    ramp_step_s: float | str | None
    first_item_s: float | str | None
    stream_idle_s: float | str | None
    stream_settle: t.StreamSettleMode | Literal["end", "first_item"] | None
    on_429: t.TooManyRequestsMode | Literal["neutral", "open"] | None

class GuardValues(BreakerValues, total=False):
    """Arguments of ``GuardPolicy``."""

    criticality: t.Criticality | Literal["core", "non_core"] | None
    shed_above: float | str | None
    max_stale_s: float | str | None

class PlanValues(TypedDict, total=False):
    """Arguments of ``PlanPolicy``."""

    user_limit: str | Sequence[t.UserLimit] | None
    tokens_limit: str | Sequence[t.UserLimit] | None
    tokens_input_limit: str | Sequence[t.UserLimit] | None
    tokens_output_limit: str | Sequence[t.UserLimit] | None
    priority: t.Priority | Literal["high", "mid", "low"] | None
    members: str | Collection[str] | None

class ResourceValues(TypedDict, total=False):
    """Arguments of ``ResourcePolicy``."""

    precision_hint: str | Sequence[str] | None
    gpu_memory_ratio: float | str | None
    compute_priority: t.Priority | Literal["high", "mid", "low"] | None

class RouteValues(TypedDict, total=False):
    """Arguments of ``RoutePolicy``."""

    methods: str | Collection[str] | None
    priority: t.Priority | Literal["high", "mid", "low"] | None
    cost: float | None
    user_limit: str | Sequence[t.UserLimit] | None
    tokens_limit: str | Sequence[t.UserLimit] | None
    tokens_input_limit: str | Sequence[t.UserLimit] | None
    tokens_output_limit: str | Sequence[t.UserLimit] | None
    name: str | None
    exempt: bool | None
    slo_s: float | str | None
    slot: t.SlotUse | Literal["request", "stream", "none"] | None
    errors: c.ErrorStyle | Literal["auto", "problem", "openai", "anthropic", "jsonrpc"] | None
    resource_policy: ResourcePolicy | ResourceValues | None

class ValuesBesideGpu(TypedDict, total=False):
    """Settings as arguments of ``throttle_for_tests``, whose ``gpu`` is no name of a source."""

    policy: t.Policy | Literal["adaptive", "tiers", "concurrency", "fixed"]
    signal: t.Signal | Literal["auto", "utilization", "pressure"]
    dry_run: bool
    tiers: str | Sequence[tuple[float, float]]
    tier_samples: int
    tier_release_samples: int
    tier_release_margin_pct: float | str
    tier_recovery_step: float | str
    adaptive_headroom: float | str
    adaptive_release_samples: int
    nginx_flags_dir: str | None
    rate_high_rps: float | str
    rate_mid_rps: float | str
    rate_low_rps: float | str
    burst_s: float | str
    workers: int
    borrow: t.BorrowMode | Literal["off", "down", "any"]
    reserve_mid: float | str
    reserve_low: float | str
    slo_s: float | str | None
    slo_ttft_s: float | str | None
    slo_ttft_high_s: float | str | None
    slo_ttft_mid_s: float | str | None
    slo_ttft_low_s: float | str | None
    inflight_max: int
    queue_max: int
    websockets: t.WebSocketMode | Literal["rate", "slot"]
    latency_budget: float | str
    wait_budget: float | str
    min_share: float | str
    inflight_start: int
    inflight_floor: int
    slot_idle_s: float | str
    body_timeout_s: float | str
    paused_max: int
    fairness: t.Fairness | Literal["user", "fifo"]
    period_s: float | str
    period_completions: int
    user_limit: str | Sequence[t.UserLimit]
    user_limit_high: str | Sequence[t.UserLimit] | None
    user_limit_mid: str | Sequence[t.UserLimit] | None
    user_limit_low: str | Sequence[t.UserLimit] | None
    concurrency_per_user: int
    max_users: int
    address_factor: float | str
    tokens_limit: str | Sequence[t.UserLimit]
    tokens_input_limit: str | Sequence[t.UserLimit]
    tokens_output_limit: str | Sequence[t.UserLimit]
    tokens_routes: str | Sequence[str]
    tokens_body_max_bytes: int | str
    tokens_per_media: int
    tokens_reserve: t.TokenReserve | Literal["explicit", "learned"]
    tokens_quantile: float | str
    tokens_default_output: int
    tokens_overrun: t.TokenOverrun | Literal["allow", "stop", "abort"]
    redis_url: SecretStr | str | None
    redis_on_error: t.StoreFailureMode | Literal["local", "allow", "deny"]
    service: str
    redis_prefix: str
    redis_deadline_s: float | str
    redis_partitions: int
    redis_connect_s: float | str
    redis_read_s: float | str
    redis_failures: int
    redis_probe_s: float | str
    redis_in_flight: int
    redis_batch_keys: int
    redis_queue: int
    refused_cache: int
    refused_cache_s: float | str
    fleet: bool
    fleet_gpu: bool
    fleet_host: str | None
    fleet_lease_s: float | str
    fleet_heartbeat_s: float | str
    identity: str
    key_secret: SecretStr | str | None
    trusted_proxies: str | Sequence[str]
    priority_default: t.Priority | Literal["high", "mid", "low"]
    priority_header: str
    priority_header_trust: c.HeaderTrust | Literal["lower", "proxy", "any", "off"]
    deadline_header: str | None
    exempt_paths: str | Sequence[str]
    ipv6_prefix: int
    headers: c.HeaderStyle | Literal["auto", "ietf", "legacy", "openai", "anthropic", "none"]
    errors: c.ErrorStyle | Literal["auto", "problem", "openai", "anthropic", "jsonrpc"]
    retry_after_max_s: float | str
    retry_jitter: float | str
    gpu_devices: str | Sequence[str]
    gpu_selector: str
    gpu_required: bool
    sample_interval_s: float | str
    sample_adaptive: bool
    gpu_aggregate: t.AggregateMode | Literal["weighted", "mean", "max"]
    gpu_unknown: t.MissingTelemetryMode | Literal["open", "last", "conservative", "closed"] | None
    gpu_memory_target: float | str
    sample_interval_max_s: float | str
    gpu_stale_after_s: float | str | None
    gpu_blind_after_s: float | str
    gpu_forget_s: float | str
    gpu_queue_target: int
    gpu_kv_target: float | str
    gpu_pressure_terms: str | Sequence[str]
    verdict_power_stalled: float | str
    verdict_power_underfed: float | str
    verdict_sm_stalled: float | str
    verdict_sm_underfed: float | str
    verdict_stalled_s: float | str
    quotas: bool
    precisions: str | Sequence[str]
    compute_priority: t.Priority | Literal["high", "mid", "low"] | None
    gpu_memory_ratio: float | str
    gpu_memory_ratio_low: float | str
    breaker_failures: int
    breaker_open_s: float | str
    breaker_half_open_max: int
    breaker_timeout_s: float | str | None
    breaker_trip: str | Collection[t.TripRule | Literal["consecutive", "failure_rate", "slow_rate"]]
    breaker_slow_call_s: float | str | None
    breaker_max_in_flight: int
    breaker_mode: t.BreakerMode | Literal["enforce", "metrics_only", "disabled"]
    breaker_open_max_s: float | str | None
    breaker_backoff: float | str
    breaker_success_threshold: int | None
    breaker_trial_lease_s: float | str | None
    breaker_failure_window_s: float | str | None
    breaker_window: int | None
    breaker_window_s: float | str | None
    breaker_min_calls: int
    breaker_failure_rate: float | str
    breaker_slow_rate: float | str
    breaker_slow_is: t.SlowCallMode | Literal["failure", "separate"]
    breaker_ramp: str | Sequence[float]
    breaker_ramp_step_s: float | str
    breaker_first_item_s: float | str | None
    breaker_stream_idle_s: float | str | None
    breaker_stream_settle: t.StreamSettleMode | Literal["end", "first_item"]
    breaker_on_429: t.TooManyRequestsMode | Literal["neutral", "open"]
    breaker_shared: bool
    breaker_store_deadline_s: float | str
    breaker_max_names: int
    degrade_shed_at: float | str
    degrade_stale_at: float | str
    degrade_static_at: float | str
    degrade_fallback_timeout_s: float | str
    degrade_max_stale_s: float | str
    degrade_margin: float | str
    degrade_samples: int
    degrade_load_stale_s: float | str
    degrade_cache_entries: int
    degrade_cache_body_bytes: int | str
    record_path: Path | str | None
    record_sample: float | str
    record_max_bytes: int | str
    record_max_s: float | str
    record_body: o.RecordBody | Literal["hash", "none", "full"]
    record_headers: str | Sequence[str]
    record_query: str | Sequence[str]
    record_mask_paths: str | Sequence[str]
    metrics: o.MetricsExport | Literal["auto", "prometheus", "off"]
    alerts: bool
    log_refused_every_s: float | str
    trace_wait: bool
    status_token: SecretStr | str | None
    alert_webhook_url: SecretStr | str | None
    alert_gpu_pct: float | str
    alert_gpu_for_s: float | str
    alert_memory_ratio: float | str
    alert_p95_s: float | str
    alert_p95_for_s: float | str
    alert_z_rules: bool
    alert_z_plain: bool
    config_file: Path | str | None
    unknown_env: o.UnknownNames | Literal["error", "warn"]
    routes: Sequence[RoutePolicy | Mapping[str, Any]]
    plans: Sequence[PlanPolicy] | Mapping[str, PlanPolicy | Mapping[str, Any]]
    guards: Sequence[GuardPolicy] | Mapping[str, GuardPolicy | BreakerSettings | Mapping[str, Any]]
    resource_policy: ResourcePolicy | ResourceValues

class SettingValues(ValuesBesideGpu, total=False):
    """Arguments of ``Settings`` and ``Settings.from_env``."""

    gpu: str | Sequence[str]
