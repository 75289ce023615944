"""Access to the live page: by a token, or without one from this machine alone."""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

COOKIE: Final = "autoglm_throttle_page"
SESSION_S: Final = 12 * 3600  # a working day; then the token is needed again

# A reverse proxy on this machine is a loopback peer for requests from everywhere.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_local(scope: Scope) -> bool:
    """Whether a request was made on this machine, by its peer, and its ``Host`` and forwarding fields.

    The name is checked because a browser sends requests of foreign pages, too, to a name that its owner has
    pointed at 127.0.0.1 (DNS rebinding).
    """
    headers, client = Headers(scope=scope), scope.get("client")
    name = headers.get("host", "")
    name = name if name.endswith("]") else name.rpartition(":")[0] or name
    if client is None or name.lower() not in _LOCAL_NAMES or any(field in headers for field in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:  # the name of a UNIX socket, or of a test client
        return False


class Access:
    """Checks the token of requests; ``now`` is Unix time.

    The cookie is not the token: it is a keyed hash of its own expiry.
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    @property
    def needs_token(self) -> bool:
        """Whether a token is set."""
        return self._token is not None

    def is_allowed(self, scope: Scope, cookie: str, now: float) -> bool:
        """Whether a request may read the page."""
        if self._token is None:
            return is_local(scope)
        scheme, _, sent = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.accepts(sent.strip()):
            return True
        expiry, _, _ = cookie.partition(".")
        return (
            expiry.isdecimal()
            and now < int(expiry[:12]) <= now + SESSION_S
            and hmac.compare_digest(self._signed(expiry), cookie.encode())
        )

    def accepts(self, sent: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return self._token is not None and hmac.compare_digest(
            self._token, sent.encode("utf-8", "surrogatepass")
        )

    def new_cookie(self, now: float) -> str:
        """Return the value of a cookie that is valid for `SESSION_S`."""
        return self._signed(str(int(now) + SESSION_S)).decode()

    def _signed(self, expiry: str) -> bytes:
        signature = hmac.digest(self._token or b"", f"live page until {expiry}".encode(), "sha256")
        return f"{expiry}.{signature.hex()}".encode()
