"""Parses the URI of a storage of the ``limits`` package, without that package.

No text made here repeats any of the URI behind its scheme: it may hold a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from autoglm_throttle.settings.problems import nearest

EXAMPLE: Final = "async+memcached://HOST:PORT"

ASYNC: Final = "async+"
"""Prefix in `limits` of the schemes of storages that do not block the event loop."""

KNOWN: Final[Mapping[str, str | None]] = {
    "memory": None,
    "memcached": "async-memcached",
    "mongodb": "async-mongodb",
    "mongodb+srv": "async-mongodb",
}
"""Storages of `limits`, and the extra of that package with their client."""

MEMCACHED_WINDOW_S: Final = 15 * 86_400
"""`limits` stores a counter for two windows, and memcached reads more than 30 days as a date: one of 1970,
already past, so that nothing would be counted.
"""

_REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")


@dataclass(frozen=True, slots=True)
class StorageUri:
    """A storage of the `limits` package."""

    text: str = field(repr=False)
    """The URI as `limits` expects it."""
    kind: str
    """The scheme without ``async+``."""

    @property
    def extra(self) -> str | None:
        """The extra of `limits` with its client; None if it needs none, or is a user's own storage."""
        return KNOWN.get(self.kind)

    def check_window(self, window_s: int) -> None:
        """Reject a window that the storage cannot hold.

        Raises:
            ValueError: it is too long; the text names the maximum.
        """
        if self.kind == "memcached" and window_s > MEMCACHED_WINDOW_S:
            raise ValueError(f"memcached keeps windows of up to {MEMCACHED_WINDOW_S // 86_400} days")


def parse_storage_uri(text: str) -> StorageUri:
    """Parse the URI of an asynchronous storage.

    A scheme that `limits` does not know may be that of a user's own storage, and is accepted.

    Raises:
        ValueError: no URI, Redis or Valkey, a storage that would block, a scheme that looks mistyped,
            no host. The text names a correction.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme:
        raise ValueError(f"not a URI, for example {EXAMPLE}")
    kind = scheme.removeprefix(ASYNC)
    if kind.partition("+")[0] in _REDIS:
        raise ValueError(
            "Redis and Valkey have a setting of their own: write redis://HOST:PORT into REDIS_URL"
        )
    if kind == scheme:
        _reject_blocking(kind)
    if kind not in KNOWN:
        meant = nearest(kind, tuple(KNOWN))
        if meant is not None:
            raise ValueError(f"no such storage; did you mean {ASYNC}{meant}://")
    elif kind != "memory":
        _check_hosts(kind, rest)
    return StorageUri(text, kind)


def _reject_blocking(kind: str) -> None:
    meant = kind if kind in KNOWN else nearest(kind, tuple(KNOWN))
    if meant is None:
        raise ValueError(f"no such storage, for example {EXAMPLE}")
    raise ValueError(f"that storage would block the event loop: write {ASYNC}{meant}://")


def _check_hosts(kind: str, rest: str) -> None:
    """Check a list of hosts, each with its port where the client has no default port."""
    hosts = rest.partition("?")[0].partition("/")[0].rpartition("@")[2].split(",")
    for each in hosts:
        host, _, port = each.strip().rpartition(":") if ":" in each else (each.strip(), "", "")
        if not host or (port and not _is_port(port)):
            raise ValueError(f"a host is missing, or a port is not 1 to 65535: {ASYNC}{kind}://HOST:PORT")
        if kind == "memcached" and not port:
            raise ValueError(f"each host needs its port: {EXAMPLE},HOST:PORT")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 65535
