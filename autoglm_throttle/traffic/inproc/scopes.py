"""ASGI scopes of a load's requests, as a server would build them; built once for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from starlette.types import Scope

from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.types import Priority

ASGI = {"version": "3.0", "spec_version": "2.3"}
"""As uvicorn states it: sending to a disconnected client is no error."""

MAX_CACHED = 10_000
"""Cached scopes to copy from, of about 2 kB each; a recording may have one kind per request."""

Headers = list[tuple[bytes, bytes]]


class Scopes:
    """Builds the scope of each planned request.

    Each client has its own address in 10.0.0.0/8, so that limits by address distinguish the users. Behind
    a real server all of them would come from the one machine of the generator.

    Args:
        load: the requests.
        priority_header: field with the priority; empty: none.
        identity_header: field with the client's identity text; empty: none.
        state: lifespan state of the application.
    """

    def __init__(
        self, load: RequestSource, priority_header: str, identity_header: str, state: Mapping[str, Any]
    ) -> None:
        self._load = load
        self._plan = load.plan
        self._priority_header = priority_header.lower().encode("ascii")
        self._identity_header = identity_header.lower().encode("ascii")
        self._state = state
        self._templates: dict[tuple[int, int, int], dict[str, Any]] = {}

    def scope(self, index: int) -> Scope:
        """Return the scope of a request, by its index."""
        plan = self._plan
        key = (plan.kinds[index], plan.priorities[index], plan.clients[index])
        template = self._templates.get(key)
        if template is None:
            template = self._make(*key)
            if len(self._templates) < MAX_CACHED:
                self._templates[key] = template
        # A copy with its own mutable parts, since applications may change them.
        scope = dict(template)
        scope["asgi"] = ASGI.copy()
        scope["headers"] = template["headers"].copy()
        scope["state"] = dict(self._state)
        return scope

    def _make(self, kind: int, priority: int, client: int) -> dict[str, Any]:
        request = self._load.requests[kind]
        raw_path, _, query = request.target.partition("?")
        return {
            "type": "http",
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote(raw_path),
            "raw_path": raw_path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": "",
            "headers": self._fields(kind, priority, client),
            "client": (_address(client), 50_000),
            "server": ("localhost", 80),
        }

    def _fields(self, kind: int, priority: int, client: int) -> Headers:
        request = self._load.requests[kind]
        fields: Headers = [(b"host", b"localhost")]
        fields += [(name.lower().encode("ascii"), text.encode("ascii")) for name, text in request.headers]
        if request.priority and self._priority_header:
            fields.append((self._priority_header, Priority(priority).label.encode("ascii")))
        if self._identity_header:
            fields.append(
                (self._identity_header, self._load.client(client).encode("ascii", "backslashreplace"))
            )
        if request.body or request.method not in ("GET", "HEAD"):
            fields.append((b"content-length", b"%d" % len(request.body)))
        return fields


def _address(client: int) -> str:
    number = (client + 1) & 0xFFFFFF
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
