"""The bytes of requests, built once: only priority, client and body differ."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.load import Load

_TEXT = re.compile(r"[\x21-\x7e]+")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go and what they look like.

    Raises:
        TrafficError: text that would not be one HTTP/1.1 request line or field.
    """

    host: str = "127.0.0.1"
    port: int
    priority_header: str = "x-priority"
    identity_header: str = "x-client"

    def __post_init__(self) -> None:
        for name in (self.priority_header, self.identity_header):
            if not _TOKEN.fullmatch(name):
                raise TrafficError(f"{name!r} is not an HTTP token")
        if not _TEXT.fullmatch(self.host):
            raise TrafficError(f"{self.host!r} must be printable ASCII without blanks")
        if not 1 <= self.port <= 65_535:
            raise TrafficError(f"port must be 1..65535, not {self.port}")

    def head(self, load: Load, kind: int, priority: Priority, client: int) -> bytes:
        """Request line and fields of one request."""
        request = load.requests[kind]
        host = f"[{self.host}]" if ":" in self.host else self.host
        fields = [("host", f"{host}:{self.port}"), *request.headers]
        if request.priority:
            fields.append((self.priority_header, priority.label))
        fields.append((self.identity_header, load.client(client)))
        if request.body or request.method not in ("GET", "HEAD"):
            fields.append(("content-length", str(len(request.body))))
        lines = (f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {text}" for name, text in fields))
        return "\r\n".join((*lines, "", "")).encode("ascii")


Encode = Callable[[int], bytes]
"""The bytes of a planned request, by its index."""


def encoder(load: Load, target: Target) -> Encode:
    """A function that gives the bytes of each planned request."""
    plan, requests = load.plan, load.requests
    heads: dict[tuple[int, int, int], bytes] = {}

    def encode(index: int) -> bytes:
        key = (plan.kinds[index], plan.priorities[index], plan.clients[index])
        head = heads.get(key)
        if head is None:
            head = heads[key] = target.head(load, key[0], Priority(key[1]), key[2])
        return head + requests[key[0]].body

    return encode
