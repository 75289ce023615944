"""Marks on endpoints, and their discovery by the middleware.

A mark only sets an attribute: no wrapper, no extra argument, any decorator order.
Admission never depends on finding a route. A mark that is invisible before routing is learned from the
endpoint's first response, so it applies one request late. An exemption is withdrawn if its pattern also
matches an endpoint without a mark.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

from autoglm_throttle.asgi.routes import RouteTable
from autoglm_throttle.events import LOGGER
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.settings.route_policy import METHODS, PATTERN
from autoglm_throttle.types import Priority, PriorityName

ATTRIBUTE = "__autoglm_throttle__"
_PARAMETER = re.compile(r"\{([^}:]*)(?::([^}]*))?\}")
_LITERAL = re.compile(r"[^{}*?#%\s]+")
_MAX_LAYERS = 50

# Walks along the routes; an app that keeps adding routes must not cost requests a walk for ever.
MAX_WALKS = 64
MAX_LEARNED = 1000  # Policies learned from responses, for the same reason

E = TypeVar("E", bound=Callable[..., Any])


class MarkPolicy(RoutePolicy):
    """A policy from an endpoint's mark, not from the configuration. On the endpoint it has no pattern yet."""

    @cached_property
    def covered_methods(self) -> frozenset[str] | None:
        """The methods of the route itself: another endpoint may answer HEAD."""
        return self.methods

    def has_mark(self, mark: MarkPolicy) -> bool:
        """Whether the mark of both is the same."""
        return (self.priority, self.cost, self.exempt) == (mark.priority, mark.cost, mark.exempt)


# Validation by pydantic would build a schema at each start of an app without marks, too.
UNMARKED = MarkPolicy.model_construct()


def mark(*, priority: Priority | PriorityName | None = None, cost: float = 1.0) -> Callable[[E], E]:
    """Give an endpoint a priority and a cost. A policy in the configuration wins over it.

    Args:
        priority: ``high``, ``mid``, ``low`` or a `Priority`; None leaves the default.
        cost: units a request takes, > 0.

    Raises:
        ConfigError: an argument is not allowed.
    """
    policy = RoutePolicy("/", priority=priority, cost=cost)

    def set_mark(endpoint: E) -> E:
        setattr(endpoint, ATTRIBUTE, MarkPolicy.model_construct(priority=policy.priority, cost=policy.cost))
        return endpoint

    return set_mark


def exempt(endpoint: E) -> E:
    """Free an endpoint from the throttle: its requests are counted, never charged or rejected."""
    setattr(endpoint, ATTRIBUTE, MarkPolicy.model_construct(exempt=True))
    return endpoint


class Marks:
    """The known marks of one app, published in a route table behind the configured policies."""

    def __init__(self, app: object, table: RouteTable) -> None:
        self._app = app
        self._table = table
        self._visible: list[MarkPolicy] = []
        self._learned: list[MarkPolicy] = []
        self._withdrawn: set[str] = set()
        self._walks = 0
        self.has_marks: bool = False  # Whether any policy comes from a mark
        self._walk()

    def check(self, scope: Mapping[str, Any], path: str, root_path: str) -> None:
        """Compare the policy applied to a request with the mark of its endpoint, and learn from it.

        The scope is that after routing. Path and ``root_path`` are those before: mounts change them.
        """
        endpoint, route = scope.get("endpoint"), scope.get("route")
        method = scope.get("method") or "GET"
        methods = getattr(route, "methods", None)
        if endpoint is None or (methods and method not in methods):
            return
        mark = _mark_of(endpoint) or UNMARKED
        if self._agrees(path, method, mark):
            return
        self._walk()
        if self._agrees(path, method, mark):
            return
        if mark is not UNMARKED:
            for policy in _learned_policy(scope, mark, root_path):
                if policy not in self._learned and len(self._learned) < MAX_LEARNED:
                    self._learned.insert(0, policy)
                    self._publish()
        self._withdraw(path, method, mark)

    def _agrees(self, path: str, method: str, mark: MarkPolicy) -> bool:
        policy = self._table.match(path, method)
        if policy is None:
            return mark is UNMARKED
        return not isinstance(policy, MarkPolicy) or policy.has_mark(mark)

    def _withdraw(self, path: str, method: str, mark: MarkPolicy) -> None:
        policy = self._table.match(path, method)
        if mark.exempt or not isinstance(policy, MarkPolicy) or not policy.exempt:
            return
        text = "the pattern of the exempt endpoint at %s matches other endpoints too; its mark is ignored"
        LOGGER.warning(text, policy.name)
        self._withdrawn.add(policy.name)
        self._publish()

    def _walk(self) -> None:
        if self._walks < MAX_WALKS:
            self._walks += 1
            self._visible = list(visible_routes(self._app))
            self._publish()

    def _publish(self) -> None:
        policies = [*self._learned, *self._visible]
        policies = [known for known in policies if not (known.exempt and known.name in self._withdrawn)]
        self.has_marks = not all(known.has_mark(UNMARKED) for known in policies)
        self._table.learn(policies if self.has_marks else ())


def visible_routes(app: object) -> Iterator[MarkPolicy]:
    """Yield the policies of all endpoints reachable from ``app``, in the order of routing.

    Endpoints without a mark are included, since they shadow the marks behind them.
    Only public attributes are read: ``app`` down to ``routes``, and of each route its own ``routes``.
    """
    for _ in range(_MAX_LAYERS):
        mark = _mark_of(app)
        routes = getattr(app, "routes", None)
        if mark is not None:
            yield from _policy("/{rest:path}", None, mark)
            return
        if isinstance(routes, Iterable):
            yield from _route_policies(routes, "")
            return
        app = getattr(app, "app", None)


def _learned_policy(scope: Mapping[str, Any], mark: MarkPolicy, root_path: str) -> Iterator[MarkPolicy]:
    """Yield the policy of a marked endpoint that has just answered; none if its template is not certain."""
    route = scope.get("route")
    template = str(getattr(route, "path_format", None) or getattr(route, "path", ""))
    path = str(scope.get("path") or "").removeprefix(root_path)
    full = _prefixed(template, path, dict(scope.get("path_params") or {}))
    if full:
        yield from _policy(full, getattr(route, "methods", None), mark)


def _route_policies(routes: Iterable[Any], prefix: str, depth: int = 0) -> Iterator[MarkPolicy]:
    # Included routers are exposed through a function since FastAPI 0.137.
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    for route in routes if contexts is None else contexts(routes):
        path = getattr(route, "path", None)
        if not isinstance(path, str) or depth >= _MAX_LAYERS:
            continue
        path = prefix + path
        inner = getattr(route, "routes", None)
        endpoint = getattr(route, "endpoint", None)
        if endpoint is not None:
            yield from _policy(path, getattr(route, "methods", None), _mark_of(endpoint))
        elif isinstance(inner, Iterable) and inner:
            yield from _route_policies(inner, path, depth + 1)
            yield from _policy(f"{path}/{{rest:path}}", None, None)
        else:
            yield from _policy(f"{path}/{{rest:path}}", None, _mark_of(getattr(route, "app", None)))


def _mark_of(endpoint: object) -> MarkPolicy | None:
    mark = getattr(endpoint, ATTRIBUTE, None)
    return mark if isinstance(mark, MarkPolicy) else None


def _policy(template: str, methods: Iterable[str] | None, mark: MarkPolicy | None) -> Iterator[MarkPolicy]:
    """Yield the mark as a policy; nothing if even a wider pattern cannot express it."""
    mark = mark or UNMARKED
    try:
        pattern = PATTERN.parse(_pattern(template))
        allowed = METHODS.parse(sorted(methods)) if methods else None
    except ValueError:
        text = "no pattern can represent the route %s; the patterns of other routes apply to it"
        LOGGER.warning(text, template)
        return
    name = f"{','.join(sorted(allowed or ()))} {pattern}".strip()
    name = name if mark is UNMARKED else f"mark {name}"
    yield mark.model_copy(update={"pattern": pattern, "methods": allowed, "name": name})


def _pattern(template: str) -> str:
    """Convert the template to a pattern. Parts that a pattern cannot express become wider, never narrower."""
    segments: list[str] = []
    for segment in template.split("/"):
        parameter = _PARAMETER.search(segment)
        if parameter and parameter[2] == "path":
            segments.append("*")
            break
        if segment:
            literal = _LITERAL.fullmatch(segment) and segment.isprintable()
            segments.append(segment if literal else f"{{part{len(segments)}}}")
    return "/" + "/".join(segments)


def _prefixed(template: str, path: str, parameters: dict[str, Any]) -> str:
    """Prefix the template with its mounts and includes, with parameters by name; empty if unsure.

    A concrete value must not stay in it: each tenant of ``/t/{tenant}`` would become a policy of its own.
    """
    concrete = _PARAMETER.sub(lambda m: str(parameters.pop(m[1], m[0])), template)
    if not path.endswith(concrete):
        return ""
    prefix = path[: len(path) - len(concrete)].split("/")
    for name, value in parameters.items():
        if prefix.count(str(value)) != 1:
            return ""
        prefix[prefix.index(str(value))] = "{" + name + "}"
    return "/".join(prefix) + template
