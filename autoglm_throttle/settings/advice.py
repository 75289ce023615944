"""Advice on settings that are allowed but probably not intended."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from autoglm_throttle import types as t
from autoglm_throttle.settings.checks import breaker_of
from autoglm_throttle.settings.groups import settings_table
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.settings.groups.callers import HeaderTrust
from autoglm_throttle.settings.groups.gpu import ENGINES
from autoglm_throttle.settings.groups.tokens import TOKEN_FIELDS
from autoglm_throttle.settings.problems import Problem, quoted_key
from autoglm_throttle.settings.route_policy import earlier_matches
from autoglm_throttle.settings.sources import SettingSource
from autoglm_throttle.types import Policy, Signal, SlotUse, StoreFailureMode, TripRule

if TYPE_CHECKING:
    from autoglm_throttle.settings.route_policy import RoutePolicy
    from autoglm_throttle.settings.settings import Settings

T = TypeVar("T")

WITH_LIMIT: Final = (Policy.ADAPTIVE, Policy.CONCURRENCY)  # Policies with a concurrency limit that is learned
_BY_TABLE: Final = (Policy.ADAPTIVE, Policy.TIERS)
_ALL_BUT_FIXED: Final = (Policy.ADAPTIVE, Policy.TIERS, Policy.CONCURRENCY)


def _by_name(table: Mapping[str, T]) -> dict[str, T]:
    return {name: value for names, value in table.items() for name in names.split()}


# Setting -> policies that read it; other settings are read under each policy.
READING_POLICIES: Final = _by_name(
    {
        "latency_budget queue_max min_share deadline_header inflight_start inflight_floor": WITH_LIMIT,
        "wait_budget fairness period_s period_completions": WITH_LIMIT,
        "slo_ttft_s slo_ttft_high_s slo_ttft_mid_s slo_ttft_low_s": WITH_LIMIT,
        "signal tiers tier_samples gpu_queue_target gpu_kv_target gpu_pressure_terms": _BY_TABLE,
        "nginx_flags_dir": _BY_TABLE,
        "tier_release_samples tier_release_margin_pct tier_recovery_step gpu_unknown": (Policy.TIERS,),
        "adaptive_headroom adaptive_release_samples reserve_mid reserve_low": (Policy.ADAPTIVE,),
        "slo_s gpu_memory_target degrade_shed_at degrade_stale_at degrade_static_at": _ALL_BUT_FIXED,
        "degrade_margin degrade_samples degrade_load_stale_s": _ALL_BUT_FIXED,
    }
)

PRESSURE_ONLY: Final = _by_name(  # Setting -> policies that read it only for the signal ``pressure``
    {
        "gpu_queue_target gpu_kv_target gpu_pressure_terms": _BY_TABLE,
        "slo_s gpu_memory_target": (Policy.TIERS,),
    }
)

PREREQUISITES: Final = _by_name(  # Setting -> setting without which it has no effect
    {
        "redis_on_error service redis_prefix redis_deadline_s redis_failures redis_probe_s": "redis_url",
        "refused_cache refused_cache_s redis_partitions redis_connect_s redis_read_s": "redis_url",
        "redis_in_flight redis_batch_keys redis_queue": "redis_url",
        "fleet_lease_s fleet_heartbeat_s": "fleet",
        "fleet_host": "fleet_gpu",
        "breaker_store_deadline_s": "breaker_shared",
        "precisions compute_priority gpu_memory_ratio gpu_memory_ratio_low": "quotas",
        "sample_interval_max_s": "sample_adaptive",
    }
)

_GENERATE_KEY: Final = "set one, for example the output of: openssl rand -hex 32"

_Advice = tuple[str, str, str]  # setting, message, hint


def collect_advice(settings: Settings) -> list[Problem]:
    """Collect all advice, as ``autoglm-throttle check`` prints it."""
    return [
        *_problems([*_rate_advice(settings), *_caller_advice(settings), *_gpu_advice(settings)]),
        *startup_advice(settings),
        *_problems(_unused_settings(settings)),
        *_guard_advice(settings),
        *_route_advice(settings),
        *settings.ignored,
    ]


def startup_advice(settings: Settings) -> list[Problem]:
    """Collect the advice that a throttle logs when it starts: settings that are hardly ever intended."""
    if settings.store.redis_url is None:
        return []
    limited = [*settings.users.by_priority, *settings.tokens.by_kind.values()]
    for policy in (*settings.routes, *settings.plans.values()):
        limited += [getattr(policy, name) for name in ("user_limit", *TOKEN_FIELDS.values())]
    used = settings.fleet.fleet or settings.fleet.fleet_gpu or settings.shared_breakers.shared
    advice = []
    if not (used or any(limited)):
        message = "is set but unused: there is no user limit, no FLEET, no FLEET_GPU and no BREAKER_SHARED"
        advice.append(("redis_url", message, "set USER_LIMIT, for example 100/minute;5/second"))
    if settings.callers.key_secret is None:
        message = (
            "is not set: identities are hashed with a publicly known key, so that all processes "
            "agree; short keys and addresses can be recovered from the store by guessing"
        )
        advice.append(("key_secret", message, _GENERATE_KEY))
    return _problems(advice)


def _problems(items: Iterable[_Advice]) -> list[Problem]:
    table = settings_table()
    return [Problem(table[name].variable, message, hint) for name, message, hint in items]


def _is_default(settings: Settings, name: str) -> bool:
    return settings.source_of(name) is SettingSource.DEFAULT


def _rate_advice(settings: Settings) -> Iterator[_Advice]:
    policy, limit = settings.control.policy, settings.concurrency
    if settings.control.dry_run:
        message = "is on: rejections are only counted, the service is not protected"
        yield "dry_run", message, "would_reject_total counts them"
    if _is_default(settings, "workers") and not settings.fleet.fleet:
        yield "workers", "is not set: one process is assumed", _workers_hint(settings)
    if policy in WITH_LIMIT and _is_default(settings, "slo_s"):
        message = "is not set: the target time for a complete response is learned, at least 2 s"
        yield "slo_s", message, "set the time that your callers accept"
    if limit.websockets is t.WebSocketMode.SLOT and policy not in WITH_LIMIT and not limit.inflight_max:
        message = f"is slot, but with POLICY={policy} nothing limits requests in flight"
        yield "websockets", message, "set INFLIGHT_MAX, or POLICY=adaptive or concurrency"
    if settings.degradation.static_at == 1:
        yield "degrade_static_at", "is 1: no load exceeds it, so it gives no static fallback", ""


def _workers_hint(settings: Settings) -> str:
    """Effect of several processes that each assume to be the only one."""
    text = "with n workers each would admit the full rates"
    if settings.store.redis_url is None:
        return f"{text}; user limits in memory count per process"
    if settings.store.redis_on_error is StoreFailureMode.LOCAL:
        return f"{text}, and every user the full limit while the store is unavailable; FLEET=true counts them"
    return text


def _caller_advice(settings: Settings) -> Iterator[_Advice]:
    callers = settings.callers
    if not any(settings.users.by_priority):
        yield "user_limit", "is off: one user can take everything", "for example 100/minute;5/second"
    if callers.key_secret is None and settings.store.redis_url is None:
        message = "is not set: identities differ in each process and after each start"
        yield "key_secret", message, _GENERATE_KEY
    if any(network.endswith("/0") for network in callers.trusted_proxies):
        yield "trusted_proxies", "trusts every peer: any client can take any address", "name your proxies"
    if callers.priority_header_trust is HeaderTrust.ANY:
        message = "is any: every client can make itself high"
        yield "priority_header_trust", message, "use it in closed networks only"
    if callers.priority_header_trust is HeaderTrust.PROXY and not callers.trusted_proxies:
        message = "is proxy, but no proxy is trusted: the header can only lower"
        yield "priority_header_trust", message, "set TRUSTED_PROXIES"


def _gpu_advice(settings: Settings) -> Iterator[_Advice]:
    kinds = {item.partition(":")[0] for item in settings.gpu.gpu}
    drivers = kinds & {"auto", "nvml"}
    unfiltered = kinds - drivers - (ENGINES if drivers else frozenset())
    if settings.gpu.gpu_devices and unfiltered:
        hint = "it selects devices of the NVIDIA driver (auto, nvml); every device of another source counts"
        yield "gpu_devices", f"has no effect on {', '.join(sorted(unfiltered))}", hint
    if settings.quota.quotas and kinds == {"none"}:
        message = "reserves no memory with GPU=none: no source reports memory use"
        yield "quotas", message, "the app still gets advice for each request"
    if settings.quota.quotas and settings.quota.compute_priority is not None:
        label = settings.quota.compute_priority.label
        message = f"is {label} for every request: the engine gets high, mid and low alike"
        hint = "leave it out, so that each request has that of its class, or set it for a route"
        yield "compute_priority", message, hint
    if settings.gpu.gpu_selector and "prometheus" not in kinds:
        yield "gpu_selector", f"has no effect with GPU={','.join(sorted(kinds))}", "read by prometheus:URL"


def uses_pressure(settings: Settings) -> bool:
    """Whether the signal is the pressure: it was chosen, or ``auto`` finds a source of an engine's queue."""
    if settings.control.signal is not Signal.AUTO:
        return settings.control.signal is Signal.PRESSURE
    return any(item.partition(":")[0] in ENGINES for item in settings.gpu.gpu)


def _unused_settings(settings: Settings) -> Iterator[_Advice]:
    """Yield settings that were set but are never read."""
    policy, signal = settings.control.policy, settings.control.signal
    # A Prometheus server may know engines; only its answers show them.
    maybe_engine = signal is Signal.AUTO and any(item.startswith("prometheus") for item in settings.gpu.gpu)
    for name, readers in READING_POLICIES.items():
        if _is_default(settings, name) or (settings.quota.quotas and name == "gpu_memory_target"):
            continue
        if policy not in readers:
            *names, last = (reader.value for reader in Policy if reader in readers)
            readers_text = f"{', '.join(names)} and {last}" if names else last
            yield name, f"has no effect with POLICY={policy}", f"read by {readers_text}"
        elif policy in PRESSURE_ONLY.get(name, ()) and not (maybe_engine or uses_pressure(settings)):
            beside = " and no engine in GPU" if signal is Signal.AUTO else ""
            yield name, f"has no effect with SIGNAL={signal}{beside}", "read with SIGNAL=pressure"
    for name, needed in PREREQUISITES.items():
        if not _is_default(settings, name) and not settings.value_of(needed):
            yield name, f"has no effect without {needed.upper()}", ""


_Condition = Callable[[BreakerSettings], bool]


def _opens_by(*trips: TripRule) -> tuple[_Condition, str]:
    return lambda values: not values.trip.isdisjoint(trips), f"{' or '.join(trips)} in {{trip}}"


def _has_time(values: BreakerSettings) -> bool:
    return values.slow_call_s is not None or values.first_item_s is not None


def _prolongs(values: BreakerSettings) -> bool:
    return values.backoff > 1 or values.on_429 is t.TooManyRequestsMode.OPEN


# Key -> whether another value makes it effective, and the condition in words.
USED_IF: Final = _by_name(
    {
        "failures failure_window_s": _opens_by(TripRule.CONSECUTIVE),
        "window window_s min_calls": _opens_by(TripRule.FAILURE_RATE, TripRule.SLOW_RATE),
        "slow_is": (_has_time, "{slow_call_s} or {first_item_s}"),
        "ramp_step_s": (lambda values: bool(values.ramp), "{ramp}"),
        "open_max_s": (_prolongs, "{backoff} above 1"),
    }
)


def _odd_values(values: BreakerSettings) -> Iterator[_Advice]:
    """Yield keys (the advice stands under the first that was written), message and hint."""
    modes = {
        t.BreakerMode.METRICS_ONLY: "is metrics_only: no call is rejected, rejections are only counted",
        t.BreakerMode.DISABLED: "is disabled: no failure opens anything",
    }
    if values.mode in modes:
        yield "mode", modes[values.mode], "enforce is the default"
    if values.backoff > 1 and values.open_max_s is None:
        yield "backoff", "prolongs the open period without end", "set {open_max_s}, for example 5m"
    if (values.slow_call_s or 0.0) >= (values.timeout_s or math.inf):
        message = "never finds a slow coroutine: {timeout_s} ends it before {slow_call_s}"
        yield "slow_call_s timeout_s", message, "raise {timeout_s}, or lower {slow_call_s}"


def _guard_advice(settings: Settings) -> Iterator[Problem]:
    """Yield the advice on breaker settings, of all guards or of one."""
    defaults, table = settings.breaker, settings_table()
    written = [key for key in type(defaults).model_fields if not _is_default(settings, f"breaker_{key}")]
    names = {key: table[f"breaker_{key}"].short_name for key in type(defaults).model_fields}
    of_guard = {name: breaker_of(settings.guards, settings.breaker, name) for name in settings.guards}
    all_guards = [defaults, *of_guard.values()]
    for key, message, hint in _breaker_advice(all_guards, written, names, "or of a guard"):
        yield Problem(table[f"breaker_{key}"].variable, message, hint)
    for name, values in of_guard.items():
        policy, place = settings.guards[name], f"guards.{quoted_key(name)}."
        own = policy.explicit()
        found = list(_breaker_advice([values], own, names | {key: key for key in names if key in own}))
        if policy.shed_above == 1:
            found.append(("shed_above", "is 1: no load exceeds it", "then leave the guard core"))
        elif policy.shed_above is not None and settings.control.policy is Policy.FIXED:
            found.append(("shed_above", "has no effect with POLICY=fixed", "no load is known under it"))
        for key, message, hint in found:
            yield Problem(settings.place_of(place + key), message, hint)


def _breaker_advice(
    guards: Sequence[BreakerSettings], written: Collection[str], names: Mapping[str, str], hint: str = ""
) -> Iterator[_Advice]:
    """Yield key, message and hint of odd values of the first guard, and of written ones that none uses."""
    for keys, message, proposal in _odd_values(guards[0]):
        if reported_key := next((key for key in keys.split() if key in written), None):
            yield reported_key, message.format(**names), proposal.format(**names)
    for key, (is_used, needed) in USED_IF.items():
        if key in written and not any(map(is_used, guards)):
            yield key, f"has no effect without {needed.format(**names)}", hint


def _route_advice(settings: Settings) -> Iterator[Problem]:
    exempt = set(settings.callers.exempt_paths)
    takers_of = earlier_matches(settings.routes)
    for position, route in enumerate(settings.routes):
        place = settings.place_of(f"routes[{position}]")
        if names := ", ".join(settings.routes[taker].name for taker in takers_of[position]):
            message = f"{route.name} can never apply, {names} before it matches all its requests"
            yield Problem(place, message, "put the narrower pattern first")
        if not route.exempt and (why := _why_never_admitted(settings, route)):
            yield Problem(place, f"{route.name} can never be admitted: it costs {route.cost:g}, {why}")
        if route.pattern in exempt and not route.exempt:
            yield Problem(place, f"{route.name} can never apply, its path is in EXEMPT_PATHS")
        for column, why in _unread_columns(settings, route):
            yield Problem(place, f"{column} of {route.name} has no effect: {why}")


def _unread_columns(settings: Settings, route: RoutePolicy) -> Iterator[tuple[str, str]]:
    """Yield each column of a route that is never read, with the reason."""
    policy, exempt = settings.control.policy, "it is exempt" if route.exempt else ""
    limited = policy in WITH_LIMIT
    if route.slo_s is not None and (exempt or not limited):
        yield "slo_s", exempt or f"nothing waits with POLICY={policy}"
    if route.slot is not SlotUse.REQUEST and (exempt or not (limited or settings.concurrency.inflight_max)):
        yield "slot", exempt or f"with POLICY={policy} nothing limits requests in flight"


def _why_never_admitted(settings: Settings, route: RoutePolicy) -> str:
    """Reason why no request of the route can ever be admitted; empty if some can."""
    priority = settings.callers.priority_default if route.priority is None else route.priority
    burst = max(1.0, settings.rates.rates_rps[priority] / settings.rates.workers * settings.rates.burst_s)
    if route.cost > burst:
        return f"and the {priority.label} bucket of one worker holds {burst:g}"
    limits = settings.users.by_priority[priority] if route.user_limit is None else route.user_limit
    small = next((limit for limit in limits if limit.limit < route.cost), None)
    return f"and its user limit {small.name} is {small.limit}" if small is not None else ""
