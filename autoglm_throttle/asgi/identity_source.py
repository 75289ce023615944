"""Identity of callers: where it comes from, and whether a proxy hides it."""

from __future__ import annotations

import importlib
import inspect
import ipaddress
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from autoglm_throttle.settings import PREFIX, ConfigError, Problem

VARIABLE = PREFIX + "IDENTITY"

F = TypeVar("F", bound=Callable[..., Any])


def key_source(identity: str) -> tuple[bytes, str]:
    """Return the header that carries the key, and the scheme in front of it."""
    if identity == "bearer":
        return b"authorization", "bearer"
    kind, _, name = identity.partition(":")
    return (name.encode(), "") if kind == "header" else (b"", "")


def import_identify(identity: str) -> Callable[[Any], Any] | None:
    """Import the callable named by ``module:callable``; None for the built-in identities.

    Raises:
        ConfigError: it cannot be imported or called.
    """
    module, colon, name = identity.partition(":")
    if not colon or module == "header":
        return None
    try:
        identify = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError([Problem(VARIABLE, f"{identity} cannot be imported: {error}")]) from None
    if not callable(identify):
        raise ConfigError([Problem(VARIABLE, f"{identity} is not callable")])
    function: Callable[[Any], Any] = identify
    return require_synchronous(function, VARIABLE, identity)


def require_synchronous(identify: F, variable: str, name: str) -> F:
    """Return the function itself, unless it would have to be awaited.

    Raises:
        ConfigError: it is a coroutine function.
    """
    if inspect.iscoroutinefunction(identify):
        hint = "admission does not await; identify the caller from the scope alone"
        raise ConfigError([Problem(variable, f"{name} is a coroutine function", hint)])
    return identify


REQUESTS = 1000  # Number of requests inspected after the start; then the result is final

# Share of all requests from one private address above which it is more likely a proxy than a caller.
SHARE = 0.9

WARNING = (
    "nearly all requests come from one private address: the service is behind a proxy, "
    "and all users count as one; set AUTOGLM_THROTTLE_TRUSTED_PROXIES"
)


class ProxyDetector:
    """Counts the peers of the first requests, for a service that trusts no proxy."""

    def __init__(self) -> None:
        self._peers: Counter[str] = Counter()
        self._remaining = REQUESTS

    @property
    def is_complete(self) -> bool:
        """Whether enough requests have been inspected."""
        return self._remaining <= 0

    def observe(self, peer: str) -> bool:
        """Count one request. Return True, at most once, if the counts now indicate a proxy.

        Args:
            peer: the other end of the connection; empty for a UNIX socket.
        """
        if self._remaining <= 0:
            return False
        self._peers[peer] += 1
        self._remaining -= 1
        if self._remaining:
            return False
        peers, self._peers = self._peers, Counter()
        busiest = max(peers, key=peers.__getitem__)
        return peers[busiest] >= SHARE * REQUESTS and _is_private(busiest)


def _is_private(peer: str) -> bool:
    if not peer:
        return True
    try:
        return ipaddress.ip_address(peer).is_private
    except ValueError:
        return False
