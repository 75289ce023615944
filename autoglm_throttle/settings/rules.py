"""What settings must hold together, and what is allowed but looks like a mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.settings.field import PREFIX, Source
from autoglm_throttle.settings.fields import HeaderTrust
from autoglm_throttle.settings.problem import Problem
from autoglm_throttle.settings.quantity import plain
from autoglm_throttle.settings.route_policy import RoutePolicy, unreachable

if TYPE_CHECKING:
    from autoglm_throttle.settings.settings import Settings

STALE_INTERVALS = 3.0
STALE_LEAST_S = 3.0
"""The age from which a sample is stale unless set: three intervals, at least 3 s."""


@dataclass(frozen=True)
class Rule:
    """A condition on several settings, asked only if each of them is right by itself."""

    blames: str
    """The setting that is told."""
    needs: tuple[str, ...]
    broken: Callable[[Mapping[str, Any], bool], tuple[str, str] | None]
    """From all values, and whether the blamed one was given, to message and hint."""


def stale_after_s(values: Mapping[str, Any]) -> float:
    """Age in seconds from which a sample is stale."""
    given: float | None = values["gpu_stale_after_s"]
    return max(STALE_INTERVALS * values["sample_interval_s"], STALE_LEAST_S) if given is None else given


def _blind_too_early(values: Mapping[str, Any], given: bool) -> tuple[str, str] | None:
    least = 2.0 * stale_after_s(values)
    if not given or values["gpu_blind_after_s"] >= least:
        return None
    return f"must be at least twice the age of a stale sample, {plain(least)} s", "or lower GPU_STALE_AFTER_S"


def _always_stale(values: Mapping[str, Any], given: bool) -> tuple[str, str] | None:
    interval = values["sample_interval_s"]
    if not given or stale_after_s(values) > interval:
        return None
    return (
        f"must be above SAMPLE_INTERVAL_S, {plain(interval)} s",
        "else every sample is stale before the next",
    )


def _never_released(values: Mapping[str, Any], given: bool) -> tuple[str, str] | None:
    edge = values["tiers"][0][0]
    if not given or values["tier_release_margin_pct"] <= edge:
        return None
    return (
        f"must not pass the first edge of TIERS, {plain(edge)} %",
        "else even an idle GPU never counts as calm",
    )


def _required_nothing(values: Mapping[str, Any], given: bool) -> tuple[str, str] | None:
    if not (given and values["gpu_required"] and values["gpu"] == "none"):
        return None
    return "cannot be true with GPU=none", "no sample will ever come"


def _members_without_key(values: Mapping[str, Any], given: bool) -> tuple[str, str] | None:
    if not (given and values["plans"].has_members) or values["key_secret"] is not None:
        return None
    return (
        "members need a KEY_SECRET",
        "without it a caller's identity differs in each process and after each start",
    )


RULES: Final = (
    Rule("tier_release_margin_pct", ("tier_release_margin_pct", "tiers"), _never_released),
    Rule("gpu_required", ("gpu_required", "gpu"), _required_nothing),
    Rule("gpu_stale_after_s", ("gpu_stale_after_s", "sample_interval_s"), _always_stale),
    Rule(
        "gpu_blind_after_s", ("gpu_blind_after_s", "gpu_stale_after_s", "sample_interval_s"), _blind_too_early
    ),
    Rule("plans", ("plans", "key_secret"), _members_without_key),
)


def broken_rules(values: Mapping[str, Any], given: Mapping[str, object], wrong: set[str]) -> list[Problem]:
    """A problem for each rule that does not hold.

    Args:
        values: all values, defaults included.
        given: what was not left to its default.
        wrong: names of settings that are faulty by themselves; rules about them are not asked.
    """
    problems = []
    for rule in RULES:
        if wrong.isdisjoint(rule.needs):
            complaint = rule.broken(values, rule.blames in given)
            if complaint is not None:
                problems.append(Problem(rule.blames, *complaint))
    return problems


def advice(settings: Settings) -> list[Problem]:
    """What is allowed and yet probably not meant, as ``autoglm-throttle check`` prints it."""
    remarks = [(name, message, hint) for name, holds, message, hint in _remarks(settings) if holds]
    found = [Problem(PREFIX + name.upper(), message, hint) for name, message, hint in remarks]
    return [*found, *_dead_routes(settings), *settings.ignored]


def _remarks(settings: Settings) -> list[tuple[str, bool, str, str]]:
    trust = settings.priority_header_trust
    limited = any(settings.user_limits)
    return [
        (
            "workers",
            settings.source_of("workers") is Source.DEFAULT,
            "is not set: one process is assumed",
            "with n workers each would give the whole rates; user limits in memory count per process",
        ),
        (
            "user_limit",
            not limited,
            "is off: one user can take everything",
            "for example 100/minute;5/second",
        ),
        (
            "key_secret",
            settings.key_secret is None,
            "is not set: identities differ in each process and after each start",
            "set one, for example the output of: openssl rand -hex 32",
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
            "priority_header_trust",
            trust is HeaderTrust.PROXY and not settings.trusted_proxies,
            "is proxy, but no proxy is trusted: the header can only lower",
            "set TRUSTED_PROXIES",
        ),
        (
            "gpu_devices",
            bool(settings.gpu_devices) and settings.gpu not in {"auto", "nvml"},
            f"has no effect with GPU={settings.gpu.partition(':')[0]}",
            "",
        ),
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
    return problems + [
        Problem(places[route], f"{route.name} can never apply, its path is in EXEMPT_PATHS")
        for route in settings.routes
        if _is_literal(route) and route.pattern in exempt and not route.exempt
    ]


def _too_dear(settings: Settings, route: RoutePolicy) -> str:
    """Why no request of the route can ever be admitted; empty if some can."""
    priority = settings.priority_default if route.priority is None else route.priority
    burst = max(1.0, settings.rates_rps[priority] / settings.workers * settings.burst_s)
    if route.cost > burst:
        return f"and the {priority.label} bucket of one worker holds {burst:g}"
    limits = settings.user_limits[priority] if route.user_limit is None else route.user_limit
    small = next((limit for limit in limits if limit.limit < route.cost), None)
    return f"and its user limit {small.name} is {small.limit}" if small is not None else ""


def _is_literal(route: RoutePolicy) -> bool:
    return not any(part == "*" or part.startswith("{") for part in route.segments)
