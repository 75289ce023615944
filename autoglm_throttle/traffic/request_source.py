"""A load: a plan and the contents of its requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import LoadPlan

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VISIBLE = re.compile(r"[\x21-\x7e]+")
FIELD_VALUE = re.compile(r"[\t\x20-\x7e]*")


def check_fields(tokens: Iterable[str], fields: Sequence[tuple[str, str]]) -> None:
    """Raise TrafficError for a token or name of a field that is no HTTP token, or an impossible value."""
    for name in (*tokens, *(name for name, _ in fields)):
        if not TOKEN.fullmatch(name):
            raise TrafficError(f"{name!r} is not an HTTP token")
    for name, text in fields:
        if not FIELD_VALUE.fullmatch(text):
            raise TrafficError(f"the value of {name} must be printable ASCII")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One kind of request, independent of the target host.

    Raises:
        TrafficError: text that would not be one HTTP/1.1 request line or field.
    """

    method: str = "POST"
    target: str = "/v1/predict"  # path and query
    # Lower-case names; length, host, priority and identity are added on sending.
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    body: bytes = b"{}"
    # Whether the priority of the plan is sent; False for a recorded request that stated none.
    priority: bool = True
    cost: float = 1.0  # units of work, as the limiter under test counts them
    name: str = ""  # display name; empty: method and path

    def __post_init__(self) -> None:
        check_fields((self.method,), self.headers)
        if not VISIBLE.fullmatch(self.target):
            raise TrafficError(f"{self.target!r} must be printable ASCII without blanks")

    @property
    def label(self) -> str:
        """The name used in reports."""
        return self.name or f"{self.method} {self.target.partition('?')[0]}"


@dataclass(frozen=True, slots=True)
class RequestSource:
    """The requests of a load test and their plan."""

    plan: LoadPlan
    requests: Sequence[PlannedRequest] = (PlannedRequest(),)  # by `LoadPlan.kinds`
    # Identity text of each client of the plan; None: ``client-0``, ``client-1`` and so on.
    clients: Sequence[str] | None = None

    def client(self, number: int) -> str:
        """Return the identity text of a client."""
        return f"client-{number}" if self.clients is None else self.clients[number]
