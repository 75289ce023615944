"""Names the work class of a request: its method and the first two segments of its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from autoglm_throttle.asgi.routes import MAX_CACHED_CHARS, path_of

MAX_CACHED_PATHS: Final = 4096
"""Paths of one method with a cached name. Clients choose concrete paths, so the cache needs a bound."""

MAX_LITERAL_CHARS: Final = 19
"""Characters of a segment that is no id; a UUID has 32 or 36."""

WITHOUT_BODY: Final = ("GET", "HEAD")
METHODS: Final = (*WITHOUT_BODY, "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS")
"""Methods that classes are named after; a client may send any other text."""

WEBSOCKET_METHOD: Final = "WEBSOCKET"

_READ_CHARS: Final = 256
"""Characters of a path that are read: a client may send kilobytes of slashes."""


class WorkClassNames:
    """Names of work classes by method and path, cached. Never raises, even if the scope is malformed."""

    __slots__ = ("cached",)

    def __init__(self) -> None:
        self.cached: dict[str, dict[str, str]] = {method: {} for method in (*METHODS, WEBSOCKET_METHOD)}
        """Cached names by method and path as sent."""

    def find(self, scope: Mapping[str, Any]) -> str:
        """Return the name of a request's class."""
        try:
            method = WEBSOCKET_METHOD if scope["type"] == "websocket" else scope["method"]
            sent: str = scope["path"]
            cached = self.cached.get(method)
            name = None if cached is None else cached.get(sent)
            if name is None:
                name = _name("*" if cached is None else method, path_of(scope))
                if cached is not None and len(sent) <= MAX_CACHED_CHARS:
                    if len(cached) >= MAX_CACHED_PATHS:
                        cached.clear()
                    cached[sent] = name
        except Exception:  # noqa: BLE001 - a scope may hold anything
            return ""
        return name


def _name(method: str, path: str) -> str:
    segments = [segment for segment in path[:_READ_CHARS].split("/") if segment]
    return f"{method} /{'/'.join('*' if _is_id(segment) else segment for segment in segments[:2])}"


def _is_id(segment: str) -> bool:
    """Whether a segment names one object, or cannot be printed."""
    return len(segment) > MAX_LITERAL_CHARS or segment.isdigit() or not segment.isprintable()
