"""Access to the Python runtime: threads, forks, locks, wake-ups, weak callbacks, installed packages."""

from __future__ import annotations

import re
import shlex
import weakref
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

DISTRIBUTION: Final = "autoglm-throttle"


def backoff_s(nth: int) -> float:
    """Return the pause in seconds after the ``nth`` failure in a row: 1, 2, 4 ... 60."""
    return min(2.0 ** min(nth - 1, 6), 60.0)  # 2**6 > 60: keeps the power small


def weak_method(method: Callable[P, T]) -> Callable[P, T | None]:
    """Return a function that calls a bound method while its object lives, and afterwards returns None.

    A thread, a timer or a part that an object owns would otherwise keep it alive.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        target = reference()
        return None if target is None else target(*args, **kwargs)

    return call


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra's packages, such as ``pip install 'redis[hiredis]>=6.0'``.

    It is right for an installation from an index or a clone. Without one a sentence names the extra.
    """
    from importlib import metadata  # takes milliseconds and is rarely needed

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []
    of_extra = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    parts = (requirement.partition(";") for requirement in requirements)
    needed = [package.strip() for package, _, marker in parts if of_extra.search(marker)]
    return f"pip install {shlex.join(needed)}" if needed else f"install {DISTRIBUTION} with its extra {extra}"
