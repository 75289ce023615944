"""Callbacks that do not keep their receiver alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weak_method(method: Callable[P, T]) -> Callable[P, T | None]:
    """Return a function that calls a bound method while its object lives, and afterwards returns None.

    A thread, a timer or a part that an object owns would otherwise keep it alive.

    Args:
        method: a bound method.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        target = reference()
        return None if target is None else target(*args, **kwargs)

    return call
