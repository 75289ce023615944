"""What the threads of one process know of the breakers of its fleet, under one lock.

Callers put questions and writes in, the thread that asks takes them out; news come from both threads that
speak with the store. The lock is held for moments, never while anything is called.
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
"""At most one pair of lines, away and back, in this time."""


class Ledger:
    """Questions, writes, news, trials under way, and whether the store can be asked.

    Args:
        wake: there is something to do for the thread that asks; from any thread.
        clock: monotonic seconds.
    """

    def __init__(self, wake: Callable[[], None], clock: Clock = time.monotonic) -> None:
        self.callback_errors: int = 0
        """Exceptions of those who were handed news."""
        self.watches: dict[str, Watch] = {}
        self.clock: Clock = clock
        self._wake = wake
        self._logged_s = -math.inf
        self._told_away = False
        self.forget()

    def forget(self) -> None:
        """In a forked process: new locks, and nothing of what the parent was about to do."""
        self.lock: threading.RLock = threading.RLock()
        """Re-entrant: a finalizer may settle a trial in the midst of another call."""
        self.closed: bool = False
        """Whether the thread is to end."""
        self.absence: Absence = Absence()
        self.outbox: Outbox = Outbox()
        self.unread: dict[str, None] = dict.fromkeys(self.watches)
        """Breakers whose state is to be read."""
        self.tickets: dict[int, tuple[str, float]] = {}
        """Of the trials that callers of this process make: fence -> ticket, and when its lease ends."""
        self._questions: deque[Question] = deque()
        self._waiting: list[Question] = []
        """For the first state of a breaker."""
        for watch in self.watches.values():
            watch.forget()

    def __repr__(self) -> str:
        return f"Ledger({len(self.watches)} breakers, {self.absence!r}, {self.outbox!r})"

    @property
    def up(self) -> bool:
        """Whether it is worth asking."""
        return self.absence.up

    # Callers

    def watch(self, name: str, changed: Callable[[Remote], None]) -> None:
        """Hand on what is heard of a breaker from now on."""
        with self.lock:
            self.watches[name] = Watch(name, changed)
            self.unread[name] = None
        self._wake()

    def ask(self, name: str, ask: Ask | None, ring: Callable[[], None]) -> Question:
        """Have something asked; it is answered already where there is nothing to wait for."""
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
        """The answer when the wait is over; none at all is a failure of the store.

        Args:
            question: which one.
            why: what to say if the store is lost by it.
        """
        rings: list[Question] = []
        with self.lock:
            if not question.answered:
                question.over = True
                rings = self._failed(why, final=False)
        _ring(rings)
        return question.answer

    def abandon(self, question: Question) -> None:
        """Who asked is cancelled: a trial that he was given, nobody makes."""
        with self.lock:
            question.over = True
            if isinstance(question.answer, Lease):
                self._give_back(question.name, question.answer)

    def put(self, write: Write) -> None:
        """Have something told."""
        with self.lock:
            self.outbox.put(write)
        self._wake()

    def position(self, name: str) -> tuple[int, bool]:
        """The version that this process knows of a breaker, and whether the breaker knows it as well."""
        with self.lock:
            watch = self.watches.get(name)
            return (0, True) if watch is None else (watch.version, not watch.handing)

    def own(self, name: str) -> int:
        """The newest version that this process has made itself: what it says next, it says knowing that."""
        with self.lock:
            watch = self.watches.get(name)
            return 0 if watch is None else watch.own

    def ticket(self, lease: Lease) -> tuple[str, float]:
        """The ticket of a trial that has ended, and when its lease ends; empty: none of this process."""
        with self.lock:
            return self.tickets.pop(lease.fence, ("", 0.0))

    def close(self) -> None:
        """Nobody is answered any more, and the thread ends."""
        with self.lock:
            self.closed = True
            rings = self._release()
        _ring(rings)

    # The thread that asks

    def next_question(self) -> Question | None:
        """The oldest."""
        with self.lock:
            return self._questions.popleft() if self._questions else None

    def next_write(self, name: str | None = None) -> Write | None:
        """What to tell next, of one breaker or of any."""
        with self.lock:
            return self.outbox.next(self.clock(), name)

    def busy(self) -> bool:
        """Whether there is anything to do now."""
        with self.lock:
            return bool(self._questions or self.unread or len(self.outbox))

    def reply(self, question: Question, answer: Lease | Remote | None) -> None:
        """Hand an answer over; a lease that nobody waits for any more goes back, a state becomes news."""
        with self.lock:
            taken = question.give(answer)
            if not taken and isinstance(answer, Lease):
                self._give_back(question.name, answer)
        if taken:
            question.ring()
        elif isinstance(answer, Remote):
            self.news(question.name, answer)

    def granted(self, lease: Lease, ticket: str, until_s: float) -> None:
        """A trial of this process begins."""
        with self.lock:
            now = self.clock()
            for fence in [fence for fence, (_, ends_s) in self.tickets.items() if ends_s < now]:
                del self.tickets[fence]
            self.tickets[lease.fence] = (ticket, until_s)

    def told(self, write: Write, remote: Remote | None, *, ours: bool) -> None:
        """A write has arrived.

        Args:
            write: which one.
            remote: the state since then.
            ours: whether the breaker knows it already.
        """
        with self.lock:
            self.outbox.told(write)
            if ours:
                self._made(write.name, remote)
                return
        self.news(write.name, remote)

    def later(self, name: str) -> None:
        """What is to be told of that breaker could not be."""
        with self.lock:
            self.outbox.later(name)

    def read(self, name: str, remote: Remote | None) -> None:
        """The store has said what it knows of a breaker; what it has forgotten it is told again."""
        self.news(name, remote)
        with self.lock:
            self.unread.pop(name, None)
            watch = self.watches.get(name)
            if watch is not None:
                watch.met = True
                again = watch.forgotten(self.clock()) if remote is None else None
                if again is not None and not self.outbox.holds(name):
                    self.outbox.put(again)
            met = [question for question in self._waiting if question.name == name]
            self._waiting = [question for question in self._waiting if question.name != name]
            rings = [question for question in met if question.give(self._latest(name))]
        _ring(rings)

    def reread(self) -> None:
        """Everything is to be read that somebody still wants to know."""
        with self.lock:
            self.watches = {name: watch for name, watch in self.watches.items() if watch.changed is not None}
            self.unread = dict.fromkeys(self.watches)
        self._wake()

    # News

    def note(self, name: str, remote: Remote | None) -> None:
        """Take a state that the breaker has, or gets, by another way."""
        with self.lock:
            watch = self.watches.get(name)
            if watch is not None and remote is not None:
                watch.note(remote, self.clock())

    def news(self, name: str, remote: Remote | None) -> None:
        """Hand on what is newer, unless this process has a state to tell: the answer to that decides."""
        with self.lock:
            watch = self.watches.get(name)
            if watch is None or remote is None or self.outbox.holds(name):
                return
            if not watch.hear(remote, self.clock()):
                return
        while True:
            with self.lock:
                news = watch.news(self.clock())
            if news is None:
                return
            changed = watch.changed
            try:
                if changed is not None:
                    changed(news)
            except Exception:  # noqa: BLE001 - whoever listens must not be able to end a thread
                self.callback_errors += 1
                _log.warning("the breaker %s could not take in what it was told", name, exc_info=True)

    # Loss and return

    def answered(self) -> bool:
        """The store has answered; True if it was lost before."""
        with self.lock:
            back = self.absence.answered()
            since_s = self.absence.since_s
        if back and self._told_away:
            _log.warning("the store of the breakers answers again after %.1f s", self.clock() - since_s)
        return back

    def failed(self, why: str, *, final: bool) -> None:
        """A call has failed."""
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
        """Answer all who wait with nothing; they are yet to be rung."""
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
