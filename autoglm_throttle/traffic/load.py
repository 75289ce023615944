"""A load: a plan together with what its requests look like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoglm_throttle.traffic.arrivals import Plan
from autoglm_throttle.traffic.errors import TrafficError

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEXT = re.compile(r"[\x21-\x7e]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one kind of request looks like, whatever the host it goes to.

    Raises:
        TrafficError: text that would not be one HTTP/1.1 request line or field.
    """

    method: str = "POST"
    target: str = "/v1/predict"
    """Path and query."""
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    """Lower-case names; length, host, priority and identity are added when it is sent."""
    body: bytes = b"{}"
    priority: bool = True
    """Whether the priority of the plan is sent; False for a recorded request that stated none."""
    cost: float = 1.0
    """Units of work, as the limiter under test counts them."""
    name: str = ""
    """For people; empty: method and path."""

    def __post_init__(self) -> None:
        names = (self.method, *(name for name, _ in self.headers))
        for name in names:
            if not _TOKEN.fullmatch(name):
                raise TrafficError(f"{name!r} is not an HTTP token")
        if not _TEXT.fullmatch(self.target):
            raise TrafficError(f"{self.target!r} must be printable ASCII without blanks")
        for name, text in self.headers:
            if not _VALUE.fullmatch(text):
                raise TrafficError(f"the value of {name} must be printable ASCII")

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name or f"{self.method} {self.target.partition('?')[0]}"


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be sent."""

    plan: Plan
    requests: Sequence[Request] = (Request(),)
    """By ``Plan.kinds``."""
    clients: Sequence[str] | None = None
    """The text that stands for each client of the plan; None: ``client-0``, ``client-1`` and so on."""

    def client(self, number: int) -> str:
        """The text that stands for a client."""
        return f"client-{number}" if self.clients is None else self.clients[number]
