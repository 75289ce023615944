"""Finds the route policy of a request before any routing happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoglm_throttle.settings import RoutePolicy

MAX_CACHED_MATCHES = 4096
"""Number of paths with a cached policy. Clients choose concrete paths, so the cache needs a bound."""


MAX_CACHED_CHARS = 512
"""Characters of path and method together; longer ones are matched anew each time."""


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
        segments = [segment for segment in path.split("/") if segment]
        candidates = self._by_first.get(segments[0] if segments else "", self._by_first[_ANY])
        return next((route for route in candidates if route.matches(method, segments)), None)

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
        self.has_routes: bool = bool(self._routes)
        """Whether there is any policy."""


_ANY = "*"


def _first(route: RoutePolicy) -> str:
    first = route.segments[0] if route.segments else ""
    return _ANY if first.startswith(("{", "*")) else first


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path as received, without ``root_path`` in front."""
    path: str = scope.get("path") or "/"
    root: str = scope.get("root_path") or ""
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in {"/", ""}:
        return path[len(root) :] or "/"
    return path
