"""A lock that the garbage collector may meet while its own thread holds it.

It runs at any allocation, and may close an abandoned coroutine, whose cleanup settles a permit under the same
lock. With a plain lock the thread would wait for itself; with a re-entrant one the cleanup would change state
that the region has read and not yet written. Here it is deferred until the thread has left the lock.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections import deque
from collections.abc import Callable
from threading import Lock, RLock
from types import TracebackType
from typing import Final

_log = logging.getLogger("autoglm_throttle")


class SerialLock:
    """Mutual exclusion of threads, with actions deferred until the lock is left.

    The request path calls `acquire` and `release`, which cost half as much as ``with lock:``, and afterwards
    `run_pending` if there is something in `pending`. Each call that a finalizer may make goes through `run`.
    The lock is re-entrant, so that a signal handler which uses it cannot hang its thread.
    """

    __slots__ = ("__weakref__", "_draining", "acquire", "is_held", "pending", "release")

    def __init__(self) -> None:
        self._open()
        # Actions that run, without the lock, when a thread has left it: wake-ups and deferred actions.
        self.pending: deque[Callable[[], object]] = deque()
        _LOCKS.add(self)

    def _open(self) -> None:
        lock = RLock()
        self._draining = Lock()  # Held by the thread that runs pending actions
        self.acquire: Callable[[], bool] = lock.acquire
        self.release: Callable[[], None] = lock.release
        # Private, but threading.Condition relies on it, too; counting owners here would cost a frame a call.
        # Return whether the calling thread holds the lock.
        self.is_held: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        if self.pending:
            self.run_pending()

    def run(self, action: Callable[[], object]) -> None:
        """Run an action under the lock: now, or when this thread has left the lock that it holds."""
        if self.is_held():
            self.pending.append(lambda: self.run(action))
            return
        with self:
            action()

    def run_pending(self) -> None:
        """Run the pending actions in order; does nothing while this thread still holds the lock.

        One thread runs them: nested loops of hundreds of actions would exhaust its stack. An exception is
        logged and lost, since it belongs to another request.
        """
        # Again after the release: an action that came while another thread was about to end its loop.
        while self.pending and not self.is_held() and self._draining.acquire(blocking=False):
            try:
                while self.pending:
                    self._run_one(self.pending.popleft())
            finally:
                self._draining.release()

    def _run_one(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - see run_pending
            with contextlib.suppress(Exception):  # a log filter may raise, too
                _log.exception("an action that had waited for a lock failed")


_LOCKS: Final[weakref.WeakSet[SerialLock]] = weakref.WeakSet()


def open_locks() -> None:
    """Open every living lock, in a forked child: a thread of the parent may have held it, and is not here."""
    for lock in list(_LOCKS):
        lock._open()  # noqa: SLF001 - of this module's class
