"""Marks on endpoints, and how the middleware comes to know them.

A mark only sets an attribute: no wrapper, no extra argument, any decorator order.
Admission never depends on finding a route. A mark that cannot be seen from outside before routing
is learned when its endpoint first answers: late once, never open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from autoglm_throttle.model import Priority
from autoglm_throttle.settings import ConfigError, RoutePolicy

_ATTRIBUTE = "__autoglm_throttle__"
_PARAMETER = re.compile(r"\{([^}:]*)(?::([^}]*))?\}")
_LAYERS_AT_MOST = 50

E = TypeVar("E", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Mark:
    """What an endpoint says about itself."""

    priority: Priority | None = None
    cost: float = 1.0
    exempt: bool = False


def mark(*, priority: Priority | str | None = None, cost: float = 1.0) -> Callable[[E], E]:
    """Give an endpoint a priority and a cost. A policy in the configuration wins over it.

    Args:
        priority: ``high``, ``mid``, ``low`` or a `Priority`; None leaves the default.
        cost: units a request takes, > 0.

    Raises:
        ConfigError: an argument is not allowed.
    """
    policy = RoutePolicy("/", priority=priority, cost=cost)

    def set_mark(endpoint: E) -> E:
        setattr(endpoint, _ATTRIBUTE, Mark(policy.priority, policy.cost))
        return endpoint

    return set_mark


def exempt(endpoint: E) -> E:
    """Free an endpoint from the throttle: its requests are counted, never charged or refused."""
    setattr(endpoint, _ATTRIBUTE, Mark(exempt=True))
    return endpoint


def visible(app: object) -> Iterator[RoutePolicy]:
    """The policies of all marked endpoints that can be seen from outside ``app``.

    Only public attributes are read: ``app`` down to ``routes``, and of each route its own ``routes``.
    """
    for _ in range(_LAYERS_AT_MOST):
        routes = getattr(app, "routes", None)
        if isinstance(routes, Iterable):
            yield from _marked(routes, "")
            return
        app = getattr(app, "app", None)


def learned(scope: Mapping[str, Any], root_path: str) -> RoutePolicy | None:
    """The policy of a marked endpoint that has just answered; None if it has no mark.

    Args:
        scope: as the router left it, with ``endpoint``, ``route`` and ``path_params``.
        root_path: what it was before the router; mounts change it.
    """
    found = getattr(scope.get("endpoint"), _ATTRIBUTE, None)
    route = scope.get("route")
    if not isinstance(found, Mark) or route is None:
        return None
    template = str(getattr(route, "path_format", None) or getattr(route, "path", ""))
    path = str(scope.get("path") or "").removeprefix(root_path)
    full = _prefixed(template, path, dict(scope.get("path_params") or {}))
    return _policy(full, getattr(route, "methods", None), found) if full else None


def _marked(routes: Iterable[Any], prefix: str, depth: int = 0) -> Iterator[RoutePolicy]:
    for route in routes:
        path = prefix + str(getattr(route, "path", ""))
        found = getattr(getattr(route, "endpoint", None), _ATTRIBUTE, None)
        if isinstance(found, Mark):
            policy = _policy(path, getattr(route, "methods", None), found)
            if policy is not None:
                yield policy
        inner = getattr(route, "routes", None)
        if isinstance(inner, Iterable) and depth < _LAYERS_AT_MOST:
            yield from _marked(inner, path, depth + 1)


def _policy(template: str, methods: Iterable[str] | None, found: Mark) -> RoutePolicy | None:
    """A mark as a policy; None where the template says more than a pattern can."""
    pattern = _PARAMETER.sub(lambda m: "*" if m[2] == "path" else "{" + m[1] + "}", template)
    try:
        return RoutePolicy(
            pattern or "/",
            methods=sorted(methods) if methods else None,
            priority=found.priority,
            cost=found.cost,
            exempt=found.exempt,
            name=f"mark {pattern}",
        )
    except ConfigError:
        return None


def _prefixed(template: str, path: str, parameters: dict[str, Any]) -> str:
    """The template behind the prefix of its mounts and includes, with parameters by name; empty if unsure.

    A concrete value must not stay in it: each tenant of ``/t/{tenant}`` would become a policy of its own.
    """
    concrete = _PARAMETER.sub(lambda m: str(parameters.pop(m[1], m[0])), template)
    if not path.endswith(concrete):
        return ""
    prefix = path[: len(path) - len(concrete)].split("/")
    for name, value in parameters.items():
        if str(value) not in prefix:
            return ""
        prefix[prefix.index(str(value))] = "{" + name + "}"
    return "/".join(prefix) + template
