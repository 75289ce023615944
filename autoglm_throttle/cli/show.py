"""``show``: prints the settings in force with their sources, or the policy of one request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.cli.output import EXIT_OK, add_sources, load, table, write, write_json
from autoglm_throttle.settings import Setting, Settings, SettingSource, settings_table, user_limits_text
from autoglm_throttle.settings.advice import WITH_LIMIT
from autoglm_throttle.settings.field_types import plain
from autoglm_throttle.settings.groups import GROUP_OF
from autoglm_throttle.settings.groups.base import field_types
from autoglm_throttle.settings.groups.gpu import ENGINES
from autoglm_throttle.settings.groups.tokens import TOKEN_FIELDS
from autoglm_throttle.settings.policies import GuardPolicy, PlanPolicy
from autoglm_throttle.settings.problems import ConfigError, Problem, quoted_key
from autoglm_throttle.settings.route_policy import ResourcePolicy, RoutePolicy
from autoglm_throttle.settings.sources import SETTINGS_OF, head_of
from autoglm_throttle.types import Priority, StoreFailureMode, UserLimit

QUOTA_BASES: Final = {  # `FillBasis` -> its meaning
    "cache": "Quotas are shares of the key-value cache of the engines.",
    "device": "Quotas are shares of the memory that requests can fill on the fullest device.",
    "unknown": "Quotas reserve no memory: no source reports its use.",
}
NOT_SET: Final = "-"  # Cell of a table without a value
MARK_NAMES: Final = "mark "  # Prefix of the names of policies that come from a mark on an endpoint

# Key of a guard -> the setting that it replaces, if its name is not ``breaker_`` and the key.
_INSTEAD_OF: Final = {"shed_above": "degrade_shed_at", "max_stale_s": "degrade_max_stale_s"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the selection and for one request to the shared options."""
    add_sources(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--changed", action="store_true", help="omit settings that have their default")
    shown.add_argument("--path", help="show the policy of a request with this path instead")
    parser.add_argument("--method", default="GET", help="its method; default: GET")
    parser.add_argument("--app", metavar="MODULE:NAME", help="an app whose marks are applied as well")


def run(args: argparse.Namespace) -> int:
    """Print the settings, or the policy of one request."""
    settings = load(args)
    as_document = args.format == "json"
    if args.path is None:
        left_out = SettingSource.DEFAULT if args.changed else None
        rows = [row for name, row in settings_table().items() if settings.source_of(name) is not left_out]
        write_json(_document(settings, rows)) if as_document else write(_text(settings, rows))
        return EXIT_OK
    details = request_policy(settings, args.path, args.method.upper(), _app(args.app))
    if as_document:
        write_json({"path": args.path, "method": args.method.upper(), **details})
        return EXIT_OK
    if details["slo_s"] is None and not details["exempt"] and _learns_objective(settings):
        details["slo_s"] = "learned"
    write(table((name, _plain(value)) for name, value in details.items()))
    return EXIT_OK


def request_policy(settings: Settings, path: str, method: str, app: object = None) -> dict[str, Any]:
    """Return the policy of a request, found as the middleware does, and the reason."""
    from autoglm_throttle.asgi import marks
    from autoglm_throttle.asgi.routes import RouteTable, is_ambiguous

    if path in settings.callers.exempt_paths:
        return _details(settings, None, "the path is in EXEMPT_PATHS", exempt=True)
    routes = RouteTable(settings.routes)
    if app is not None:
        routes.learn(marks.visible_routes(app))
    route = routes.match(path, method)
    exempt = route is not None and route.exempt and not is_ambiguous(path)
    reason = "no pattern matches: the defaults apply"
    if route is not None:
        is_mark = route.name.startswith(MARK_NAMES)
        reason = "a mark on its endpoint" if is_mark else "the first pattern that matches"
        if route.exempt and not exempt:
            reason += "; not exempt: the app may read the path as another one"
    if method == "OPTIONS":
        reason += "; a CORS preflight is free: with Origin and Access-Control-Request-Method"
    return _details(settings, route, reason, exempt=exempt)


def _details(settings: Settings, route: RoutePolicy | None, reason: str, *, exempt: bool) -> dict[str, Any]:
    own = RoutePolicy("/") if route is None else route
    priority = settings.callers.priority_default if own.priority is None else own.priority
    limits = settings.users.by_priority[priority] if own.user_limit is None else own.user_limit
    charged = {
        "priority": priority.label,
        "cost": own.cost,
        "user_limit": _limits_text(limits),
        "slo_s": settings.concurrency.slo_s if own.slo_s is None else own.slo_s,
        "slot": own.slot.value,
        "resource_policy": _resource_policy(settings, own),
    }
    details = {"policy": None if route is None else route.name, "reason": reason, "exempt": exempt}
    return details | (dict.fromkeys(charged) if exempt else charged)


def _resource_policy(settings: Settings, route: RoutePolicy) -> dict[str, str] | None:
    """Return the resource policy of the request; None without ``QUOTAS``, since nothing reads it then."""
    if not settings.quota.quotas:
        return None
    whole = {column: settings.text_of(name) for column, name in SETTINGS_OF.items()}
    return {column: text for column, text in (whole | (_own_policy(route) or {})).items() if text}


def _own_policy(route: RoutePolicy) -> dict[str, str] | None:
    policy, types = route.resource_policy, field_types(ResourcePolicy)
    return None if policy is None else {key: types[key].text(own) for key, own in policy.explicit().items()}


def _learns_objective(settings: Settings) -> bool:
    return settings.concurrency.slo_s is None and settings.control.policy in WITH_LIMIT


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


def _text(settings: Settings, rows: Sequence[Setting]) -> str:
    parts = [_settings_text(settings, rows) if rows else "Every setting has its default."]
    if _learns_objective(settings):
        parts.append(
            "SLO_S is not set: the objective for a complete response is learned, "
            "four times the P95 under light load, at least 2 s.\nCallers may accept less or more: set SLO_S."
        )
    parts.append(_user_limits_location(settings))
    if (basis := _quota_basis(settings)) is not None:
        parts.append(f"{QUOTA_BASES[basis]} To check what the sources report: autoglm-throttle doctor")
    tables = (
        (
            ("route", "priority", "cost", "user limit", "token limits", "slo s", "slot"),
            map(_route_row, settings.routes),
        ),
        (
            ("plan", "priority", "user limit", "token limits", "members"),
            map(_plan_row, settings.plans.values()),
        ),
        (("guard", "figure", "value", "unit", "instead of", "source"), _guard_rows(settings)),
    )
    parts += [table([heading, *lines]) for heading, rows in tables if (lines := list(rows))]
    return "\n\n".join(parts)


def _settings_text(settings: Settings, rows: Sequence[Setting]) -> str:
    """Format the settings below the names of their groups, with the same columns in all groups."""
    cells = [("setting", "value", "unit", "source")]
    for known in rows:
        value = settings.text_of(known.name) or NOT_SET
        cells.append((known.variable, value, known.field_type.unit, _place(settings, known.name)))
    heading, *lines = table(cells).splitlines()
    parts, group = [heading], ""
    for known, line in zip(rows, lines, strict=True):
        if GROUP_OF[known.name] != group:
            group = GROUP_OF[known.name]
            parts += ["", f"{group}:"]
        parts.append(line)
    return "\n".join(parts)


def _quota_basis(settings: Settings) -> str | None:
    """Return the basis of the quotas with the configured sources; None without ``QUOTAS``."""
    kinds = {item.partition(":")[0] for item in settings.gpu.gpu}
    basis = "cache" if kinds & ENGINES else "unknown" if kinds == {"none"} else "device"
    return basis if settings.quota.quotas else None


def _user_limits_location(settings: Settings) -> str:
    """Describe the place where user limits are counted."""
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


def _route_row(route: RoutePolicy) -> tuple[str, ...]:
    if route.exempt:
        return (route.name, "exempt", *[NOT_SET] * 5)
    cost, slo_s = plain(route.cost), _plain(route.slo_s)
    return (
        route.name,
        _label(route.priority) or NOT_SET,
        cost,
        *_limit_cells(route),
        slo_s,
        route.slot.value,
    )


def _plan_row(plan: PlanPolicy) -> tuple[str, ...]:
    return (plan.name, _label(plan.priority) or NOT_SET, *_limit_cells(plan), str(len(plan.members)))


def _limit_cells(policy: RoutePolicy | PlanPolicy) -> tuple[str, str]:
    """Return the user limit and the token limits of a policy."""
    tokens = [
        f"{kind} {text}"
        for kind, text in zip(TOKEN_FIELDS, _token_limits(policy).values(), strict=True)
        if text
    ]
    return _limits_text(policy.user_limit) or NOT_SET, ", ".join(tokens) or NOT_SET


def _token_limits(policy: RoutePolicy | PlanPolicy) -> dict[str, str | None]:
    return {field: _limits_text(getattr(policy, field)) for field in TOKEN_FIELDS.values()}


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
                "place": _place(settings, known.name),
            }
            for known in rows
        ],
        "routes": [_route_document(route) for route in settings.routes],
        "plans": [
            {
                "name": plan.name,
                "priority": _label(plan.priority),
                "user_limit": _limits_text(plan.user_limit),
                **_token_limits(plan),
                "members": len(plan.members),
            }
            for plan in settings.plans.values()
        ],
        "guards": [_guard_document(settings, *pair) for pair in settings.guards.items()],
        "quota_basis": _quota_basis(settings),
    }


def _route_document(route: RoutePolicy) -> dict[str, Any]:
    return {
        "name": route.name,
        "pattern": route.pattern,
        "methods": None if route.methods is None else sorted(route.methods),
        "priority": _label(route.priority),
        "cost": route.cost,
        "user_limit": _limits_text(route.user_limit),
        **_token_limits(route),
        "exempt": route.exempt,
        "slo_s": route.slo_s,
        "slot": route.slot.value,
        "resource_policy": _own_policy(route),
    }


def _guard_rows(settings: Settings) -> Iterator[tuple[str, ...]]:
    """Yield a row for each figure that a guard has of its own, with its place."""
    for name, policy in settings.guards.items():
        place = _guard_place(settings, name)
        yield from [
            (name, key, value, unit, instead_of or NOT_SET, _guard_place(settings, name, key))
            for key, value, unit, instead_of in _figures(settings, policy)
        ] or [(name, NOT_SET, NOT_SET, "", NOT_SET, place)]


def _guard_document(settings: Settings, name: str, policy: GuardPolicy) -> dict[str, Any]:
    return {
        "name": name,
        "source": settings.source_of("guards").value,
        "place": _guard_place(settings, name),
        "figures": {
            key: {"value": value, "unit": unit or None, "instead_of": instead_of or None}
            for key, value, unit, instead_of in _figures(settings, policy)
        },
    }


def _figures(settings: Settings, policy: GuardPolicy) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, value, unit, and the value for all guards; the latter is empty if there is none."""
    types = field_types(GuardPolicy)
    for key, value in policy.explicit().items():
        if key != "name":
            of_all = _INSTEAD_OF.get(key, f"breaker_{key}")
            default = settings.text_of(of_all) if of_all in settings_table() else ""
            yield key, types[key].text(value), types[key].unit, default


def _guard_place(settings: Settings, name: str, key: str = "") -> str:
    return _place(settings, f"guards.{quoted_key(name)}" + (f".{key}" if key else ""))


def _place(settings: Settings, where: str) -> str:
    """Return the place of a value: a variable, file and line, ``argument`` or ``default``."""
    place = settings.place_of(where)
    match settings.source_of(head_of(where)):
        case SettingSource.DEFAULT:
            return "default"
        case SettingSource.CODE:
            return "argument"
        case SettingSource.CONFIG_FILE:
            file = settings.loading.config_file
            name = "" if file is None else file.name
            return name + place.removeprefix(name).partition(": ")[0]
        case _:
            return place


def _plain(value: str | float | dict[str, str] | None) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} {text}" for key, text in value.items()) or NOT_SET
    if value is None or isinstance(value, bool):
        return {None: NOT_SET, True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else plain(value)


def _label(priority: Priority | None) -> str | None:
    return None if priority is None else priority.label


def _limits_text(limits: tuple[UserLimit, ...] | None) -> str | None:
    """Return the notation; ``off`` if limits were removed, None if the limits of another level apply."""
    return None if limits is None else user_limits_text(limits) or "off"
