"""Reads the setting ``IDENTITY``: the header that carries a key, or the function that names the caller."""

from __future__ import annotations

import importlib
import inspect
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
