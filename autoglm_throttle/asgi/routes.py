"""Finds the route policy of a request before any routing happens."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.settings.route_policy import RouteTrie

# Clients choose concrete paths, so the caches need bounds.
MAX_CACHED_MATCHES: Final = 8192  # Paths with a cached policy
MAX_CACHED_PATHS: Final = 8192  # Paths of one method with a cached name
MAX_CACHED_CHARS: Final = 256  # Of path and method together; longer ones are matched anew each time

MAX_LITERAL_CHARS: Final = 19  # Characters of a segment that is no id; a UUID has 32 or 36

_READ_CHARS: Final = 256  # Characters of a path that are read: a client may send kilobytes of slashes

WITHOUT_BODY: Final = ("GET", "HEAD")
WEBSOCKET_METHOD: Final = "WEBSOCKET"
# Methods that classes are named after; a client may send any other text.
METHODS: Final = (*WITHOUT_BODY, "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", WEBSOCKET_METHOD)

# Paths that a router or an upstream server may read as another path: empty and dot segments, line feeds.
# ``..;`` is a dot segment to servers that remove path parameters.
_AMBIGUOUS: Final = re.compile(r"//|\n|/\.{1,2}(?:[/;]|$)")

_Search = Callable[[str, str], RoutePolicy | None]


class RouteTable:
    """Policies by path and method; the first match in listed order wins.

    Paths are matched without ``root_path``, with repeated and trailing slashes removed.
    Policies learned from marks come after the configured ones, so configuration wins.
    """

    def __init__(self, routes: Iterable[RoutePolicy] = ()) -> None:
        self._routes = list(routes)
        self._configured = len(self._routes)
        self._index()

    def learn(self, routes: Iterable[RoutePolicy]) -> None:
        """Put policies behind the configured ones, replacing those learned before."""
        self._routes[self._configured :] = routes
        self._index()

    def match(self, path: str, method: str) -> RoutePolicy | None:
        """Return the policy for a path, already without ``root_path``; None means the default policy."""
        search = self._cached if len(path) + len(method) <= MAX_CACHED_CHARS else self._search
        return search(path, method)

    def _index(self) -> None:
        self.has_routes: bool = bool(self._routes)  # Whether there is any policy
        self._search: _Search = _search_in(list(self._routes))
        self._cached: _Search = lru_cache(MAX_CACHED_MATCHES)(self._search)


def _search_in(routes: Sequence[RoutePolicy]) -> _Search:
    trie = RouteTrie(routes)

    def search(path: str, method: str) -> RoutePolicy | None:
        # The patterns of routers end with "$", which matches before a last line feed as well.
        readings = (path, path[:-1]) if path.endswith("\n") else (path,)
        positions = [trie.first(method, _segments(text)) for text in readings]
        first = min((each for each in positions if each is not None), default=None)
        return None if first is None else routes[first]

    return search


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


def work_class_of(scope: Mapping[str, Any], cached: Mapping[str, OrderedDict[str, str]]) -> str:
    """Return the name of a request's work class; empty if the scope is malformed.

    Names are cached by method and path as sent, for the methods that ``cached`` begins with. A full cache
    forgets its oldest path.
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
                    names.popitem(last=False)
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
