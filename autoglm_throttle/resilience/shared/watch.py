"""What one process has heard of one breaker of its fleet."""

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
    """The newest state of a breaker, and who wants to know it. Its owner's lock guards it.

    News are handed over by one at a time, without the lock, the newest alone: two threads hear of them, and
    whoever hears takes whatever time he likes.

    Args:
        name: of the breaker.
        changed: is handed the news. A method is not what keeps its object alive: a registry that drops a
            breaker need not say so here.
    """

    __slots__ = ("_changed", "_heard_s", "_news", "handing", "met", "name", "own", "remote", "version")

    def __init__(self, name: str, changed: Callable[[Remote], None]) -> None:
        self.name: str = name
        self._changed = _weakly(changed)
        self.forget()

    def forget(self) -> None:
        """Know nothing, as in a forked process: what the parent's threads were about to hand over is lost."""
        self.version: int = 0
        """Of the newest state; also of one that this process has made itself."""
        self.own: int = 0
        """Of the newest that this process has made itself."""
        self.met: bool = False
        """Whether the store has answered yet, be it that it knows nothing."""
        self.handing: bool = False
        """Whether somebody hands news over."""
        self.remote: Remote | None = None
        self._heard_s = 0.0
        self._news = False

    @property
    def changed(self) -> Callable[[Remote], None] | None:
        """Who is handed the news; None: there is nobody any more."""
        return self._changed()

    def note(self, remote: Remote, now: float) -> bool:
        """Take a state that the breaker has, or gets, by another way; False if it is not newer."""
        if remote.version <= self.version:
            return False
        self.version, self.remote, self._heard_s = remote.version, remote, now
        return True

    def hear(self, remote: Remote, now: float) -> bool:
        """Take a state; True if it is news that the caller has to hand over."""
        if not self.note(remote, now):
            return False
        self._news = True
        if self.handing:
            return False
        self.handing = True
        return True

    def news(self, now: float) -> Remote | None:
        """What to hand over next; None: all is said, and the next who hears something says that."""
        if not self._news:
            self.handing = False
            return None
        self._news = False
        return self.latest(now)

    def latest(self, now: float) -> Remote | None:
        """The newest state with what is left of its open period."""
        if self.remote is None:
            return None
        return replace(self.remote, wait_s=max(0.0, self.remote.wait_s - (now - self._heard_s)))

    def forgotten(self, now: float) -> Write | None:
        """The store knows nothing of it any more: what to tell it again; None: nothing that matters."""
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
        except TypeError:  # its object cannot be held so
            pass
    return lambda: changed
