"""Advice on settings that are allowed but probably not intended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from autoglm_throttle.settings.caller_fields import HeaderTrust
from autoglm_throttle.settings.field import PREFIX, SettingSource
from autoglm_throttle.settings.fields import SETTINGS
from autoglm_throttle.settings.gpu_items import ENGINES
from autoglm_throttle.settings.guard_advice import guard_advice
from autoglm_throttle.settings.problems import Problem
from autoglm_throttle.settings.quantity import plain
from autoglm_throttle.settings.route_policy import RoutePolicy, unreachable
from autoglm_throttle.types import Policy, Signal, StoreFailureMode, WebSocketMode

if TYPE_CHECKING:
    from autoglm_throttle.settings.settings import Settings

_WITH_CONCURRENCY_LIMIT: Final = frozenset({Policy.ADAPTIVE, Policy.CONCURRENCY})
_BY_TABLE: Final = frozenset({Policy.ADAPTIVE, Policy.TIERS})
_ADAPTIVE: Final = frozenset({Policy.ADAPTIVE})
_TIERS: Final = frozenset({Policy.TIERS})
_WITH_LOAD: Final = frozenset(Policy) - {Policy.FIXED}
"""Policies under which a load is known."""

READING_POLICIES: Final = {
    "signal": _BY_TABLE,
    "slo_s": _WITH_CONCURRENCY_LIMIT | _BY_TABLE,
    "latency_budget": _WITH_CONCURRENCY_LIMIT,
    "queue_max": _WITH_CONCURRENCY_LIMIT,
    "min_share": _WITH_CONCURRENCY_LIMIT,
    "tiers": _BY_TABLE,
    "tier_samples": _BY_TABLE,
    "tier_release_samples": _TIERS,
    "tier_release_margin_pct": _TIERS,
    "tier_recovery_step": _TIERS,
    "deadline_header": _WITH_CONCURRENCY_LIMIT,
    "gpu_unknown": _TIERS,
    "gpu_memory_target": _WITH_CONCURRENCY_LIMIT | _BY_TABLE,
    "gpu_queue_target": _BY_TABLE,
    "gpu_kv_target": _BY_TABLE,
    "gpu_pressure_terms": _BY_TABLE,
    "inflight_start": _WITH_CONCURRENCY_LIMIT,
    "inflight_floor": _WITH_CONCURRENCY_LIMIT,
    "wait_budget": _WITH_CONCURRENCY_LIMIT,
    "period_s": _WITH_CONCURRENCY_LIMIT,
    "period_completions": _WITH_CONCURRENCY_LIMIT,
    "adaptive_headroom": _ADAPTIVE,
    "adaptive_release_samples": _ADAPTIVE,
    "reserve_mid": _ADAPTIVE,
    "reserve_low": _ADAPTIVE,
    "degrade_shed_at": _WITH_LOAD,
    "degrade_stale_at": _WITH_LOAD,
    "degrade_static_at": _WITH_LOAD,
    "degrade_margin": _WITH_LOAD,
    "degrade_samples": _WITH_LOAD,
    "degrade_load_stale_s": _WITH_LOAD,
}
"""Setting -> policies that read it; other settings are read under each policy."""

PRESSURE_ONLY: Final = {
    "gpu_queue_target": _BY_TABLE,
    "gpu_kv_target": _BY_TABLE,
    "gpu_pressure_terms": _BY_TABLE,
    "slo_s": _TIERS,
    "gpu_memory_target": _TIERS,
}
"""Setting -> policies that read it only for the signal ``pressure``."""


_SHARED: Final = "REDIS_URL or USER_STORAGE"

PREREQUISITES: Final = {
    "redis_on_error": _SHARED,
    "service": _SHARED,
    "redis_prefix": _SHARED,
    "redis_deadline_s": _SHARED,
    "redis_failures": _SHARED,
    "redis_probe_s": _SHARED,
    "refused_cache": _SHARED,
    "refused_cache_s": _SHARED,
    "redis_partitions": "REDIS_URL",
    "redis_connect_s": "REDIS_URL",
    "redis_read_s": "REDIS_URL",
    "redis_in_flight": "REDIS_URL",
    "redis_batch_keys": "REDIS_URL",
    "redis_queue": "REDIS_URL",
    "fleet_lease_s": "FLEET",
    "fleet_heartbeat_s": "FLEET",
    "fleet_host": "FLEET_GPU",
    "breaker_store_deadline_s": "BREAKER_SHARED",
    "precisions": "QUOTAS",
    "compute_priority": "QUOTAS",
    "gpu_memory_ratio": "QUOTAS",
    "gpu_memory_ratio_low": "QUOTAS",
}
"""Setting -> setting without which it has no effect."""


def collect_advice(settings: Settings) -> list[Problem]:
    """Collect all advice, as ``autoglm-throttle check`` prints it."""
    problems = [*_as_problems(_advice_items(settings)), *startup_advice(settings)]
    return [
        *problems,
        *_unused_settings(settings),
        *_settings_without_prerequisite(settings),
        *guard_advice(settings),
        *_route_advice(settings),
        *settings.ignored,
    ]


def startup_advice(settings: Settings) -> list[Problem]:
    """Collect the advice that a throttle logs when it starts: settings that are hardly ever intended."""
    store = _store_setting(settings)
    limits = [*settings.user_limits]
    limits += [plan.user_limit or () for plan in settings.plans.values()]
    limits += [route.user_limit or () for route in settings.routes]
    used = any(limits) or settings.fleet or settings.fleet_gpu or settings.breaker_shared
    return _as_problems(
        [
            (
                store,
                store != "" and not used,
                "is set but unused: there is no user limit"
                + (", no FLEET, no FLEET_GPU and no BREAKER_SHARED" if store == "redis_url" else ""),
                "set USER_LIMIT, for example 100/minute;5/second",
            ),
            (
                "key_secret",
                settings.shared and settings.key_secret is None,
                "is not set: identities are hashed with a publicly known key, so that all processes "
                "agree; short keys and addresses can be recovered from the store by guessing",
                _GENERATE_KEY_HINT,
            ),
        ]
    )


_AdviceItem = tuple[str, bool, str, str]
"""Setting, whether the advice applies, message, hint."""

_GENERATE_KEY_HINT: Final = "set one, for example the output of: openssl rand -hex 32"


def _as_problems(items: Iterable[_AdviceItem]) -> list[Problem]:
    return [Problem(PREFIX + name.upper(), message, hint) for name, holds, message, hint in items if holds]


def _store_setting(settings: Settings) -> str:
    """Name of the setting that names the store; empty if there is none."""
    if settings.redis_url is not None:
        return "redis_url"
    return "user_storage" if settings.user_storage is not None else ""


def _workers_hint(settings: Settings) -> str:
    """Effect of several processes that each assume to be the only one."""
    text = "with n workers each would admit the full rates"
    if not settings.shared:
        return f"{text}; user limits in memory count per process"
    if settings.redis_on_error is StoreFailureMode.LOCAL:
        return f"{text}, and every user the full limit while the store is unavailable; FLEET=true counts them"
    return text


def _advice_items(settings: Settings) -> list[_AdviceItem]:
    trust = settings.priority_header_trust
    limited = any(settings.user_limits)
    has_concurrency_limit = settings.policy in _WITH_CONCURRENCY_LIMIT
    kinds = {item.partition(":")[0] for item in settings.gpu}
    drivers = kinds & {"auto", "nvml"}
    unfiltered = kinds - drivers - (ENGINES if drivers else frozenset())
    unlimited_slots = (
        settings.websockets is WebSocketMode.SLOT and not has_concurrency_limit and not settings.inflight_max
    )
    return [
        (
            "dry_run",
            settings.dry_run,
            "is on: rejections are only counted, the service is not protected",
            "would_reject_total counts them",
        ),
        (
            "workers",
            settings.source_of("workers") is SettingSource.DEFAULT and not settings.fleet,
            "is not set: one process is assumed",
            _workers_hint(settings),
        ),
        (
            "slo_s",
            has_concurrency_limit and settings.source_of("slo_s") is SettingSource.DEFAULT,
            f"is not set: the target time for a complete response is {plain(settings.slo_s)} s",
            "LLM responses take longer; set the time that your callers accept",
        ),
        (
            "user_limit",
            not limited,
            "is off: one user can take everything",
            "for example 100/minute;5/second",
        ),
        (
            "key_secret",
            settings.key_secret is None and not settings.shared,
            "is not set: identities differ in each process and after each start",
            _GENERATE_KEY_HINT,
        ),
        (
            "trusted_proxies",
            any(network.endswith("/0") for network in settings.trusted_proxies),
            "trusts every peer: any client can take any address",
            "name your proxies",
        ),
        (
            "priority_header_trust",
            trust is HeaderTrust.ANY,
            "is any: every client can make itself high",
            "use it in closed networks only",
        ),
        (
            "websockets",
            unlimited_slots,
            f"is slot, but with POLICY={settings.policy} nothing limits requests in flight",
            "set INFLIGHT_MAX, or POLICY=adaptive or concurrency",
        ),
        (
            "priority_header_trust",
            trust is HeaderTrust.PROXY and not settings.trusted_proxies,
            "is proxy, but no proxy is trusted: the header can only lower",
            "set TRUSTED_PROXIES",
        ),
        (
            "gpu_devices",
            bool(settings.gpu_devices) and bool(unfiltered),
            f"has no effect on {', '.join(sorted(unfiltered))}",
            "it selects devices of the NVIDIA driver (auto, nvml); every device of another source counts",
        ),
        (
            "sample_interval_max_s",
            settings.source_of("sample_interval_max_s") is not SettingSource.DEFAULT
            and not settings.sample_adaptive,
            "has no effect without SAMPLE_ADAPTIVE",
            "",
        ),
        (
            "quotas",
            settings.quotas and kinds == {"none"},
            "reserves no memory with GPU=none: no source reports memory use",
            "the app still gets advice for each request",
        ),
        (
            "degrade_static_at",
            settings.degrade_static_at == 1,
            "is 1: no load exceeds it, so it gives no static fallback",
            "",
        ),
        (
            "gpu_selector",
            bool(settings.gpu_selector) and "prometheus" not in kinds,
            f"has no effect with GPU={','.join(sorted(kinds))}",
            "read by prometheus:URL",
        ),
    ]


def _unused_settings(settings: Settings) -> list[Problem]:
    """Find settings that were set but are never read."""
    policy, signal = settings.policy, settings.signal
    engines = any(item.partition(":")[0] in ENGINES for item in settings.gpu)
    uses_pressure = signal is Signal.PRESSURE or (signal is Signal.AUTO and engines)
    problems = []
    for name, readers in READING_POLICIES.items():
        if settings.source_of(name) is SettingSource.DEFAULT or (
            settings.quotas and name == "gpu_memory_target"
        ):
            continue
        variable = SETTINGS[name].variable
        if policy not in readers:
            *names, last = (reader.value for reader in Policy if reader in readers)
            policy_names = f"{', '.join(names)} and {last}" if names else last
            problems.append(
                Problem(variable, f"has no effect with POLICY={policy}", f"read by {policy_names}")
            )
        elif policy in PRESSURE_ONLY.get(name, ()) and not uses_pressure:
            beside = " and no engine in GPU" if signal is Signal.AUTO else ""
            problems.append(
                Problem(variable, f"has no effect with SIGNAL={signal}{beside}", "read with SIGNAL=pressure")
            )
    return problems


def _settings_without_prerequisite(settings: Settings) -> list[Problem]:
    """Find settings of a store, a fleet or quotas that were set without it."""
    available = {
        _SHARED: settings.shared,
        "REDIS_URL": settings.redis_url is not None,
        "FLEET": settings.fleet,
        "FLEET_GPU": settings.fleet_gpu,
        "BREAKER_SHARED": settings.breaker_shared,
        "QUOTAS": settings.quotas,
    }
    return [
        Problem(SETTINGS[name].variable, f"has no effect without {needed}", "")
        for name, needed in PREREQUISITES.items()
        if not available[needed] and settings.source_of(name) is not SettingSource.DEFAULT
    ]


def _route_advice(settings: Settings) -> list[Problem]:
    places = dict(zip(settings.routes, settings.route_places, strict=True))
    problems = [
        Problem(
            places[route],
            f"{route.name} can never apply, "
            f"{', '.join(taker.name for taker in takers)} before it matches all its requests",
            "put the narrower pattern first",
        )
        for route, takers in unreachable(settings.routes)
    ]
    exempt = set(settings.exempt_paths)
    problems += [
        Problem(places[route], f"{route.name} can never be admitted: it costs {route.cost:g}, {why}")
        for route in settings.routes
        if not route.exempt and (why := _why_never_admitted(settings, route))
    ]
    problems += [
        Problem(places[route], f"{route.name} can never apply, its path is in EXEMPT_PATHS")
        for route in settings.routes
        if _is_literal(route) and route.pattern in exempt and not route.exempt
    ]
    return problems + [
        Problem(places[route], f"{route.name} has an slo_s without effect: {why}")
        for route in settings.routes
        if route.slo_s is not None and (why := _why_never_queued(settings, route))
    ]


def _why_never_queued(settings: Settings, route: RoutePolicy) -> str:
    """Reason why no request of the route is ever queued; empty if one may be."""
    if route.exempt:
        return "it is exempt"
    return (
        "" if settings.policy in _WITH_CONCURRENCY_LIMIT else f"nothing waits with POLICY={settings.policy}"
    )


def _why_never_admitted(settings: Settings, route: RoutePolicy) -> str:
    """Reason why no request of the route can ever be admitted; empty if some can."""
    priority = settings.priority_default if route.priority is None else route.priority
    burst = max(1.0, settings.rates_rps[priority] / settings.workers * settings.burst_s)
    if route.cost > burst:
        return f"and the {priority.label} bucket of one worker holds {burst:g}"
    limits = settings.user_limits[priority] if route.user_limit is None else route.user_limit
    small = next((limit for limit in limits if limit.limit < route.cost), None)
    return f"and its user limit {small.name} is {small.limit}" if small is not None else ""


def _is_literal(route: RoutePolicy) -> bool:
    return not any(part == "*" or part.startswith("{") for part in route.segments)
