"""Destination of requests, and their bytes."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.request_source import VISIBLE, PlannedRequest, RequestSource, check_fields
from autoglm_throttle.types import Priority

_BASE = re.compile(r"(/[\x21-\x7e]*)?")
_PORTS = {"http": 80, "https": 443}
# Written by the sender; a recorded value would be wrong or break the framing.
FRAMING = frozenset(("host", "content-length", "transfer-encoding", "connection", "expect"))

_LENGTHS = frozenset(("content-length", "transfer-encoding"))

CACHE_BYTES = 64 << 20  # Total size of cached requests; further ones are encoded on each send

UNSUPPORTED_HINT = (
    "the generator supports only HTTP/1.1 over TCP or TLS; for anything else use k6 (https://k6.io)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Requirements on the certificate of a target."""

    verify: bool = True  # Whether the certificate must be valid
    ca_file: str | None = None  # PEM of the authorities to trust instead of the system's
    server_name: str | None = None  # The name that the certificate must carry; None: the host


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetUrl:
    """Destination of requests, with the fields of each; text that is no valid HTTP raises TrafficError."""

    host: str = "127.0.0.1"
    port: int
    scheme: str = "http"  # `http` or `https`
    base: str = ""  # Path prefix of each request; without a slash at its end
    priority_header: str = PRIORITY_HEADER
    identity_header: str | None = None  # Field with the identity text of the client; None: not sent
    cost_header: str | None = None  # Field with the cost of the request; None: not sent
    # Further fields, such as authorization; they replace generated and recorded fields of the same name.
    headers: tuple[tuple[str, str], ...] = ()
    tls: TlsOptions = TlsOptions()  # Only for https

    def __post_init__(self) -> None:
        if self.scheme not in _PORTS:
            raise TrafficError(f"{self.scheme!r} is not http or https: {UNSUPPORTED_HINT}")
        if not VISIBLE.fullmatch(self.host):
            raise TrafficError(f"{self.host!r} must be printable ASCII without blanks")
        if not 1 <= self.port <= 65_535:
            raise TrafficError(f"port must be 1..65535, not {self.port}")
        if not _BASE.fullmatch(self.base):
            raise TrafficError(f"{self.base!r} must be printable ASCII that begins with a slash")
        own_names = (self.priority_header, self.identity_header, self.cost_header)
        check_fields((name for name in own_names if name is not None), self.headers)
        for name, _ in self.headers:
            if name.lower() in _LENGTHS:
                raise TrafficError(f"{name} is set by the generator from the length of each body")

    @classmethod
    def parse(cls, url: str, **overrides: Any) -> TargetUrl:  # noqa: ANN401 - checked by the type itself
        """Read ``http://HOST[:PORT][/BASE]``, or the same with https; the overrides are fields of a target.

        Another scheme, user info, a query, a fragment, or no host raise TrafficError.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as problem:
            raise TrafficError(f"{url!r} is no URL: {problem}") from None
        if parts.scheme not in _PORTS:
            raise TrafficError(f"{url!r} must begin with http:// or https://: {UNSUPPORTED_HINT}")
        if "@" in parts.netloc:
            raise TrafficError(
                "a URL must not hold a user or a password: state them as an authorization header"
            )
        if parts.query or parts.fragment:
            raise TrafficError(
                f"{url!r} must end with its path: a query belongs to each request's own target"
            )
        if not parts.hostname:
            raise TrafficError(f"{url!r} names no host")
        fields: dict[str, Any] = {
            "scheme": parts.scheme,
            "host": parts.hostname,
            "port": _PORTS[parts.scheme] if port is None else port,
            "base": parts.path.rstrip("/"),
        }
        return cls(**(fields | overrides))

    @property
    def address(self) -> str:
        """Host and port, as written in the Host field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """Build the TLS context for https; None for http. A bad ``ca_file`` raises TrafficError."""
        if self.scheme == "http":
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls.ca_file)
        except OSError as problem:
            raise TrafficError(f"the authorities in {self.tls.ca_file} cannot be read: {problem}") from None
        if not self.tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def head(self, request: PlannedRequest, priority: Priority, client: str) -> bytes:
        """Build the request line and fields of one request."""
        stated = [(name.lower(), text) for name, text in self.headers]
        generated = {"host": self.address}
        if request.priority:
            generated[self.priority_header.lower()] = priority.label
        if self.identity_header is not None:
            generated[self.identity_header.lower()] = client
        if self.cost_header is not None:
            generated[self.cost_header.lower()] = f"{request.cost!r}".removesuffix(".0")
        for name, _ in stated:
            generated.pop(name, None)
        first = [("host", generated.pop("host"))] if "host" in generated else []
        added = [*stated, *generated.items()]
        if request.body or request.method not in ("GET", "HEAD"):
            added.append(("content-length", str(len(request.body))))
        replaced = FRAMING.union(name for name, _ in added)
        recorded = [(name, text) for name, text in request.headers if name not in replaced]
        fields = (f"{name}: {text}" for name, text in (*first, *recorded, *added))
        line = f"{request.method} {self.base}{request.target} HTTP/1.1"
        return "\r\n".join((line, *fields, "", "")).encode("ascii")


def encoder(load: RequestSource, target: TargetUrl) -> Callable[[int], bytes]:
    """Return a function that encodes each request of a load, by its index; most bytes are built only once."""
    kinds, priorities, clients = load.plan.kinds, load.plan.priorities, load.plan.clients
    ready: dict[tuple[int, int, int], bytes] = {}
    budget = CACHE_BYTES

    def encode(index: int) -> bytes:
        nonlocal budget
        key = kinds[index], priorities[index], clients[index]
        data = ready.get(key)
        if data is None:
            request = load.requests[key[0]]
            data = target.head(request, Priority(key[1]), load.client(key[2])) + request.body
            if budget > 0:
                budget -= len(data)
                ready[key] = data
        return data

    return encode
