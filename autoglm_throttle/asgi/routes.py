"""Finds the route policy of a request before any routing happens."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from autoglm_throttle.asgi.dialects import PROBLEM, dialect_of
from autoglm_throttle.settings import ErrorStyle, RoutePolicy
from autoglm_throttle.settings.route_policy import RouteTrie
from autoglm_throttle.types import SlotUse

# Clients choose concrete paths, so the caches need bounds.
MAX_CACHED_PATHS: Final = 8192  # Paths of one method with cached policies
MAX_CACHED_CHARS: Final = 256  # Of a path; longer ones are matched anew each time

MAX_LITERAL_CHARS: Final = 19  # Characters of a segment that is no id; a UUID has 32 or 36

_READ_CHARS: Final = 256  # Characters of a path that are read: a client may send kilobytes of slashes

# Transfer of a request: complete with its head; with a body; of a route that declares streams; a websocket
# that holds a slot; one that costs tokens, whose body is read.
PLAIN, BODY, STREAM, WEBSOCKET, TOKENS = range(5)
_TRANSFERS: Final = {SlotUse.REQUEST: BODY, SlotUse.STREAM: STREAM, SlotUse.NONE: PLAIN}

WITHOUT_BODY: Final = ("GET", "HEAD")
WEBSOCKET_METHOD: Final = "WEBSOCKET"
# Methods that classes are named after; a client may send any other text.
METHODS: Final = (*WITHOUT_BODY, "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", WEBSOCKET_METHOD)

# Paths that a router or an upstream server may read as another path: empty and dot segments, line feeds.
# ``..;`` is a dot segment to servers that remove path parameters.
_AMBIGUOUS: Final = re.compile(r"//|\n|/\.{1,2}(?:[/;]|$)")


@dataclass(slots=True, eq=False)
class PathPolicy:
    """What the method and the path of a request decide."""

    route: RoutePolicy | None
    work_class: str
    is_limited: bool  # False: it is exempt
    transfer: int  # `BODY` stands for a body if it has one
    may_have_body: bool  # Whether a body is usual: the method is not GET or HEAD
    root_path: str  # The prefix that was removed from the path
    route_key: object = None  # Equal for equal routes; another one once marks have been learned
    dialect: str = PROBLEM  # Format of its rejections


NO_REQUEST: Final = PathPolicy(None, "", False, PLAIN, False, "")  # Policy of a lifespan
MALFORMED: Final = PathPolicy(None, "", True, BODY, True, "")  # Policy of a scope that cannot be read


class RouteTable:
    """Policies by path and method; the first match in listed order wins.

    Paths are matched without ``root_path``, with repeated and trailing slashes removed.
    Policies learned from marks come after the configured ones, so configuration wins.
    Without any other policy, paths that begin with one of ``exempt_prefixes`` are exempt.
    """

    def __init__(
        self,
        routes: Iterable[RoutePolicy] = (),
        exempt_paths: Iterable[str] = (),
        errors: ErrorStyle = ErrorStyle.AUTO,
        exempt_prefixes: tuple[str, ...] = (),
        token_paths: Iterable[str] = (),
    ) -> None:
        self._token_paths = frozenset(token_paths)
        self._routes = list(routes)
        self._configured = len(self._routes)
        self._exempt_paths = frozenset(exempt_paths)
        self._errors = errors
        self._exempt_prefixes = exempt_prefixes
        self._generation = 0
        # Policies by method and path as sent; a full cache forgets its oldest path.
        # Those of OPTIONS depend on the fields of the request.
        cached = (method for method in METHODS if method != "OPTIONS")
        self.paths: dict[str, OrderedDict[str, PathPolicy]] = {method: OrderedDict() for method in cached}
        self._index()

    def learn(self, routes: Iterable[RoutePolicy]) -> None:
        """Put policies behind the configured ones, replacing those learned before."""
        self._routes[self._configured :] = routes
        self._index()

    def match(self, path: str, method: str) -> RoutePolicy | None:
        """Return the policy for a path, already without ``root_path``; None means the default policy."""
        # The patterns of routers end with "$", which matches before a last line feed as well.
        readings = (path, path[:-1]) if path.endswith("\n") else (path,)
        trie, routes = self._indexed
        positions = [trie.first(method, _segments(text)) for text in readings]
        first = min((each for each in positions if each is not None), default=None)
        return None if first is None else routes[first]

    def policy_of(self, scope: Mapping[str, Any]) -> PathPolicy:
        """Return what the path of a request decides, from `paths` if it is there."""
        kind = scope.get("type")
        if kind != "http" and kind != "websocket":  # noqa: PLR1714 - a set would hash what the server sent
            return NO_REQUEST
        try:
            method = WEBSOCKET_METHOD if kind == "websocket" else scope["method"]
            sent: str = scope["path"]
            root_path: str = scope.get("root_path") or ""
            known = self.paths.get(method)
            policy = None if known is None else known.get(sent)
            if policy is None or policy.root_path != root_path:
                policy = self._new_policy(scope, method, root_path)
                if known is not None and len(sent) <= MAX_CACHED_CHARS:
                    if sent not in known and len(known) >= MAX_CACHED_PATHS:
                        known.popitem(last=False)
                    known[sent] = policy
        except Exception:  # noqa: BLE001 - the limits must hold all the same
            return MALFORMED
        return policy

    def _new_policy(self, scope: Mapping[str, Any], method: str, root_path: str) -> PathPolicy:
        path = path_of(scope)
        route = self.match(path, scope.get("method") or "GET") if self.has_routes else None
        exempts = path.startswith(self._exempt_prefixes) if route is None else route.exempt
        exempt = path in self._exempt_paths or (exempts and not is_ambiguous(path))
        exempt = exempt or (method == "OPTIONS" and is_preflight(scope))
        name = _name(method if method in METHODS else "*", path) if route is None else route.name
        slot = SlotUse.REQUEST if route is None else route.slot
        key = None if route is None else (route.name, self._generation)
        dialect = dialect_of(path, self._errors if route is None else route.errors or self._errors)
        transfer = _TRANSFERS[slot]
        costs_tokens = path in self._token_paths or (route is not None and route.limits_tokens)
        if method == "POST" and costs_tokens and slot is not SlotUse.NONE:
            transfer = TOKENS
        return PathPolicy(
            route, name, not exempt, transfer, method not in WITHOUT_BODY, root_path, key, dialect
        )

    def _index(self) -> None:
        self._generation += 1
        for known in self.paths.values():
            known.clear()
        self.has_routes: bool = bool(self._routes)  # Whether there is any policy
        # Replaced together: a request in another thread may read them meanwhile.
        self._indexed: tuple[RouteTrie, tuple[RoutePolicy, ...]] = (
            RouteTrie(self._routes),
            tuple(self._routes),
        )


def is_preflight(scope: Mapping[str, Any]) -> bool:
    """Whether a request with OPTIONS is a CORS preflight, which browsers send without any key."""
    return {b"origin", b"access-control-request-method"} <= {name for name, _ in scope["headers"]}


def is_ambiguous(path: str) -> bool:
    """Whether the app may read the path as another one: then it must not inherit an exemption."""
    return _AMBIGUOUS.search(path) is not None


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path as received, without ``root_path`` in front."""
    path: str = scope.get("path") or "/"
    root: str = scope.get("root_path") or ""
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in {"/", ""}:
        return path[len(root) :] or "/"
    return path


def _name(method: str, path: str) -> str:
    segments = _segments(path[:_READ_CHARS].removesuffix("\n"))
    return f"{method} /{'/'.join('*' if _is_id(segment) else segment for segment in segments[:2])}"


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def _is_id(segment: str) -> bool:
    return len(segment) > MAX_LITERAL_CHARS or segment.isdigit() or not segment.isprintable()
