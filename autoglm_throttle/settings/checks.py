"""Cross-field checks of the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from autoglm_throttle.settings.guard_checks import check_guard_defaults, check_guards
from autoglm_throttle.settings.install_hint import how_to_install
from autoglm_throttle.settings.problems import Problem
from autoglm_throttle.settings.quantity import plain
from autoglm_throttle.settings.storage_uri import parse_storage_uri
from autoglm_throttle.types import BorrowMode, Priority, Signal

STALE_INTERVALS = 3.0
STALE_LEAST_S = 3.0
"""Default age from which a sample is stale: three intervals, at least 3 s."""

MessageAndHint = tuple[str, str] | None
"""Message and hint."""


@dataclass(frozen=True)
class CrossFieldCheck:
    """A condition on several settings, checked only if each of them is valid by itself."""

    reported_setting: str
    """The setting that the problem is reported for; the check runs only if it was set."""
    needs: tuple[str, ...]
    find_problem: Callable[[Mapping[str, Any]], MessageAndHint]
    """Maps all values to a problem, or None."""
    unless: str = ""
    """A setting with its own check of the same condition; this check is skipped if it was set as well."""


def stale_at_least_s(interval_s: float) -> float:
    """Default age in seconds from which a sample is stale."""
    return max(STALE_INTERVALS * interval_s, STALE_LEAST_S)


def stale_after_s(values: Mapping[str, Any]) -> float:
    """Age in seconds from which a sample is stale."""
    given: float | None = values["gpu_stale_after_s"]
    return stale_at_least_s(values["sample_interval_s"]) if given is None else given


def _at_most(low: str, high: str) -> CrossFieldCheck:
    """Check of two constants, by their keys in ``CONFIG_FILE``."""

    def broken(values: Mapping[str, Any]) -> MessageAndHint:
        if values[low] <= values[high]:
            return None
        return f"must be at most {high}, {plain(values[high])}", f"or raise {high}"

    return CrossFieldCheck(low, (low, high), broken)


def _at_least(high: str, low: str) -> CrossFieldCheck:
    """The same check, reported for the other of the two."""

    def broken(values: Mapping[str, Any]) -> MessageAndHint:
        if values[low] <= values[high]:
            return None
        return f"must be at least {low}, {plain(values[low])}", f"or lower {low}"

    return CrossFieldCheck(high, (low, high), broken, unless=low)


def _within_inflight_max(name: str) -> CrossFieldCheck:
    def broken(values: Mapping[str, Any]) -> MessageAndHint:
        most = values["inflight_max"]
        if not most or values[name] <= most:
            return None
        return f"must be at most INFLIGHT_MAX, {most}", "it can never be reached"

    return CrossFieldCheck(name, (name, "inflight_max"), broken)


def _blind_too_early(values: Mapping[str, Any]) -> MessageAndHint:
    least = 2.0 * stale_after_s(values)
    if values["gpu_blind_after_s"] >= least:
        return None
    return f"must be at least twice the age of a stale sample, {plain(least)} s", "or lower GPU_STALE_AFTER_S"


def _always_stale(values: Mapping[str, Any]) -> MessageAndHint:
    interval = values["sample_interval_s"]
    if stale_after_s(values) > interval:
        return None
    return (
        f"must be above SAMPLE_INTERVAL_S, {plain(interval)} s",
        "else every sample is stale before the next",
    )


def _never_released(values: Mapping[str, Any]) -> MessageAndHint:
    edge = values["tiers"][0][0]
    if values["tier_release_margin_pct"] <= edge:
        return None
    return (
        f"must not pass the first edge of TIERS, {plain(edge)} %",
        "else even an idle GPU never counts as calm",
    )


def _required_nothing(values: Mapping[str, Any]) -> MessageAndHint:
    if not (values["gpu_required"] and values["gpu"] == ("none",)):
        return None
    return "cannot be true with GPU=none", "no sample will ever arrive"


def _slower_than_slowest(values: Mapping[str, Any]) -> MessageAndHint:
    interval = values["sample_interval_s"]
    if not values["sample_adaptive"] or values["sample_interval_max_s"] >= interval:
        return None
    message = f"needs SAMPLE_INTERVAL_MAX_S to be at least SAMPLE_INTERVAL_S, {plain(interval)} s"
    return message, "raise SAMPLE_INTERVAL_MAX_S, or lower SAMPLE_INTERVAL_S"


def _above(low: str, high: str) -> CrossFieldCheck:
    """Check of two variables: the first must not exceed the second."""

    def broken(values: Mapping[str, Any]) -> MessageAndHint:
        if values[low] <= values[high]:
            return None
        return f"must be at most {high.upper()}, {plain(values[high])}", f"or raise {high.upper()}"

    return CrossFieldCheck(low, (low, high), broken)


def _rising(low: str, high: str) -> tuple[CrossFieldCheck, CrossFieldCheck]:
    """Checks of two variables: the first must stay below the second."""

    def checker(side: str, other: str, remedy: str) -> Callable[[Mapping[str, Any]], MessageAndHint]:
        def broken(values: Mapping[str, Any]) -> MessageAndHint:
            if values[low] < values[high]:
                return None
            return f"must be {side} {other.upper()}, {plain(values[other])}", f"or {remedy} {other.upper()}"

        return broken

    return (
        CrossFieldCheck(low, (low, high), checker("below", high, "raise")),
        CrossFieldCheck(high, (low, high), checker("above", low, "lower"), unless=low),
    )


def _step_never_taken(values: Mapping[str, Any]) -> MessageAndHint:
    interval = values["sample_interval_s"]
    if values["degrade_load_stale_s"] > interval:
        return None
    return (
        f"must be above SAMPLE_INTERVAL_S, {plain(interval)} s",
        "else a sample expires before the next",
    )


def _margin_of_all(values: Mapping[str, Any]) -> MessageAndHint:
    lowest = values["degrade_shed_at"]
    if values["degrade_margin"] < lowest:
        return None
    return f"must be below DEGRADE_SHED_AT, {plain(lowest)}", "else no load is low enough to shed nothing"


def _shed_within_margin(values: Mapping[str, Any]) -> MessageAndHint:
    margin = values["degrade_margin"]
    if margin < values["degrade_shed_at"]:
        return None
    return f"must be above degrade_margin, {plain(margin)}", "or lower degrade_margin"


def _pressure_of_nothing(values: Mapping[str, Any]) -> MessageAndHint:
    if values["signal"] is not Signal.PRESSURE or values["gpu_pressure_terms"]:
        return None
    return "must name a term with SIGNAL=pressure", "else the table never has a signal"


def _one_header_for_two(values: Mapping[str, Any]) -> MessageAndHint:
    if values["deadline_header"] != values["priority_header"]:
        return None
    return "must not be PRIORITY_HEADER as well", "one header cannot carry both"


def _identity_recorded(values: Mapping[str, Any]) -> MessageAndHint:
    kind, _, name = values["identity"].partition(":")
    if kind != "header" or name not in values["record_headers"]:
        return None
    return (
        f"must not hold {name}, the header of IDENTITY",
        "a header that identifies the caller can never be recorded",
    )


def _members_without_key(values: Mapping[str, Any]) -> MessageAndHint:
    stable = ("key_secret", "redis_url", "user_storage")
    if not values["plans"].has_members or any(values[name] is not None for name in stable):
        return None
    return (
        "members need a KEY_SECRET",
        "without it a caller's identity differs in each process and after each start",
    )


def _redis_missing(values: Mapping[str, Any]) -> MessageAndHint:
    if values["redis_url"] is None or find_spec("redis"):
        return None
    return "needs the package redis", how_to_install("redis")


def _two_stores(values: Mapping[str, Any]) -> MessageAndHint:
    if values["redis_url"] is None or values["user_storage"] is None:
        return None
    return "must not be set beside REDIS_URL", "users are counted in one store; leave one of them out"


def _window_too_long(values: Mapping[str, Any]) -> MessageAndHint:
    """Find a user limit with a window too long for the storage."""
    secret = values["user_storage"]
    if secret is None:
        return None
    storage = parse_storage_uri(secret.get_secret_value())
    own = [values["user_limit"], *(values[f"user_limit_{p.label}"] for p in Priority)]
    own += [plan.user_limit for plan in values["plans"].values()]
    own += [route.user_limit for route in values["routes"]]
    for limit in (limit for limits in own for limit in limits or ()):
        try:
            storage.check_window(limit.window_s)
        except ValueError as error:
            return f"cannot keep the limit {limit.name}", str(error)
    return None


def _needs_redis(name: str) -> CrossFieldCheck:
    def broken(values: Mapping[str, Any]) -> MessageAndHint:
        if not values[name] or values["redis_url"] is not None:
            return None
        return "needs REDIS_URL", "processes share state through Redis"

    return CrossFieldCheck(name, (name, "redis_url"), broken)


def _borrow_in_a_fleet(values: Mapping[str, Any]) -> MessageAndHint:
    if not values["fleet"] or values["borrow"] is BorrowMode.OFF:
        return None
    return "must be off with FLEET", "the tokens of a fleet are leased for each priority"


def _read_too_short(values: Mapping[str, Any]) -> MessageAndHint:
    deadline = values["redis_deadline_s"]
    if values["redis_read_s"] > deadline:
        return None
    return f"must be above REDIS_DEADLINE_S, {plain(deadline)} s", "else slow replies close their connections"


def _deadline_too_long(values: Mapping[str, Any]) -> MessageAndHint:
    read = values["redis_read_s"]
    if values["redis_deadline_s"] < read:
        return None
    return f"must be below REDIS_READ_S, {plain(read)} s", "or raise REDIS_READ_S"


CHECKS: Final = (
    CrossFieldCheck("tier_release_margin_pct", ("tier_release_margin_pct", "tiers"), _never_released),
    CrossFieldCheck("deadline_header", ("deadline_header", "priority_header"), _one_header_for_two),
    CrossFieldCheck("gpu_required", ("gpu_required", "gpu"), _required_nothing),
    CrossFieldCheck("gpu_stale_after_s", ("gpu_stale_after_s", "sample_interval_s"), _always_stale),
    CrossFieldCheck(
        "gpu_blind_after_s", ("gpu_blind_after_s", "gpu_stale_after_s", "sample_interval_s"), _blind_too_early
    ),
    CrossFieldCheck(
        "sample_adaptive",
        ("sample_adaptive", "sample_interval_s", "sample_interval_max_s"),
        _slower_than_slowest,
    ),
    _above("gpu_memory_ratio", "gpu_memory_target"),
    _above("gpu_memory_ratio_low", "gpu_memory_ratio"),
    CrossFieldCheck("gpu_pressure_terms", ("gpu_pressure_terms", "signal"), _pressure_of_nothing),
    _at_most("inflight_floor", "inflight_start"),
    _at_least("inflight_start", "inflight_floor"),
    _within_inflight_max("inflight_start"),
    _within_inflight_max("inflight_floor"),
    _at_most("reserve_mid", "reserve_low"),
    _at_least("reserve_low", "reserve_mid"),
    _at_most("verdict_power_stalled", "verdict_power_underfed"),
    _at_least("verdict_power_underfed", "verdict_power_stalled"),
    _at_most("verdict_sm_stalled", "verdict_sm_underfed"),
    _at_least("verdict_sm_underfed", "verdict_sm_stalled"),
    CrossFieldCheck("plans", ("plans", "key_secret", "redis_url", "user_storage"), _members_without_key),
    CrossFieldCheck("redis_url", ("redis_url",), _redis_missing),
    CrossFieldCheck("user_storage", ("redis_url", "user_storage"), _two_stores),
    CrossFieldCheck("borrow", ("borrow", "fleet"), _borrow_in_a_fleet),
    CrossFieldCheck(
        "user_storage",
        ("user_storage", "user_limit", *(f"user_limit_{p.label}" for p in Priority), "plans", "routes"),
        _window_too_long,
    ),
    _needs_redis("fleet"),
    _needs_redis("fleet_gpu"),
    _needs_redis("breaker_shared"),
    CrossFieldCheck("degrade_load_stale_s", ("degrade_load_stale_s", "sample_interval_s"), _step_never_taken),
    *_rising("degrade_shed_at", "degrade_stale_at"),
    *_rising("degrade_stale_at", "degrade_static_at"),
    CrossFieldCheck("degrade_margin", ("degrade_margin", "degrade_shed_at"), _margin_of_all),
    CrossFieldCheck(
        "degrade_shed_at",
        ("degrade_margin", "degrade_shed_at"),
        _shed_within_margin,
        unless="degrade_margin",
    ),
    CrossFieldCheck("record_headers", ("record_headers", "identity"), _identity_recorded),
    CrossFieldCheck("redis_read_s", ("redis_read_s", "redis_deadline_s"), _read_too_short),
    CrossFieldCheck(
        "redis_deadline_s", ("redis_read_s", "redis_deadline_s"), _deadline_too_long, unless="redis_read_s"
    ),
)


def failed_checks(values: Mapping[str, Any], given: Mapping[str, object], wrong: set[str]) -> list[Problem]:
    """Return a problem for each check that fails.

    Defaults alone, or a default beside a value that makes it pointless, are no problem: a check runs only
    for settings that were set.

    Args:
        values: all values, defaults included.
        given: the values that were set.
        wrong: names of settings that are invalid by themselves; checks of them are skipped.
    """
    problems = []
    for check in CHECKS:
        # Skip checks of invalid settings: their problems are reported already.
        if check.reported_setting in given and check.unless not in given and wrong.isdisjoint(check.needs):
            message_and_hint = check.find_problem(values)
            if message_and_hint is not None:
                problems.append(Problem(check.reported_setting, *message_and_hint))
    problems += check_guard_defaults(values, given, wrong)
    return problems + check_guards(given.get("guards", ()), values, wrong)
