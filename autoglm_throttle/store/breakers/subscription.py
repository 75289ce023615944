"""Known state of one shared breaker in one process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from inspect import ismethod

from autoglm_throttle.resilience.transitions import RemoteBreakerState
from autoglm_throttle.store.breakers.pending_writes import OpenMessage, OperatorCommand, Write
from autoglm_throttle.types import BreakerState

OPERATOR_STATES = (BreakerState.FORCED_OPEN, BreakerState.DISABLED)


class Subscription:
    """The newest state of a breaker, and its listener. The lock of its owner guards it.

    One thread delivers updates at a time, without the lock, and only the newest one: two threads receive
    updates, and a listener may be slow.

    Args:
        name: of the breaker.
        listener: receives the updates. A bound method is held weakly, so a registry that drops a breaker need
            not unsubscribe.
    """

    __slots__ = (
        "_has_update",
        "_listener_ref",
        "_received_s",
        "is_delivering",
        "is_read",
        "name",
        "own_version",
        "remote",
        "version",
    )

    def __init__(self, name: str, listener: Callable[[RemoteBreakerState], None]) -> None:
        self.name: str = name
        self._listener_ref = _weak_listener(listener)
        self.version: int = 0
        """Version of the newest state, including states written by this process."""
        self.own_version: int = 0
        """Version of the newest state written by this process."""
        self.is_read: bool = False
        """Whether the store has replied once, even if it knows nothing."""
        self.is_delivering: bool = False
        """Whether a thread is delivering updates."""
        self.remote: RemoteBreakerState | None = None
        self._received_s = 0.0
        self._has_update = False

    @property
    def listener(self) -> Callable[[RemoteBreakerState], None] | None:
        """Listener of the updates; None: its object no longer exists."""
        return self._listener_ref()

    def record(self, remote: RemoteBreakerState, now: float) -> bool:
        """Record a state that reaches the breaker by another way; return False if it is not newer."""
        if remote.version <= self.version:
            return False
        self.version, self.remote, self._received_s = remote.version, remote, now
        return True

    def receive(self, remote: RemoteBreakerState, now: float) -> bool:
        """Record a state; return True if the caller must deliver it."""
        if not self.record(remote, now):
            return False
        self._has_update = True
        # Another thread is delivering and will pick up this update.
        if self.is_delivering:
            return False
        self.is_delivering = True
        return True

    def next_update(self, now: float) -> RemoteBreakerState | None:
        """Return the next update to deliver; None: done, and the next receiver of an update delivers."""
        if not self._has_update:
            self.is_delivering = False
            return None
        self._has_update = False
        return self.latest(now)

    def latest(self, now: float) -> RemoteBreakerState | None:
        """Return the newest state with the rest of its open period."""
        if self.remote is None:
            return None
        return replace(self.remote, wait_s=max(0.0, self.remote.wait_s - (now - self._received_s)))

    def restore_write(self, now: float) -> Write | None:
        """Return the write that restores a state lost by the store; None: it need not be restored."""
        state = self.latest(now)
        if state is None:
            return None
        if state.state in OPERATOR_STATES:
            return OperatorCommand(self.name, state.state, self.version, is_restore=True)
        if state.state is BreakerState.OPEN and state.wait_s > 0.0:
            return OpenMessage(self.name, now + state.wait_s, state.rounds, state.cause, self.version)
        return None


class Subscriptions:
    """The subscribed breakers of a process, and those to be read. The lock of its owner guards it."""

    __slots__ = ("_by_name", "unread")

    def __init__(self) -> None:
        self._by_name: dict[str, Subscription] = {}
        self.unread: dict[str, None] = {}
        """Breakers with a state to read."""

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def names(self) -> list[str]:
        """The subscribed breakers in order of their subscription."""
        return list(self._by_name)

    def add(self, name: str, listener: Callable[[RemoteBreakerState], None]) -> None:
        """Subscribe a listener to a breaker, in place of an earlier one."""
        self._by_name[name] = Subscription(name, listener)
        self.unread[name] = None

    def get(self, name: str) -> Subscription | None:
        """Return the subscription of a breaker."""
        return self._by_name.get(name)

    def mark_all_unread(self) -> None:
        """Mark all breakers as unread; drop those with a collected listener."""
        self._by_name = {
            name: subscription
            for name, subscription in self._by_name.items()
            if subscription.listener is not None
        }
        self.unread = dict.fromkeys(self._by_name)


def _weak_listener(
    listener: Callable[[RemoteBreakerState], None],
) -> Callable[[], Callable[[RemoteBreakerState], None] | None]:
    if ismethod(listener):
        try:
            return weakref.WeakMethod(listener)
        except TypeError:  # its object does not support weak references
            pass
    return lambda: listener
