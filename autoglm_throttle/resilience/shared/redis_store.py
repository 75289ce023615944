"""Breakers shared by all processes of a service, in a Redis.

Two daemon threads have a connection each: the sender runs the script and sends local changes, the listener
receives the changes of other processes. A caller waits for the sender only for a probe lease or for the first
state of a breaker, and never longer than the deadline. A closed breaker sends nothing.

If the store is unavailable, each breaker continues alone with its current state.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

from autoglm_throttle.model import Cause, Outcome, State
from autoglm_throttle.resilience.shared.ledger import Ledger
from autoglm_throttle.resilience.shared.outbox import Finish, Opening, Verb
from autoglm_throttle.resilience.shared.push import Push
from autoglm_throttle.resilience.shared.question import Bell, Question
from autoglm_throttle.resilience.shared.scripts import Scripts, SyncClient
from autoglm_throttle.resilience.shared.teller import Teller
from autoglm_throttle.resilience.shared.wire import SharedRules, message
from autoglm_throttle.resilience.store import Ask, Lease, Remote

if TYPE_CHECKING:
    from autoglm_throttle.model import Clock

TIMEOUT_S: Final = 0.25
"""Seconds for a client's connections and replies. No caller waits for it; it frees the thread."""


class RedisBreakerStore:
    """Implements `BreakerStore`.

    Args:
        connect: creates a synchronous client without retries, with timeouts of `TIMEOUT_S`. It is called on
            the threads, once for each connection.
        new_wakeup: creates a wake-up for the current task.
        rules: namespace of the fleet.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        doorbell: Callable[[], Bell],
        rules: SharedRules | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.rules: SharedRules = rules if rules is not None else SharedRules()
        self.ignored: int = 0
        """Messages of an unknown format."""
        self._doorbell = doorbell
        self._clock = clock
        self._scripts = Scripts(connect)
        self._ledger = Ledger(self._wake, clock)
        self._push = Push(connect, self.rules.channel, self._heard, self._ledger.reread, clock)
        listening, hurry = lambda: self._push.listening, self._push.hurry
        self._teller = Teller(self._ledger, self._scripts, self.rules, listening, hurry)
        self._pid = os.getpid()
        self._silent = f"no answer within {self.rules.deadline_s * 1000.0:.0f} ms"
        _STORES.add(self)

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"RedisBreakerStore({state}, {self._ledger!r}, {self._push!r}, calls={self.calls})"

    @property
    def up(self) -> bool:
        """Whether the store is available; otherwise each breaker decides alone."""
        return self._ledger.up

    @property
    def running(self) -> bool:
        """Whether the sender thread runs: from the first use to `stop`."""
        return self._teller.running

    @property
    def listening(self) -> bool:
        """Whether changes are received at once; otherwise they are read once a second."""
        return self._push.listening

    @property
    def calls(self) -> int:
        """Round trips started, without those of the subscription."""
        return self._scripts.calls

    @property
    def failures(self) -> int:
        """Round trips without a reply."""
        return self._teller.failures

    @property
    def last_error(self) -> str | None:
        """Text of the newest failure; kept after a recovery."""
        return self._teller.last_error

    def start(self) -> None:
        """Start the threads unless they run; returns at once. Also used after `stop` and in a fork."""
        with self._ledger.lock:
            self._ledger.closed = False
            self._teller.start()
            if self._teller.running:
                self._push.start()

    def stop(self, join_s: float = 1.0) -> None:
        """Send the pending writes and stop the threads; the next query or guard starts them again.

        Args:
            join_s: maximum wait in seconds; a thread in a call that hangs is left behind.
        """
        ends_s = self._clock() + join_s
        self._ledger.close()
        self._push.stop(0.0)
        self._teller.stop(join_s)
        self._push.stop(max(0.0, ends_s - self._clock()))

    def reset_after_fork(self) -> None:
        """Reset in a forked child: threads, connections, probes and writes belong to the parent.

        Each child calls it automatically; in any other process it does nothing.
        """
        # The hook of os.register_at_fork and the owner's own reset may both call this in the child.
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._ledger.reset_after_fork()
        self._push.reset_after_fork()
        self._teller.reset_after_fork()

    def watch(self, name: str, changed: Callable[[Remote], None]) -> None:
        """Register ``on_change``; it is called, from any thread, with each newer state of a breaker."""
        self._ledger.watch(name, changed)
        self.start()

    def known(self, name: str) -> Remote | None:
        """Wait, at most the deadline, for the first state; None: nothing is stored, or no reply."""
        answer = self._ask(name, None)
        return answer if isinstance(answer, Remote) else None

    async def known_async(self, name: str) -> Remote | None:
        """Wait as `read_state` does, without blocking the event loop."""
        answer = await self._ask_async(name, None)
        return answer if isinstance(answer, Remote) else None

    def acquire(self, name: str, ask: Ask) -> Lease | Remote | None:
        """Request a probe lease, waiting at most the deadline."""
        return self._ask(name, ask)

    async def acquire_async(self, name: str, ask: Ask) -> Lease | Remote | None:
        """Request a lease as `acquire` does, without blocking the event loop.

        A cancelled call returns a lease that arrives late.
        """
        return await self._ask_async(name, ask)

    def opened(self, name: str, wait_s: float, rounds: int, cause: Cause) -> None:
        """Report that this process has opened a breaker. Kept until the open period ends."""
        until_s = self._clock() + wait_s
        with self._ledger.lock:
            known, settled = self._ledger.position(name)
            self._ledger.put(Opening(name, until_s, rounds, cause, known, settled))
        self._use()

    def finished(self, name: str, lease: Lease, outcome: Outcome, need: int, wait_s: float) -> None:
        """Report the outcome of a probe. Kept until its lease ends."""
        ticket, until_s = self._ledger.ticket(lease)
        if ticket:
            self._ledger.put(Finish(name, ticket, lease.version, outcome, need, wait_s, until_s))
            self._use()

    def operated(self, name: str, state: State) -> None:
        """Report an operator command. Kept until it can be sent."""
        with self._ledger.lock:
            known, settled = self._ledger.position(name)
            self._ledger.put(Verb(name, state, known, settled))
        self._use()

    def _ask(self, name: str, ask: Ask | None) -> Lease | Remote | None:
        rung = threading.Event()
        self.start()
        question = self._ledger.ask(name, ask, rung.set)
        if not question.answered:
            self._wait(question, rung)
        return self._ledger.answer(question, self._silent)

    def _wait(self, question: Question, rung: threading.Event) -> None:
        try:
            rung.wait(self.rules.deadline_s)
        except BaseException:
            self._ledger.abandon(question)
            raise

    async def _ask_async(self, name: str, ask: Ask | None) -> Lease | Remote | None:
        bell = self._doorbell()
        self.start()
        question = self._ledger.ask(name, ask, bell.set)
        if not question.answered:
            try:
                await bell.wait(self.rules.deadline_s, anyio.sleep_forever)
            except BaseException:
                self._ledger.abandon(question)
                raise
        return self._ledger.answer(question, self._silent)

    def _use(self) -> None:
        if not self._ledger.closed:  # writes after `stop` wait for the next query
            self.start()

    def _wake(self) -> None:
        self._teller.wake()

    def _heard(self, data: Any) -> None:  # noqa: ANN401 - any client may publish
        told = message(data)
        if told is None:
            self.ignored += 1
        elif told.who != self._teller.who:  # own changes are known from the reply
            self._ledger.news(told.name, told.remote)


_STORES: weakref.WeakSet[RedisBreakerStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_STORES):
        with contextlib.suppress(Exception):  # a failure of one store must not affect the others
            store.reset_after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
