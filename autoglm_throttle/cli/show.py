"""``show``: prints the settings in force with their sources, or the policy of one request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from autoglm_throttle.cli.command import add_sources, load
from autoglm_throttle.cli.output import EXIT_OK, table, write, write_json
from autoglm_throttle.cli.place import place_text
from autoglm_throttle.cli.show_guards import NOT_SET, guards_document, guards_table
from autoglm_throttle.settings import (
    ConfigError,
    Problem,
    ResourcePolicy,
    RoutePolicy,
    Setting,
    Settings,
    SettingSource,
    settings_table,
    user_limits_text,
)
from autoglm_throttle.settings.advice import WITH_LIMIT
from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.settings.groups import GROUP_OF
from autoglm_throttle.settings.groups.base import field_types
from autoglm_throttle.settings.sources import SETTINGS_OF
from autoglm_throttle.types import Priority, SlotUse, StoreFailureMode, UserLimit

MARK_NAMES = "mark "
"""Prefix of the names of policies that come from a mark on an endpoint."""


@dataclass(frozen=True)
class EffectivePolicy:
    """The policy that applies to one request, and the reason."""

    reason: str
    exempt: bool
    policy: RoutePolicy | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the selection and for one request to the shared options."""
    add_sources(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--changed", action="store_true", help="omit settings that have their default")
    shown.add_argument("--path", help="show the policy of a request with this path instead")
    parser.add_argument("--method", default="GET", help="its method; default: GET")
    parser.add_argument("--app", metavar="MODULE:NAME", help="an app whose marks are applied as well")


def run(args: argparse.Namespace) -> int:
    """Print the settings, or the policy of one request.

    Raises:
        ConfigError: the settings have problems, or the app cannot be imported.
    """
    settings = load(args)
    as_document = args.format == "json"
    if args.path is None:
        rows = _rows(settings, changed=args.changed)
        write_json(_document(settings, rows)) if as_document else write(_text(settings, rows))
        return EXIT_OK
    effective = evaluate(settings, args.path, args.method.upper(), _app(args.app))
    details = _details(settings, effective)
    if details["slo_s"] is None and not effective.exempt and not as_document and _learns_objective(settings):
        details["slo_s"] = "learned"
    if as_document:
        write_json({"path": args.path, "method": args.method.upper(), **details})
    else:
        write(table((name, _plain(value)) for name, value in details.items()))
    return EXIT_OK


def user_limits_location(settings: Settings) -> str:
    """Describe the place where user limits are counted. Only ``doctor`` checks that it responds."""
    if settings.store.redis_url is None:
        return "User limits are counted in the memory of each process."
    fallback_text = {
        StoreFailureMode.LOCAL: f"each process enforces 1/{settings.rates.workers} of them",
        StoreFailureMode.ALLOW: "no user limit is enforced",
        StoreFailureMode.DENY: "requests under a user limit are rejected",
    }[settings.store.redis_on_error]
    return (
        f"User limits are counted in Redis for all processes; while it is unavailable, {fallback_text}.\n"
        "To check that it responds: autoglm-throttle doctor"
    )


def evaluate(settings: Settings, path: str, method: str, app: object = None) -> EffectivePolicy:
    """Find the policy of a request, as the middleware does.

    Args:
        settings: the policies and the defaults.
        path: as received, without ``root_path``.
        method: in capitals.
        app: an app with marked endpoints, or None.
    """
    from autoglm_throttle.asgi import marks
    from autoglm_throttle.asgi.routes import RouteTable

    if method == "OPTIONS":
        return EffectivePolicy("OPTIONS is never charged", exempt=True)
    if path in settings.callers.exempt_paths:
        return EffectivePolicy("the path is in EXEMPT_PATHS", exempt=True)
    routes = RouteTable(settings.routes)
    if app is not None:
        routes.learn(marks.visible_routes(app))
    route = routes.match(path, method)
    if route is None:
        return EffectivePolicy("no pattern matches: the defaults apply", exempt=False)
    origin = (
        "a mark on its endpoint" if route.name.startswith(MARK_NAMES) else "the first pattern that matches"
    )
    return EffectivePolicy(origin, route.exempt, route)


def _details(settings: Settings, effective: EffectivePolicy) -> dict[str, Any]:
    route = effective.policy
    priority = settings.callers.priority_default
    if route is not None and route.priority is not None:
        priority = route.priority
    own = None if route is None else route.user_limit
    limits = settings.users.by_priority[priority] if own is None else own
    return {
        "policy": None if route is None else route.name,
        "reason": effective.reason,
        "exempt": effective.exempt,
        "priority": None if effective.exempt else priority.label,
        "cost": None if effective.exempt else (1.0 if route is None else route.cost),
        "user_limit": None if effective.exempt else _limits_text(limits),
        "slo_s": None if effective.exempt else _slo_s(settings, route),
        "slot": None if effective.exempt else (SlotUse.REQUEST if route is None else route.slot).value,
        "resource_policy": None if effective.exempt else _resource_policy(settings, route),
    }


def _resource_policy(settings: Settings, route: RoutePolicy | None) -> dict[str, str] | None:
    """Return the resource policy of the request; None without ``QUOTAS``, since nothing reads it then."""
    if not settings.quota.quotas:
        return None
    whole = {column: settings.text_of(name) for column, name in SETTINGS_OF.items()}
    own = None if route is None else _own_policy(route)
    return {column: text for column, text in (whole | (own or {})).items() if text}


def _own_policy(route: RoutePolicy) -> dict[str, str] | None:
    policy, types = route.resource_policy, field_types(ResourcePolicy)
    return None if policy is None else {key: types[key].text(own) for key, own in policy.explicit().items()}


def _slo_s(settings: Settings, route: RoutePolicy | None) -> float | None:
    return settings.concurrency.slo_s if route is None or route.slo_s is None else route.slo_s


def _learns_objective(settings: Settings) -> bool:
    return settings.concurrency.slo_s is None and settings.control.policy in WITH_LIMIT


def objective_text(settings: Settings) -> str:
    """Describe the objective for a complete response where it is learned; else empty."""
    if not _learns_objective(settings):
        return ""
    return (
        "SLO_S is not set: the objective for a complete response is learned, "
        "four times the P95 under light load, at least 2 s.\nCallers may accept less or more: set SLO_S."
    )


def _app(spec: str | None) -> object:
    if spec is None:
        return None
    module, _, name = spec.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        target: object = import_module(module)
        for part in (name or "app").split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError([Problem("--app", f"cannot be imported: {error}")]) from None
    return target


def _rows(settings: Settings, *, changed: bool) -> list[Setting]:
    """Return the settings to show: all, or those that have another source than their default."""
    rows = settings_table().items()
    return [
        known for name, known in rows if not changed or settings.source_of(name) is not SettingSource.DEFAULT
    ]


def _text(settings: Settings, rows: Sequence[Setting]) -> str:
    parts = [_settings_text(settings, rows) if rows else "Every setting has its default."]
    parts += filter(None, [objective_text(settings), user_limits_location(settings)])
    if settings.routes:
        heading = ("route", "priority", "cost", "user limit", "slo s", "slot")
        parts.append(table([heading, *map(_route_row, settings.routes)]))
    if settings.plans:
        plans = [
            (
                plan.name,
                _label(plan.priority),
                _limits_text(plan.user_limit) or NOT_SET,
                str(len(plan.members)),
            )
            for plan in settings.plans.values()
        ]
        parts.append(table([("plan", "priority", "user limit", "members"), *plans]))
    if settings.guards:
        parts.append(guards_table(settings))
    return "\n\n".join(parts)


def _settings_text(settings: Settings, rows: Sequence[Setting]) -> str:
    """Format the settings below the names of their groups, with the same columns in all groups."""
    cells = [("setting", "value", "unit", "source")]
    cells += [
        (
            known.variable,
            settings.text_of(known.name) or NOT_SET,
            known.field_type.unit,
            place_text(settings, known.name),
        )
        for known in rows
    ]
    heading, *lines = table(cells).splitlines()
    parts, group = [heading], ""
    for known, line in zip(rows, lines, strict=True):
        if GROUP_OF[known.name] != group:
            group = GROUP_OF[known.name]
            parts += ["", f"{group}:"]
        parts.append(line)
    return "\n".join(parts)


def _route_row(route: RoutePolicy) -> tuple[str, ...]:
    if route.exempt:
        return (route.name, "exempt", NOT_SET, NOT_SET, NOT_SET, NOT_SET)
    limits = _limits_text(route.user_limit) or NOT_SET
    return (
        route.name,
        _label(route.priority),
        plain(route.cost),
        limits,
        _plain(route.slo_s),
        route.slot.value,
    )


def _document(settings: Settings, rows: Sequence[Setting]) -> dict[str, Any]:
    return {
        "settings": [
            {
                "name": known.name,
                "group": GROUP_OF[known.name],
                "variable": None if known.file_only else known.variable,
                "value": settings.text_of(known.name) or None,
                "unit": known.field_type.unit or None,
                "default": known.default_text or None,
                "source": settings.source_of(known.name).value,
                "place": place_text(settings, known.name),
            }
            for known in rows
        ],
        "routes": [
            {
                "name": route.name,
                "pattern": route.pattern,
                "methods": None if route.methods is None else sorted(route.methods),
                "priority": None if route.priority is None else route.priority.label,
                "cost": route.cost,
                "user_limit": _limits_text(route.user_limit),
                "exempt": route.exempt,
                "slo_s": route.slo_s,
                "slot": route.slot.value,
                "resource_policy": _own_policy(route),
            }
            for route in settings.routes
        ],
        "plans": [
            {
                "name": plan.name,
                "priority": None if plan.priority is None else plan.priority.label,
                "user_limit": _limits_text(plan.user_limit),
                "members": len(plan.members),
            }
            for plan in settings.plans.values()
        ],
        "guards": guards_document(settings),
    }


def _plain(value: str | float | dict[str, str] | None) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} {text}" for key, text in value.items()) or NOT_SET
    if value is None or isinstance(value, bool):
        return {None: NOT_SET, True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else plain(value)


def _label(priority: Priority | None) -> str:
    return NOT_SET if priority is None else priority.label


def _limits_text(limits: tuple[UserLimit, ...] | None) -> str | None:
    """Return the notation; ``off`` if limits were removed, None if the limits of another level apply."""
    return None if limits is None else user_limits_text(limits) or "off"
