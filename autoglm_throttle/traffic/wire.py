"""The bytes of requests, built once: only priority, client and body differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.arrivals import Plan
from autoglm_throttle.traffic.errors import TrafficError

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
    method: str = "POST"
    path: str = "/v1/predict"
    priority_header: str = "x-priority"
    identity_header: str = "x-client"

    def __post_init__(self) -> None:
        for name in (self.method, self.priority_header, self.identity_header):
            if not _TOKEN.fullmatch(name):
                raise TrafficError(f"{name!r} is not an HTTP token")
        for text in (self.host, self.path):
            if not _TEXT.fullmatch(text):
                raise TrafficError(f"{text!r} must be printable ASCII without blanks")
        if not 1 <= self.port <= 65_535:
            raise TrafficError(f"port must be 1..65535, not {self.port}")

    def head(self, priority: Priority, client: int, body_bytes: int) -> bytes:
        """Request line and fields of one request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = (
            f"{self.method} {self.path} HTTP/1.1",
            f"host: {host}:{self.port}",
            f"{self.priority_header}: {priority.label}",
            f"{self.identity_header}: client-{client}",
            "content-type: application/json",
            f"content-length: {body_bytes}",
        )
        return "\r\n".join((*lines, "", "")).encode("ascii")


Encode = Callable[[int], bytes]
"""The bytes of a planned request, by its index."""


def encoder(plan: Plan, target: Target, bodies: Sequence[bytes] = (b"{}",)) -> Encode:
    """A function that gives the bytes of each planned request.

    Args:
        plan: says priority and client of each.
        target: says the rest.
        bodies: used in turn, so one body serves all and a body for each request is its own.
    """
    built: dict[tuple[int, int, int], bytes] = {}

    def encode(index: int) -> bytes:
        body = bodies[index % len(bodies)]
        key = (plan.priorities[index], plan.clients[index], len(body))
        head = built.get(key)
        if head is None:
            head = built[key] = target.head(Priority(key[0]), key[1], key[2])
        return head + body

    return encode
