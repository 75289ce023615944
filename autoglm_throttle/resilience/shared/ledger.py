"""Shared state of a fleet's breakers in one process, under one lock.

Callers add queries and writes, the sender thread takes them out. Updates come from the sender and the
listener thread. The lock is held briefly; no callback runs under it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from autoglm_throttle.model import Outcome
from autoglm_throttle.resilience.shared.absence import Absence
from autoglm_throttle.resilience.shared.outbox import Finish, Outbox, Write
from autoglm_throttle.resilience.shared.question import Question
from autoglm_throttle.resilience.shared.watch import Watch
from autoglm_throttle.resilience.store import Ask, Lease, Remote

if TYPE_CHECKING:
    from autoglm_throttle.model import Clock

_log = logging.getLogger("autoglm_throttle")

LOG_EVERY_S: Final = 30.0
"""Minimum seconds between two pairs of log lines about loss and recovery."""


class Ledger:
    """Queries, pending writes, subscriptions, own probes, and the availability of the store.

    Args:
        wake: wakes the sender thread; called from any thread.
        clock: monotonic seconds.
    """

    def __init__(self, wake: Callable[[], None], clock: Clock = time.monotonic) -> None:
        self.callback_errors: int = 0
        """Exceptions of listeners."""
        self.watches: dict[str, Watch] = {}
        self.clock: Clock = clock
        self._wake = wake
        self._logged_s = -math.inf
        self._told_away = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: new locks, without the parent's queries and writes."""
        self.lock: threading.RLock = threading.RLock()
        """Re-entrant: a finalizer may settle a probe in the middle of another call."""
        self.closed: bool = False
        """Whether the thread must end."""
        self.absence: Absence = Absence()
        self.outbox: Outbox = Outbox()
        self.unread: dict[str, None] = dict.fromkeys(self.watches)
        """Breakers with a state to read."""
        self.tickets: dict[int, tuple[str, float]] = {}
        """Probes of this process: fence -> ticket, and the end of its lease."""
        self._questions: deque[Question] = deque()
        self._waiting: list[Question] = []
        """Queries for the first state of a breaker."""
        for watch in self.watches.values():
            watch.reset_after_fork()

    def __repr__(self) -> str:
        return f"Ledger({len(self.watches)} breakers, {self.absence!r}, {self.outbox!r})"

    @property
    def up(self) -> bool:
        """Whether the store is available."""
        return self.absence.up

    # Callers

    def watch(self, name: str, changed: Callable[[Remote], None]) -> None:
        """Register a listener for the states of a breaker."""
        with self.lock:
            self.watches[name] = Watch(name, changed)
            self.unread[name] = None
        self._wake()

    def ask(self, name: str, ask: Ask | None, ring: Callable[[], None]) -> Question:
        """Add a query; it is answered at once if there is nothing to wait for."""
        question = Question(name, ask, ring)
        with self.lock:
            watch = self.watches.get(name)
            if not self.up:
                question.give(None)
            elif ask is not None:
                self._questions.append(question)
            elif watch is None or watch.met:
                question.give(self._latest(name))
            else:
                self._waiting.append(question)
                self.unread[name] = None
        self._wake()
        return question

    def answer(self, question: Question, why: str) -> Lease | Remote | None:
        """Return the answer at the end of the wait; a missing answer counts as a failure of the store.

        Args:
            query: from `query`.
            reason: logged if the store becomes unavailable by it.
        """
        rings: list[Question] = []
        with self.lock:
            if not question.answered:
                question.over = True
                rings = self._failed(why, final=False)
        _ring(rings)
        return question.answer

    def abandon(self, question: Question) -> None:
        """Cancel a query: return the probe lease it was granted."""
        with self.lock:
            question.over = True
            if isinstance(question.answer, Lease):
                self._give_back(question.name, question.answer)

    def put(self, write: Write) -> None:
        """Add a write."""
        with self.lock:
            self.outbox.put(write)
        self._wake()

    def position(self, name: str) -> tuple[int, bool]:
        """Return the known version of a breaker's state, and whether the breaker has applied it."""
        with self.lock:
            watch = self.watches.get(name)
            return (0, True) if watch is None else (watch.version, not watch.handing)

    def own(self, name: str) -> int:
        """Return the newest version written by this process: its next write is based on it."""
        with self.lock:
            watch = self.watches.get(name)
            return 0 if watch is None else watch.own

    def ticket(self, lease: Lease) -> tuple[str, float]:
        """Remove and return the ticket of a finished probe and the end of its lease; empty: unknown here."""
        with self.lock:
            return self.tickets.pop(lease.fence, ("", 0.0))

    def close(self) -> None:
        """Answer all queries with None and end the thread."""
        with self.lock:
            self.closed = True
            rings = self._release()
        _ring(rings)

    # The sender thread

    def next_question(self) -> Question | None:
        """Return the oldest query, or None."""
        with self.lock:
            return self._questions.popleft() if self._questions else None

    def next_write(self, name: str | None = None) -> Write | None:
        """Return the next write of one breaker or of any."""
        with self.lock:
            return self.outbox.next(self.clock(), name)

    def busy(self) -> bool:
        """Whether there is work now."""
        with self.lock:
            return bool(self._questions or self.unread or len(self.outbox))

    def reply(self, question: Question, answer: Lease | Remote | None) -> None:
        """Answer a query; without a waiter a lease is returned and a state published."""
        with self.lock:
            taken = question.give(answer)
            if not taken and isinstance(answer, Lease):
                self._give_back(question.name, answer)
        if taken:
            question.ring()
        elif isinstance(answer, Remote):
            self.news(question.name, answer)

    def granted(self, lease: Lease, ticket: str, until_s: float) -> None:
        """Record the lease of a probe of this process."""
        with self.lock:
            now = self.clock()
            # Probes that never ended leave their tickets behind: drop the expired ones.
            for fence in [fence for fence, (_, ends_s) in self.tickets.items() if ends_s < now]:
                del self.tickets[fence]
            self.tickets[lease.fence] = (ticket, until_s)

    def told(self, write: Write, remote: Remote | None, *, ours: bool) -> None:
        """Record that a write was sent.

        Args:
            write: the write.
            remote: the resulting state.
            is_current: whether the breaker has that state already.
        """
        with self.lock:
            self.outbox.told(write)
            if ours:
                self._made(write.name, remote)
                return
        self.news(write.name, remote)

    def later(self, name: str) -> None:
        """Postpone the writes of a breaker after a failure."""
        with self.lock:
            self.outbox.later(name)

    def read(self, name: str, remote: Remote | None) -> None:
        """Record a state read from the store; restore a state that the store has lost."""
        self.news(name, remote)
        with self.lock:
            self.unread.pop(name, None)
            watch = self.watches.get(name)
            if watch is not None:
                watch.met = True
                # The store lost its key (restart, eviction): restore operator commands and open periods.
                again = watch.forgotten(self.clock()) if remote is None else None
                if again is not None and not self.outbox.holds(name):
                    self.outbox.put(again)
            met = [question for question in self._waiting if question.name == name]
            self._waiting = [question for question in self._waiting if question.name != name]
            rings = [question for question in met if question.give(self._latest(name))]
        _ring(rings)

    def reread(self) -> None:
        """Schedule a read of all subscribed breakers."""
        with self.lock:
            self.watches = {name: watch for name, watch in self.watches.items() if watch.changed is not None}
            self.unread = dict.fromkeys(self.watches)
        self._wake()

    # Updates

    def note(self, name: str, remote: Remote | None) -> None:
        """Record a state that the breaker has, or receives, by another way."""
        with self.lock:
            watch = self.watches.get(name)
            if watch is not None and remote is not None:
                watch.note(remote, self.clock())

    def news(self, name: str, remote: Remote | None) -> None:
        """Publish a newer state, unless a state write is pending: its reply decides."""
        with self.lock:
            watch = self.watches.get(name)
            # A state read meanwhile may be older than the pending local write; the reply to it decides.
            if watch is None or remote is None or self.outbox.holds(name):
                return
            if not watch.hear(remote, self.clock()):
                return
        # Deliver without the lock; updates that arrive meanwhile replace each other, the newest is next.
        while True:
            with self.lock:
                news = watch.news(self.clock())
            if news is None:
                return
            changed = watch.changed
            try:
                if changed is not None:
                    changed(news)
            except Exception:  # noqa: BLE001 - a listener must not end the thread
                self.callback_errors += 1
                _log.warning("the breaker %s could not take in what it was told", name, exc_info=True)

    # Loss and recovery

    def answered(self) -> bool:
        """Record a reply of the store; return True if it was unavailable before."""
        with self.lock:
            back = self.absence.answered()
            since_s = self.absence.since_s
        if back and self._told_away:
            _log.warning("the store of the breakers answers again after %.1f s", self.clock() - since_s)
        return back

    def failed(self, why: str, *, final: bool) -> None:
        """Record a failed call."""
        with self.lock:
            rings = self._failed(why, final=final)
        _ring(rings)

    def _failed(self, why: str, *, final: bool) -> list[Question]:
        now = self.clock()
        if not self.absence.failed(now, final=final):
            return []
        self._told_away = now - self._logged_s >= LOG_EVERY_S
        if self._told_away:
            self._logged_s = now
            _log.warning("the store of the breakers cannot be asked: each process goes by its own (%s)", why)
        return self._release()

    def _release(self) -> list[Question]:
        """Resolve all queries with None and return them; the caller wakes them."""
        waiting = [*self._questions, *self._waiting]
        self._questions.clear()
        self._waiting.clear()
        return [question for question in waiting if question.give(None)]

    def _give_back(self, name: str, lease: Lease) -> None:
        ticket, until_s = self.tickets.pop(lease.fence, ("", 0.0))
        if ticket:
            self.put(Finish(name, ticket, 0, Outcome.NEUTRAL, 0, 0.0, until_s))

    def _made(self, name: str, remote: Remote | None) -> None:
        watch = self.watches.get(name)
        if watch is not None and remote is not None:
            watch.note(remote, self.clock())
            watch.own = remote.version

    def _latest(self, name: str) -> Remote | None:
        watch = self.watches.get(name)
        return None if watch is None else watch.latest(self.clock())


def _ring(questions: Sequence[Question]) -> None:
    for question in questions:
        question.ring()
