"""Finds the route policy of a request before any routing happens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from autoglm_throttle.settings import RoutePolicy

# Clients choose concrete paths, so the caches need bounds.
MAX_CACHED_MATCHES: Final = 4096  # Paths with a cached policy
MAX_CACHED_PATHS: Final = 4096  # Paths of one method with a cached name
MAX_CACHED_CHARS: Final = (
    512  # Characters of path and method together; longer ones are matched anew each time
)

MAX_LITERAL_CHARS: Final = 19  # Characters of a segment that is no id; a UUID has 32 or 36

_READ_CHARS: Final = 256  # Characters of a path that are read: a client may send kilobytes of slashes

WITHOUT_BODY: Final = ("GET", "HEAD")
WEBSOCKET_METHOD: Final = "WEBSOCKET"
# Methods that classes are named after; a client may send any other text.
METHODS: Final = (*WITHOUT_BODY, "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", WEBSOCKET_METHOD)

_ANY: Final = "*"

# Paths that a router or an upstream server may read as another path: empty and dot segments, line feeds.
# ``..;`` is a dot segment to servers that remove path parameters.
_AMBIGUOUS: Final = re.compile(r"//|\n|/\.{1,2}(?:[/;]|$)")


class RouteTable:
    """Policies by path and method; the first match in listed order wins.

    Paths are matched without ``root_path``, with repeated and trailing slashes removed.
    Policies learned from marks come after the configured ones, so configuration wins.
    """

    def __init__(self, routes: Iterable[RoutePolicy] = ()) -> None:
        self._routes = list(routes)
        self._configured = len(self._routes)
        self._by_first: dict[str, list[RoutePolicy]] = {}
        self._cache: dict[tuple[str, str], RoutePolicy | None] = {}
        self._index()

    def learn(self, routes: Iterable[RoutePolicy]) -> None:
        """Put policies behind the configured ones, replacing those learned before."""
        self._routes[self._configured :] = routes
        self._index()

    def match(self, path: str, method: str) -> RoutePolicy | None:
        """Return the policy for a path, already without ``root_path``; None means the default policy."""
        key = (path, method)
        if key in self._cache:
            return self._cache[key]
        route = self._search(path, method)
        if len(path) + len(method) > MAX_CACHED_CHARS:
            return route
        if len(self._cache) >= MAX_CACHED_MATCHES:
            self._cache.clear()
        self._cache[key] = route
        return route

    def _search(self, path: str, method: str) -> RoutePolicy | None:
        # The patterns of routers end with "$", which matches before a last line feed as well.
        readings = [_segments(text) for text in dict.fromkeys((path.removesuffix("\n"), path))]
        first = readings[0][0] if readings[0] else ""
        candidates = self._by_first.get(first, self._by_first[_ANY])
        return next((r for r in candidates if any(r.matches(method, each) for each in readings)), None)

    def _index(self) -> None:
        """Index the policies that could match by first literal segment, in their order."""
        by_first: dict[str, list[RoutePolicy]] = {_ANY: [], "": []}
        by_first |= {_first(route): [] for route in self._routes}
        for route in self._routes:
            first = _first(route)
            for candidates in by_first.values() if first == _ANY else (by_first[first],):
                candidates.append(route)
        self._by_first = by_first
        self._cache.clear()
        self.has_routes: bool = bool(self._routes)  # Whether there is any policy


def _first(route: RoutePolicy) -> str:
    first = route.segments[0] if route.segments else ""
    return _ANY if first.startswith(("{", "*")) else first


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


def work_class_of(scope: Mapping[str, Any], cached: dict[str, dict[str, str]]) -> str:
    """Return the name of a request's work class; empty if the scope is malformed.

    Names are cached by method and path as sent, for the methods that ``cached`` begins with.
    """
    try:
        method = WEBSOCKET_METHOD if scope["type"] == "websocket" else scope["method"]
        sent: str = scope["path"]
        names = cached.get(method)
        name = None if names is None else names.get(sent)
        if name is None:
            name = _name("*" if names is None else method, path_of(scope))
            if names is not None and len(sent) <= MAX_CACHED_CHARS:
                if len(names) >= MAX_CACHED_PATHS:
                    names.clear()
                names[sent] = name
    except Exception:  # noqa: BLE001 - a scope may hold anything
        return ""
    return name


def _name(method: str, path: str) -> str:
    segments = _segments(path[:_READ_CHARS].removesuffix("\n"))
    return f"{method} /{'/'.join('*' if _is_id(segment) else segment for segment in segments[:2])}"


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def _is_id(segment: str) -> bool:
    return len(segment) > MAX_LITERAL_CHARS or segment.isdigit() or not segment.isprintable()
