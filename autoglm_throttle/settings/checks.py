"""Checks of several settings together, and of the breakers of guards against the defaults of all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.settings.groups import GROUP_OF, settings_table
from autoglm_throttle.settings.groups.base import field_types
from autoglm_throttle.settings.groups.breaker import (
    RELATIONS,
    BreakerSettings,
    cross_field_problems,
    order_messages,
)
from autoglm_throttle.settings.groups.gpu import stale_at_least_s
from autoglm_throttle.settings.groups.tokens import TOKEN_FIELDS, token_limit_problems
from autoglm_throttle.settings.problems import ConfigError, Problem, quoted_key
from autoglm_throttle.types import BorrowMode, Signal, TokenOverrun

if TYPE_CHECKING:
    from autoglm_throttle.settings.policies import GuardPolicy, Tables

Values = Mapping[str, Any]

_MARGIN: Final = "degrade_margin"

# Two settings that must stand in a relation; the hint under the first, in place of the proposal to change the
# second; whether it is one-sided. A setting that is None or 0 ("no maximum") is left out. The problem stands
# under the first one if it was set, else under the second, unless the relation is one-sided: the second alone
# may make the default of the first pointless.
_FIRST_TOKEN: Final = ("slo_ttft_s", "slo_ttft_high_s", "slo_ttft_mid_s", "slo_ttft_low_s")
_Order = tuple[str, str, str, str, bool]
_ORDERS: Final[tuple[_Order, ...]] = (
    ("inflight_floor", "<=", "inflight_start", "", False),
    ("inflight_start", "<=", "inflight_max", "it can never be reached", True),
    ("inflight_floor", "<=", "inflight_max", "it can never be reached", True),
    *((name, "<=", "slo_s", "a stream begins before it ends", True) for name in _FIRST_TOKEN),
    ("reserve_mid", "<=", "reserve_low", "", False),
    ("verdict_power_stalled", "<=", "verdict_power_underfed", "", False),
    ("verdict_sm_stalled", "<=", "verdict_sm_underfed", "", False),
    ("gpu_memory_ratio", "<=", "gpu_memory_target", "", True),
    ("gpu_memory_ratio_low", "<=", "gpu_memory_ratio", "", True),
    ("gpu_stale_after_s", ">", "sample_interval_s", "else every sample is stale before the next", True),
    ("degrade_load_stale_s", ">", "sample_interval_s", "else a sample expires before the next", True),
    ("degrade_shed_at", "<", "degrade_stale_at", "", False),
    ("degrade_stale_at", "<", "degrade_static_at", "", False),
    (_MARGIN, "<", "degrade_shed_at", "else no load is low enough to shed nothing", False),
    ("redis_read_s", ">", "redis_deadline_s", "else slow replies close their connections", False),
)


def failed_checks(
    groups: Values, tables: Tables, given: Mapping[str, object], wrong: set[str]
) -> list[Problem]:
    """Return a problem for each check that fails among the groups, by attribute, and the tables.

    A check runs only for settings that were ``given`` and are not ``wrong`` by themselves: defaults alone, or
    a default beside a value that makes it pointless, are no problem.
    """
    table = settings_table()
    values = {name: getattr(groups[GROUP_OF[name]], known.field) for name, known in table.items()}
    values["plans"] = tables.plans
    problems = [problem for order in _ORDERS for problem in _order_problems(order, values, given, wrong)]
    problems += [
        Problem(name, message, hint)
        for name, needs, message, hint in _contradictions(values)
        if name in given and wrong.isdisjoint({name, *needs.split()})
    ]
    keys = field_types(BreakerSettings)
    defaults = {key: values[f"breaker_{key}"] for key in keys if f"breaker_{key}" not in wrong}
    written = {key for key in defaults if f"breaker_{key}" in given}
    of_all = cross_field_problems(defaults, written, _breaker_name)
    problems += [problem.below("breaker_") for problem in of_all]
    if _MARGIN not in wrong:
        defaults["margin"] = values[_MARGIN]
    return problems + _guard_problems(tables, defaults)


def _order_problems(order: _Order, values: Values, given: Collection[str], wrong: set[str]) -> list[Problem]:
    first, sign, second, reason, one_sided = order
    reported, other = (first, second) if first in given else (second, first)
    if reported not in given or wrong & {first, second}:
        return []
    if one_sided and (reported == second or not values[second]):
        return []
    if values[first] is None or (not values[first] and first not in given):
        return []
    if RELATIONS[sign][0](values[first], values[second]):
        return []
    message, hint = order_messages(first, sign, second, reason)[reported]
    named = settings_table()[other]
    unit = " s" if named.field_type.unit == "s" else ""
    text = f"{named.short_name}, {plain(values[other])}{unit}"
    return [Problem(reported, message.format(**{other: text}), hint.format(**{other: named.short_name}))]


def _contradictions(v: Values) -> Iterator[tuple[str, str, str, str]]:
    """Yield each contradiction: its setting, the others that it needs, message, hint."""
    edge, interval = v["tiers"][0][0], plain(v["sample_interval_s"])
    if v["tier_release_margin_pct"] > edge:
        message = f"must not pass the first edge of TIERS, {plain(edge)} %"
        yield "tier_release_margin_pct", "tiers", message, "else even an idle GPU never counts as calm"
    if v["deadline_header"] == v["priority_header"]:
        message = "must not be PRIORITY_HEADER as well"
        yield "deadline_header", "priority_header", message, "one header cannot carry both"
    if v["gpu_required"] and v["gpu"] == ("none",):
        yield "gpu_required", "gpu", "cannot be true with GPU=none", "no sample will ever arrive"
    least = 2.0 * (v["gpu_stale_after_s"] or stale_at_least_s(v["sample_interval_s"]))
    if v["gpu_blind_after_s"] < least:
        message = f"must be at least twice the age of a stale sample, {plain(least)} s"
        needs = "gpu_stale_after_s sample_interval_s"
        yield "gpu_blind_after_s", needs, message, "or lower gpu_stale_after_s"
    if v["sample_adaptive"] and v["sample_interval_max_s"] < v["sample_interval_s"]:
        message = f"needs sample_interval_max_s to be at least SAMPLE_INTERVAL_S, {interval} s"
        hint = "raise sample_interval_max_s, or lower SAMPLE_INTERVAL_S"
        yield "sample_adaptive", "sample_interval_s sample_interval_max_s", message, hint
    if v["nginx_flags_dir"] is not None and not find_spec("fcntl"):
        yield "nginx_flags_dir", "", "needs a system with file locks (flock)", "leave it out on Windows"
    if v["signal"] is Signal.PRESSURE and not v["gpu_pressure_terms"]:
        message = "must name a term with SIGNAL=pressure"
        yield "gpu_pressure_terms", "signal", message, "else the table never has a signal"
    yield from _token_contradictions(v)
    yield from _sharing_contradictions(v)


def _token_contradictions(v: Values) -> Iterator[tuple[str, str, str, str]]:
    for problem in token_limit_problems(v):
        yield problem.variable, " ".join(TOKEN_FIELDS.values()), problem.message, problem.hint
    if v["tokens_overrun"] is not TokenOverrun.ALLOW and v["redis_url"] is not None:
        hint = "a stream does not wait for the answer of the store: leave it at allow, or leave out REDIS_URL"
        yield (
            "tokens_overrun",
            "redis_url",
            "streams cannot be ended at limits shared through REDIS_URL",
            hint,
        )


def _sharing_contradictions(v: Values) -> Iterator[tuple[str, str, str, str]]:
    if v["fleet"] and v["borrow"] is not BorrowMode.OFF:
        hint = "the tokens of a fleet are leased for each priority"
        yield "borrow", "fleet", "must be off with FLEET", hint
    kind, _, name = v["identity"].partition(":")
    if kind == "header" and name in v["record_headers"]:
        hint = "a header that identifies the caller can never be recorded"
        yield "record_headers", "identity", f"must not hold {name}, the header of IDENTITY", hint
    if v["redis_url"] is None:
        for name in ("fleet", "fleet_gpu", "breaker_shared"):
            if v[name]:
                yield name, "redis_url", "needs REDIS_URL", "processes share state through Redis"
        if v["key_secret"] is None and any(plan.members for plan in v["plans"].values()):
            hint = "without it a caller's identity differs in each process and after each start"
            yield "plans", "redis_url key_secret", "members need a KEY_SECRET", hint
    elif not find_spec("redis"):
        yield "redis_url", "", "needs the package redis", how_to_install("redis")


def breaker_of(
    guards: Mapping[str, GuardPolicy], breaker: BreakerSettings, name: str, own: BreakerSettings | None = None
) -> BreakerSettings:
    """Return the settings of one guard's breaker: from code, else ``[guards.<name>]``, else ``BREAKER_*``."""
    policy = guards.get(name)
    if own is None and policy is None:
        return breaker
    of_code, of_guard = _explicit_values(own), _explicit_values(policy)
    table = f"guards.{quoted_key(name)}"
    values = _overridden(_overridden(dict(breaker), of_guard), of_code)
    names = {key: key if key in of_code else f"{table}.{key}" for key in (*of_code, *of_guard)}
    problems = cross_field_problems(values, of_code, lambda key: names.get(key) or _breaker_name(key))
    if problems:
        raise ConfigError(problem.below(f"{table}.") for problem in problems)
    return BreakerSettings.model_construct(
        breaker.model_fields_set | of_guard.keys() | of_code.keys(), **values
    )


def _overridden(values: Values, own: Values) -> dict[str, Any]:
    """Return values with those of one guard over them; its window replaces one of the other kind."""
    windows = {"window", "window_s"}
    return {**values, **(dict.fromkeys(windows) if windows & own.keys() else {}), **own}


def _explicit_values(settings: BreakerSettings | None) -> dict[str, Any]:
    values = {} if settings is None else settings.explicit()
    return {key: value for key, value in values.items() if key in BreakerSettings.model_fields}


def _guard_problems(tables: Tables, defaults: Values) -> list[Problem]:
    """Find contradictions between the table of a guard and the defaults of all guards."""
    problems = []
    for name, policy in tables.guards.items():
        place = f"guards.{quoted_key(name)}"
        own, wrong = policy.own_values(), tables.wrong.get(place, ())
        known = {key: value for key, value in _overridden(defaults, own).items() if key not in wrong}
        names = {key: key if key in own else _breaker_name(key) for key in known}
        of_table = cross_field_problems(own, own)
        found = cross_field_problems(known, own, names.__getitem__)
        problems += [problem.below(f"{place}.") for problem in found if problem not in of_table]
    return problems


def _breaker_name(key: str) -> str:
    return _MARGIN if key == "margin" else settings_table()[f"breaker_{key}"].short_name
