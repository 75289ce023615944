"""Queue of log events between the lock under which they arise and the log handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events.log_event import LogEvent
from autoglm_throttle.events.rejections import (
    RejectionSampler,
    rejection_event,
    rejections_summary,
    user_table_full,
)
from autoglm_throttle.types import Decision, Demand, decision_label


class EventQueue:
    """Collects log events under a lock and writes them after it: a log handler may be slow.

    Args:
        lock: the lock under which all methods but `write` are called.
        sampler: decides which rejections are logged.
        hash_caller: returns the keyed hash of a caller.
        max_users: size of the user table, for its event.
    """

    __slots__ = ("_hash_caller", "_lock", "_max_users", "_sampler", "_users_full_logged", "waiting")

    def __init__(
        self,
        lock: SerialLock,
        sampler: RejectionSampler,
        hash_caller: Callable[[str], str],
        max_users: int,
    ) -> None:
        self._lock = lock
        self._sampler = sampler
        self._hash_caller = hash_caller
        self._max_users = max_users
        self._users_full_logged = False
        self.waiting: list[LogEvent] = []

    def extend(self, events: Iterable[LogEvent]) -> None:
        """Queue events."""
        self.waiting.extend(events)

    def record_rejection(self, demand: Demand, decision: Decision, now: float) -> bool:
        """Count a rejection, and queue its event if it is one of the sample; return whether it is."""
        reason = decision.reason
        count = self._sampler.record(reason, now)
        if count:
            client = self._hash_caller(demand.user)
            self.waiting.append(rejection_event(demand, decision, decision_label(reason), count, client))
        return count > 0

    def record_full_user_table(self) -> None:
        """Queue the event, once, that the user table is full."""
        if not self._users_full_logged:
            self._users_full_logged = True
            self.waiting.append(user_table_full(self._max_users))

    def summarize(self, now: float) -> None:
        """Queue the events of rejections that were counted and not followed by a further one."""
        for reason, count in self._sampler.overdue(now):
            self.waiting.append(rejections_summary(reason, decision_label(reason), count))

    def write(self) -> None:
        """Write the queued events, without the lock."""
        while self.waiting:
            with self._lock:
                events, self.waiting = self.waiting, []
            for event in events:
                event.write()
