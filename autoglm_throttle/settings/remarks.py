"""Advice on settings that are allowed but probably not intended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from autoglm_throttle.model import OnError, Policy, Signal, WebSockets
from autoglm_throttle.settings.caller_fields import HeaderTrust
from autoglm_throttle.settings.field import PREFIX, Source
from autoglm_throttle.settings.fields import SETTINGS
from autoglm_throttle.settings.gpu_items import ENGINES
from autoglm_throttle.settings.guard_remarks import guard_advice
from autoglm_throttle.settings.problem import Problem
from autoglm_throttle.settings.quantity import plain
from autoglm_throttle.settings.route_policy import RoutePolicy, unreachable

if TYPE_CHECKING:
    from autoglm_throttle.settings.settings import Settings

_GATED: Final = frozenset({Policy.ADAPTIVE, Policy.GATE})
_BY_TABLE: Final = frozenset({Policy.ADAPTIVE, Policy.TIERS})
_ADAPTIVE: Final = frozenset({Policy.ADAPTIVE})
_TIERS: Final = frozenset({Policy.TIERS})
_KNOWN: Final = frozenset(Policy) - {Policy.FIXED}
"""Policies under which a load is known."""

READERS: Final = {
    "signal": _BY_TABLE,
    "slo_s": _GATED | _BY_TABLE,
    "latency_budget": _GATED,
    "queue_max": _GATED,
    "min_share": _GATED,
    "tiers": _BY_TABLE,
    "tier_samples": _BY_TABLE,
    "tier_release_samples": _TIERS,
    "tier_release_margin_pct": _TIERS,
    "tier_recovery_step": _TIERS,
    "deadline_header": _GATED,
    "gpu_unknown": _TIERS,
    "gpu_memory_target": _GATED | _BY_TABLE,
    "gpu_queue_target": _BY_TABLE,
    "gpu_kv_target": _BY_TABLE,
    "gpu_pressure_terms": _BY_TABLE,
    "inflight_start": _GATED,
    "inflight_floor": _GATED,
    "wait_budget": _GATED,
    "period_s": _GATED,
    "period_completions": _GATED,
    "adaptive_headroom": _ADAPTIVE,
    "adaptive_release_samples": _ADAPTIVE,
    "reserve_mid": _ADAPTIVE,
    "reserve_low": _ADAPTIVE,
    "degrade_shed_at": _KNOWN,
    "degrade_stale_at": _KNOWN,
    "degrade_static_at": _KNOWN,
    "degrade_margin": _KNOWN,
    "degrade_samples": _KNOWN,
    "degrade_load_stale_s": _KNOWN,
}
"""Setting -> policies that read it; other settings are read under each policy."""

OF_PRESSURE: Final = {
    "gpu_queue_target": _BY_TABLE,
    "gpu_kv_target": _BY_TABLE,
    "gpu_pressure_terms": _BY_TABLE,
    "slo_s": _TIERS,
    "gpu_memory_target": _TIERS,
}
"""Setting -> policies that read it only for the signal ``pressure``."""


_SHARED: Final = "REDIS_URL or USER_STORAGE"

OF_STORE: Final = {
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


def advice(settings: Settings) -> list[Problem]:
    """Collect all advice, as ``autoglm-throttle check`` prints it."""
    found = [*_told(_remarks(settings)), *at_start(settings)]
    return [
        *found,
        *_unread(settings),
        *_unshared(settings),
        *guard_advice(settings),
        *_dead_routes(settings),
        *settings.ignored,
    ]


def at_start(settings: Settings) -> list[Problem]:
    """Collect the advice that a throttle logs when it starts: settings that are hardly ever intended."""
    store = _store(settings)
    limits = [*settings.user_limits]
    limits += [plan.user_limit or () for plan in settings.plans.values()]
    limits += [route.user_limit or () for route in settings.routes]
    used = any(limits) or settings.fleet or settings.fleet_gpu or settings.breaker_shared
    return _told(
        [
            (
                store,
                store != "" and not used,
                "is set, but nothing uses it: there is no user limit"
                + (", no FLEET, no FLEET_GPU and no BREAKER_SHARED" if store == "redis_url" else ""),
                "set USER_LIMIT, for example 100/minute;5/second",
            ),
            (
                "key_secret",
                settings.shared and settings.key_secret is None,
                "is not set: identities are made with a key that everybody knows, so that all processes "
                "agree; short keys and addresses can be guessed back from the store",
                _DRAW_ONE,
            ),
        ]
    )


_Remark = tuple[str, bool, str, str]
"""Setting, whether the advice applies, message, hint."""

_DRAW_ONE: Final = "set one, for example the output of: openssl rand -hex 32"


def _told(remarks: Iterable[_Remark]) -> list[Problem]:
    return [Problem(PREFIX + name.upper(), message, hint) for name, holds, message, hint in remarks if holds]


def _store(settings: Settings) -> str:
    """Name of the setting that names the store; empty if there is none."""
    if settings.redis_url is not None:
        return "redis_url"
    return "user_storage" if settings.user_storage is not None else ""


def _without_workers(settings: Settings) -> str:
    """Effect of several processes that each assume to be the only one."""
    text = "with n workers each would give the whole rates"
    if not settings.shared:
        return f"{text}; user limits in memory count per process"
    if settings.redis_on_error is OnError.LOCAL:
        return f"{text}, and every user the whole limit while the store is away; FLEET=true counts them"
    return text


def _remarks(settings: Settings) -> list[_Remark]:
    trust = settings.priority_header_trust
    limited = any(settings.user_limits)
    gated = settings.policy in _GATED
    kinds = {item.partition(":")[0] for item in settings.gpu}
    drivers = kinds & {"auto", "nvml"}
    unfiltered = kinds - drivers - (ENGINES if drivers else frozenset())
    slots_for_nobody = settings.websockets is WebSockets.SLOT and not gated and not settings.inflight_max
    return [
        (
            "dry_run",
            settings.dry_run,
            "is on: refusals are only counted, nothing is protected",
            "would_refuse_total counts them",
        ),
        (
            "workers",
            settings.source_of("workers") is Source.DEFAULT and not settings.fleet,
            "is not set: one process is assumed",
            _without_workers(settings),
        ),
        (
            "slo_s",
            gated and settings.source_of("slo_s") is Source.DEFAULT,
            f"is not set: a whole answer is wanted within {plain(settings.slo_s)} s",
            "LLM answers take longer; set what your callers wait for",
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
            _DRAW_ONE,
        ),
        (
            "trusted_proxies",
            any(network.endswith("/0") for network in settings.trusted_proxies),
            "trusts everybody: any client can take any address",
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
            slots_for_nobody,
            f"is slot, but with POLICY={settings.policy} nothing limits what is in flight",
            "set INFLIGHT_MAX, or POLICY=adaptive or gate",
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
            "it chooses devices of the NVIDIA driver (auto, nvml); all that another source tells of count",
        ),
        (
            "sample_interval_max_s",
            settings.source_of("sample_interval_max_s") is not Source.DEFAULT
            and not settings.sample_adaptive,
            "has no effect without SAMPLE_ADAPTIVE",
            "",
        ),
        (
            "quotas",
            settings.quotas and kinds == {"none"},
            "keeps no memory free with GPU=none: nothing tells how full it is",
            "the app is still told how to serve each request",
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


def _unread(settings: Settings) -> list[Problem]:
    """Find settings that were set but are never read."""
    policy, signal = settings.policy, settings.signal
    engines = any(item.partition(":")[0] in ENGINES for item in settings.gpu)
    pressed = signal is Signal.PRESSURE or (signal is Signal.AUTO and engines)
    problems = []
    for name, readers in READERS.items():
        if settings.source_of(name) is Source.DEFAULT or (settings.quotas and name == "gpu_memory_target"):
            continue
        variable = SETTINGS[name].variable
        if policy not in readers:
            *names, last = (reader.value for reader in Policy if reader in readers)
            who = f"{', '.join(names)} and {last}" if names else last
            problems.append(Problem(variable, f"has no effect with POLICY={policy}", f"read by {who}"))
        elif policy in OF_PRESSURE.get(name, ()) and not pressed:
            beside = " and no engine in GPU" if signal is Signal.AUTO else ""
            problems.append(
                Problem(variable, f"has no effect with SIGNAL={signal}{beside}", "read with SIGNAL=pressure")
            )
    return problems


def _unshared(settings: Settings) -> list[Problem]:
    """Find settings of a store, a fleet or quotas that were set without it."""
    there = {
        _SHARED: settings.shared,
        "REDIS_URL": settings.redis_url is not None,
        "FLEET": settings.fleet,
        "FLEET_GPU": settings.fleet_gpu,
        "BREAKER_SHARED": settings.breaker_shared,
        "QUOTAS": settings.quotas,
    }
    return [
        Problem(SETTINGS[name].variable, f"has no effect without {needed}", "")
        for name, needed in OF_STORE.items()
        if not there[needed] and settings.source_of(name) is not Source.DEFAULT
    ]


def _dead_routes(settings: Settings) -> list[Problem]:
    places = dict(zip(settings.routes, settings.route_places, strict=True))
    problems = [
        Problem(
            places[route],
            f"{route.name} can never apply, {', '.join(taker.name for taker in takers)} before it takes all",
            "put the narrower pattern first",
        )
        for route, takers in unreachable(settings.routes)
    ]
    exempt = set(settings.exempt_paths)
    problems += [
        Problem(places[route], f"{route.name} can never be admitted: it costs {route.cost:g}, {why}")
        for route in settings.routes
        if not route.exempt and (why := _too_dear(settings, route))
    ]
    problems += [
        Problem(places[route], f"{route.name} can never apply, its path is in EXEMPT_PATHS")
        for route in settings.routes
        if _is_literal(route) and route.pattern in exempt and not route.exempt
    ]
    return problems + [
        Problem(places[route], f"{route.name} has an slo_s without effect: {why}")
        for route in settings.routes
        if route.slo_s is not None and (why := _never_waits(settings, route))
    ]


def _never_waits(settings: Settings, route: RoutePolicy) -> str:
    """Reason why no request of the route is ever queued; empty if one may be."""
    if route.exempt:
        return "it is exempt"
    return "" if settings.policy in _GATED else f"nothing waits with POLICY={settings.policy}"


def _too_dear(settings: Settings, route: RoutePolicy) -> str:
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
