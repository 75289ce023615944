"""Sender thread: sends the queries and writes of this process to the store of a fleet's breakers."""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from autoglm_throttle.model import Outcome
from autoglm_throttle.resilience.shared.outbox import Finish, Opening, Verb, Write
from autoglm_throttle.resilience.shared.scripts import Scripts, explained, final
from autoglm_throttle.resilience.shared.wire import Reply, SharedRules, Wire, Words, reply, states

if TYPE_CHECKING:
    from autoglm_throttle.model import Clock
    from autoglm_throttle.resilience.shared.ledger import Ledger
    from autoglm_throttle.resilience.shared.question import Question
    from autoglm_throttle.resilience.store import Lease, Remote

THREAD: Final = "autoglm-throttle-breakers"

READ_S: Final = 5.0
DEAF_READ_S: Final = 1.0
"""Interval in seconds of reading all states, since a message may be lost; shorter without a subscription."""

RETRY_S: Final = 0.05
"""Pause after a single failure: one deadline, so that a third failure, which is a loss, follows soon."""

AT_ONCE: Final = 128
"""States per call: half a millisecond of server time."""


class Teller:
    """Processes the queries and writes of a `FleetState`.

    Args:
        fleet_state: queries and writes of the process.
        scripts: the connection; used on the thread only.
        rules: namespace of the fleet.
        is_listening: whether changes are received at once.
        on_recovery: called when the store is available again.
    """

    _thread: threading.Thread | None

    def __init__(
        self,
        ledger: Ledger,
        scripts: Scripts,
        rules: SharedRules,
        listening: Callable[[], bool],
        back: Callable[[], None],
    ) -> None:
        self.failures: int = 0
        """Calls without a reply."""
        self.last_error: str | None = None
        """Text of the newest failure; kept after a recovery."""
        self._ledger = ledger
        self._scripts = scripts
        self._rules = rules
        self._listening = listening
        self._back = back
        self._clock: Clock = ledger.clock
        self.reset_after_fork()

    @property
    def who(self) -> str:
        """Identifier of this process in messages."""
        return self._wire.who

    @property
    def running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread unless it runs. If the system has no thread left, the store is unavailable."""
        ledger = self._ledger
        with ledger.lock:
            # No new thread before the next probe is due: a process without threads must not retry per call.
            lost = not ledger.absence.up and self._clock() < ledger.absence.due_s
            if self._thread is not None or lost:
                return
            self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the call that starts the thread must not fail
                self._thread = None
                self._failed(error, last=True)

    def stop(self, join_s: float) -> None:
        """Wait for the end of the thread; the fleet state is closed already."""
        thread = self._thread
        self.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(join_s)

    def wake(self) -> None:
        """Wake the thread: there is work."""
        self._alarm.put(None)

    def reset_after_fork(self) -> None:
        """Reset in a forked child: thread and connection belong to the parent; use a new identifier."""
        self._scripts.reset_after_fork()
        self._alarm: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Queue of wake-ups: a finalizer may call its ``put`` in the middle of another one."""
        self._thread = None
        self._wire = Wire(self._rules, secrets.token_hex(8))
        self._asked = 0
        self._read_s = self._not_before_s = -math.inf

    def _run(self) -> None:
        try:
            while not self._ends():
                self._turn()
        finally:
            with self._ledger.lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _ends(self) -> bool:
        """Decide under the lock whether the thread ends, so that ``start`` never relies on a dying one."""
        ledger = self._ledger
        if not ledger.closed:
            return False
        self._farewell()
        with ledger.lock:
            if ledger.closed:
                self._thread = None
            return ledger.closed

    def _farewell(self) -> None:
        """Send the remaining writes, unless the store is unavailable."""
        with contextlib.suppress(Exception):  # an unsendable write is lost, and nothing else
            while self._ledger.absence.up and (write := self._ledger.next_write()) is not None:
                self._tell(write)
        self._scripts.close()

    def _turn(self) -> None:
        now = self._clock()
        pause_s = self._idle_s(now)
        if pause_s > 0.0:
            self._sleep(pause_s)
            return
        try:
            self._work(now)
        except Exception as error:  # noqa: BLE001 - any client error; it must not end the thread
            self._failed(error, last=final(error))

    def _idle_s(self, now: float) -> float:
        """Return the seconds without work."""
        absence = self._ledger.absence
        if not absence.up:
            return absence.due_s - now
        if now < self._not_before_s:
            return self._not_before_s - now
        return 0.0 if self._ledger.busy() else self._read_s - now

    def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._alarm.get(timeout=max(seconds, 0.001))
            while True:
                self._alarm.get_nowait()

    def _work(self, now: float) -> None:
        """Process one query, one write and one read, so that no kind starves another.

        While the store is unavailable the read is the probe.

        Raises:
            Exception: of the client.
        """
        ledger = self._ledger
        if ledger.absence.up:
            question = ledger.next_question()
            if question is not None:
                self._answer(question)
            write = ledger.next_write()
            if write is not None:
                self._tell(write)
        if now >= self._read_s or not ledger.absence.up:
            self._read_s = now + (READ_S if self._listening() else DEAF_READ_S)
            ledger.reread()
        if ledger.unread or not ledger.absence.up:
            self._read(list(ledger.unread)[: 1 if self._rules.cluster else AT_ONCE])

    def _answer(self, question: Question) -> None:
        """Request a probe lease, after all pending writes of that breaker."""
        answer: Lease | Remote | None = None
        try:
            while (write := self._ledger.next_write(question.name)) is not None:
                self._tell(write)
            if not question.over:
                answer = self._acquire(question)
        finally:
            self._ledger.reply(question, answer)

    def _acquire(self, question: Question) -> Lease | Remote | None:
        name, ask, ledger = question.name, question.ask, self._ledger
        assert ask is not None  # noqa: S101 - only those are queued
        self._asked += 1
        ticket, until_s = f"{self.who}:{self._asked}", self._clock() + ask.lease_s
        try:
            said = self._call(self._wire.acquire(name, ledger.position(name)[0], ask, ticket))
        except Exception:
            # The lease may have been granted although the reply was lost: return it.
            ledger.put(Finish(name, ticket, 0, Outcome.NEUTRAL, 0, 0.0, until_s))
            raise
        lease = said.lease()
        if lease is not None:
            ledger.granted(lease, ticket, until_s)
        # Not for an abandoned query: `resolve` publishes its state, which must still be new then.
        ledger.note(name, None if question.over and lease is None else said.remote)
        return lease if lease is not None else said.remote

    def _tell(self, write: Write) -> None:
        """Send one write; the resulting state is an update unless this process caused it."""
        try:
            said = self._call(self._words(write))
        except Exception:
            self._ledger.later(write.name)
            raise
        self._ledger.told(write, said.remote, ours=said.done and _ours(write))

    def _words(self, write: Write) -> Words:
        wire = self._wire
        match write:
            case Opening():
                known, left_s = max(write.known, self._ledger.own(write.name)), write.until_s - self._clock()
                return wire.open(write.name, known, left_s, write.rounds, write.cause)
            case Verb():
                return wire.operate(write.name, write.known, write.state, again=write.again)
            case Finish():
                return wire.finish(write)

    def _call(self, words: Words) -> Reply:
        said = reply(self._scripts(words))
        self._answered()
        return said

    def _read(self, names: list[str]) -> None:
        found = states(self._scripts(self._wire.read(names)), names)
        self._answered()
        for name, remote in found.items():
            self._ledger.read(name, remote)

    def _answered(self) -> None:
        if self._ledger.answered():
            self._not_before_s = -math.inf
            self._back()

    def _failed(self, error: Exception, *, last: bool) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self._scripts.close()
        self._not_before_s = self._clock() + RETRY_S
        self._ledger.failed(explained(error), final=last)


def _ours(write: Write) -> bool:
    """Whether the breaker knows the resulting state of an executed write."""
    if not isinstance(write, Finish):
        return write.settled
    if write.outcome is Outcome.SUCCESS:
        return write.need <= 1  # otherwise other processes may have recorded successes meanwhile
    return write.outcome is not Outcome.NEUTRAL
