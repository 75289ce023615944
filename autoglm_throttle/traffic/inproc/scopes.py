"""The ASGI scopes of a load's requests: as a server would write them, built once for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from starlette.types import Scope

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.load import Load

ASGI = {"version": "3.0", "spec_version": "2.3"}
"""As uvicorn states it: sending to a client that left is no error."""

Headers = list[tuple[bytes, bytes]]


class Scopes:
    """Makes the scope of each planned request.

    Each client has an address of its own in 10.0.0.0/8, so that limits by address see the users; behind
    a real server all of them would come from the one machine that makes the load.

    Args:
        load: the requests.
        priority_header: carries the priority; empty: none.
        identity_header: carries the client's text; empty: none.
        state: what the application keeps for its requests.
    """

    def __init__(
        self, load: Load, priority_header: str, identity_header: str, state: Mapping[str, Any]
    ) -> None:
        self._load = load
        self._plan = load.plan
        self._priority_header = priority_header.lower().encode("ascii")
        self._identity_header = identity_header.lower().encode("ascii")
        self._state = state
        self._targets = [_target(request.target) for request in load.requests]
        self._headers: dict[tuple[int, int, int], Headers] = {}

    def scope(self, index: int) -> Scope:
        """The scope of a request, by its index."""
        plan = self._plan
        kind, client = plan.kinds[index], plan.clients[index]
        path, raw_path, query = self._targets[kind]
        key = (kind, plan.priorities[index], client)
        headers = self._headers.get(key)
        if headers is None:
            headers = self._headers[key] = self._fields(*key)
        return {
            "type": "http",
            "asgi": ASGI.copy(),
            "http_version": "1.1",
            "method": self._load.requests[kind].method,
            "scheme": "http",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers.copy(),
            "client": (_address(client), 50_000),
            "server": ("localhost", 80),
            "state": dict(self._state),
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


def _target(target: str) -> tuple[str, bytes, bytes]:
    raw_path, _, query = target.partition("?")
    return unquote(raw_path), raw_path.encode("ascii"), query.encode("ascii")


def _address(client: int) -> str:
    number = (client + 1) & 0xFFFFFF
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
