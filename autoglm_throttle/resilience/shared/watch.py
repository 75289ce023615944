"""Known state of one shared breaker in one process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from inspect import ismethod

from autoglm_throttle.model import State
from autoglm_throttle.resilience.shared.outbox import Opening, Verb, Write
from autoglm_throttle.resilience.store import Remote

OPERATORS = (State.FORCED_OPEN, State.DISABLED)


class Watch:
    """The newest state of a breaker, and its listener. The lock of its owner guards it.

    One thread delivers updates at a time, without the lock, and only the newest one: two threads receive
    updates, and a listener may be slow.

    Args:
        name: of the breaker.
        listener: receives the updates. A bound method is held weakly, so a registry that drops a breaker need
            not unsubscribe.
    """

    __slots__ = ("_changed", "_heard_s", "_news", "handing", "met", "name", "own", "remote", "version")

    def __init__(self, name: str, changed: Callable[[Remote], None]) -> None:
        self.name: str = name
        self._changed = _weakly(changed)
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset to an unknown state, as in a forked child: the parent's pending updates are lost."""
        self.version: int = 0
        """Version of the newest state, including states written by this process."""
        self.own: int = 0
        """Version of the newest state written by this process."""
        self.met: bool = False
        """Whether the store has replied once, even if it knows nothing."""
        self.handing: bool = False
        """Whether a thread is delivering updates."""
        self.remote: Remote | None = None
        self._heard_s = 0.0
        self._news = False

    @property
    def changed(self) -> Callable[[Remote], None] | None:
        """Listener of the updates; None: it was garbage-collected."""
        return self._changed()

    def note(self, remote: Remote, now: float) -> bool:
        """Record a state that reaches the breaker by another way; return False if it is not newer."""
        if remote.version <= self.version:
            return False
        self.version, self.remote, self._heard_s = remote.version, remote, now
        return True

    def hear(self, remote: Remote, now: float) -> bool:
        """Record a state; return True if the caller must deliver it."""
        if not self.note(remote, now):
            return False
        self._news = True
        # Another thread is delivering and will pick up this update.
        if self.handing:
            return False
        self.handing = True
        return True

    def news(self, now: float) -> Remote | None:
        """Return the next update to deliver; None: done, and the next receiver of an update delivers."""
        if not self._news:
            self.handing = False
            return None
        self._news = False
        return self.latest(now)

    def latest(self, now: float) -> Remote | None:
        """Return the newest state with the rest of its open period."""
        if self.remote is None:
            return None
        return replace(self.remote, wait_s=max(0.0, self.remote.wait_s - (now - self._heard_s)))

    def forgotten(self, now: float) -> Write | None:
        """Return the write that restores a state lost by the store; None: it need not be restored."""
        state = self.latest(now)
        if state is None:
            return None
        if state.state in OPERATORS:
            return Verb(self.name, state.state, self.version, again=True)
        if state.state is State.OPEN and state.wait_s > 0.0:
            return Opening(self.name, now + state.wait_s, state.rounds, state.cause, self.version)
        return None


def _weakly(changed: Callable[[Remote], None]) -> Callable[[], Callable[[Remote], None] | None]:
    if ismethod(changed):
        try:
            return weakref.WeakMethod(changed)
        except TypeError:  # its object does not support weak references
            pass
    return lambda: changed
