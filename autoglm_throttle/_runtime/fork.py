"""The only hook of the package that runs in a forked child.

A fork copies locks that threads of the parent hold, and no thread. So each `SerialLock` is opened first: the
cleanup of a request of the parent may take it in the child. Then each owner builds its parts anew, from the
same configuration. The parent's parts stay referenced: closing them would write to connections and drivers
that the parent still uses.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

from autoglm_throttle._runtime.serial_lock import open_locks

T = TypeVar("T")

_log = logging.getLogger("autoglm_throttle")

_REBUILDS: Final[weakref.WeakKeyDictionary[Any, Callable[[Any], object]]] = weakref.WeakKeyDictionary()

_PARENT_PARTS: Final[list[object]] = []


def rebuild_after_fork(owner: T, rebuild: Callable[[T], object]) -> None:
    """Register a function that builds the parts of an owner anew, called with it in each forked child.

    Owners, held weakly, are rebuilt in the order of registration, whatever fails for others. ``rebuild``
    must not wait for a lock or a thread of the parent, and must not hold the owner.
    """
    _REBUILDS[owner] = rebuild


def keep_parent_part(part: object) -> None:
    """Keep a part of the parent process referenced in this child until it ends."""
    _PARENT_PARTS.append(part)


def _after_fork_in_child() -> None:
    open_locks()
    for owner, rebuild in list(_REBUILDS.items()):
        try:
            rebuild(owner)
        except Exception:  # noqa: BLE001 - the other owners must still be rebuilt
            with contextlib.suppress(Exception):  # a log filter may raise, too
                _log.exception("%r cannot be used in this forked process", type(owner))


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
