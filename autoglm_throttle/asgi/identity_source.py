"""Identity of callers: where it comes from, and whether a proxy hides it."""

from __future__ import annotations

import importlib
import inspect
import ipaddress
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from autoglm_throttle.settings import PREFIX, ConfigError, Problem

VARIABLE = PREFIX + "IDENTITY"

REQUESTS = 1000  # Number of requests inspected after the start; then the result is final
# Fields that proxies add. Without any of them one address may as well be one client, as on localhost.
FORWARDING = frozenset((b"x-forwarded-for", b"forwarded", b"x-real-ip", b"via"))
# Share of all requests from one private address above which it is more likely a proxy than a caller.
SHARE = 0.9

WARNING = (
    "nearly all requests come from one private address: the service is behind a proxy, "
    "and all users count as one; set AUTOGLM_THROTTLE_TRUSTED_PROXIES"
)

Function = Callable[[Any], Any]


def key_source(identity: str) -> tuple[bytes, str]:
    """Return the header that carries the key, and the scheme in front of it."""
    if identity == "bearer":
        return b"authorization", "bearer"
    kind, _, name = identity.partition(":")
    return (name.encode(), "") if kind == "header" else (b"", "")


def import_identify(identity: str) -> Function | None:
    """Import the callable named by ``module:callable``; None for the built-in identities."""
    module, colon, name = identity.partition(":")
    if not colon or module == "header":
        return None
    try:
        identify = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError([Problem(VARIABLE, f"{identity} cannot be imported: {error}")]) from None
    if not callable(identify):
        raise ConfigError([Problem(VARIABLE, f"{identity} is not callable")])
    return require_synchronous(identify, VARIABLE, identity)


def require_synchronous(identify: Function, variable: str, name: str) -> Function:
    """Return the function itself, unless it would have to be awaited."""
    if inspect.iscoroutinefunction(identify):
        hint = "admission does not await; identify the caller from the scope alone"
        raise ConfigError([Problem(variable, f"{name} is a coroutine function", hint)])
    return identify


def is_behind_proxy(peers: Counter[str]) -> bool:
    """Whether the peers of the first requests indicate a proxy. The peer of a UNIX socket is empty."""
    busiest = max(peers, key=peers.__getitem__)
    return peers[busiest] >= SHARE * REQUESTS and _is_private(busiest)


def _is_private(peer: str) -> bool:
    try:
        return not peer or ipaddress.ip_address(peer).is_private
    except ValueError:
        return False
