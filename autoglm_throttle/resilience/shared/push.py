"""The thread that hears at once what the other processes of a fleet tell.

What is published while nobody listens is lost, so whoever uses this reads once it has joined, and now and
then later on. A connection that is dead without a word is found out by questions that stay unanswered.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autoglm_throttle.model import Clock

THREAD: Final = "autoglm-throttle-breakers-push"

PING_S: Final = 1.0
SILENCE_S: Final = 3.0
"""Once a second the server is asked for a sign; three that are missed are as good as a lost connection."""

SLICE_S: Final = 0.25
"""For so long the thread listens before it looks whether it is still wanted."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 10.0
JITTER: Final = 0.2
"""Seconds before it tries again, doubled from the first to the longest, give or take a fifth."""

SyncClient = Any
"""A synchronous client of redis-py: single, Sentinel or cluster."""


class Push:
    """Listens on one channel.

    Args:
        connect: makes a synchronous client; called on the thread.
        channel: where to listen.
        heard: is given what is published, on the thread; must not raise.
        joined: is told each time that from now on nothing is missed, on the thread; must not raise.
        clock: monotonic seconds.
    """

    _thread: threading.Thread | None

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        channel: str,
        heard: Callable[[Any], None],
        joined: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.failures: int = 0
        """Connections that failed or were lost."""
        self.last_error: str | None = None
        """Text of the newest failure, kept after a recovery."""
        self._connect = connect
        self._channel = channel
        self._heard = heard
        self._joined = joined
        self._clock = clock
        self._left_behind: list[Any] = []
        self.forget()

    def __repr__(self) -> str:
        return f"Push({'listening' if self.listening else 'deaf'}, failures={self.failures})"

    def start(self) -> bool:
        """Start the thread unless there is one; False if the system has no thread left."""
        with self._mutex:
            self._stopping = False
            if self._thread is not None:
                return True
            self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                self._failed(error)
                return False
        return True

    def stop(self, join_s: float) -> None:
        """End the thread, and wait for it at most so many seconds."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
        self._alarm.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(join_s)

    def hurry(self) -> None:
        """The server answers others: try now, if it was not heard."""
        self._alarm.set()

    def forget(self) -> None:
        """In a forked process: leave thread and connection to the parent."""
        self.listening: bool = False
        """Whether changes are heard at once."""
        if hasattr(self, "_open"):
            self._left_behind.append(self._open)  # kept: to finish it would speak on the parent's connection
        self._open: tuple[Any, ...] = ()
        self._mutex = threading.RLock()  # re-entrant: a finalizer may call stop() in the middle of start()
        self._alarm = threading.Event()
        self._thread = None
        self._stopping = False
        self._pause_s = FIRST_PAUSE_S

    def _run(self) -> None:
        try:
            while not self._ends():
                try:
                    self._listen()
                except Exception as error:  # noqa: BLE001 - a client may raise anything; none may end the thread
                    self._failed(error)
                finally:
                    self._hang_up()
                self._alarm.clear()  # what hurried while it listened is of no use now
                if not self._stopping:
                    self._alarm.wait(self._pause_s * random.uniform(1.0 - JITTER, 1.0 + JITTER))
                    self._pause_s = min(2.0 * self._pause_s, LONGEST_PAUSE_S)
        finally:
            with self._mutex:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _ends(self) -> bool:
        """Decide under the mutex whether the thread ends, so that ``start`` never counts on a dying one."""
        with self._mutex:
            if self._stopping:
                self._thread = None
            return self._stopping

    def _listen(self) -> None:
        """Subscribe, and hand on what comes until there is silence or an end.

        Raises:
            TimeoutError: nothing comes, not even an answer.
        """
        client = self._connect()
        self._open = (client,)
        subscription = client.pubsub()
        self._open = (subscription, client)
        subscription.subscribe(self._channel)
        heard_s = pinged_s = self._clock()
        while not self._stopping:
            message = subscription.get_message(timeout=SLICE_S)
            now = self._clock()
            if message is not None:
                heard_s = now
                self._take(message)
            elif now - heard_s > SILENCE_S:
                raise TimeoutError(f"nothing heard for {SILENCE_S:g} s")
            if now - pinged_s >= PING_S:
                pinged_s = now
                subscription.ping()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "message":
            self._heard(message["data"])
        elif message["type"] == "subscribe":
            self.listening, self._pause_s = True, FIRST_PAUSE_S
            self._joined()

    def _hang_up(self) -> None:
        self.listening = False
        ends, self._open = self._open, ()
        for end in ends:
            with contextlib.suppress(Exception):  # it is broken already
                end.close()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
