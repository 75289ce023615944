"""Listener thread: receives the published changes of the other processes of a fleet.

Messages published without a subscriber are lost, so the user of this class reads all states after each
subscription and periodically. Unanswered pings detect a dead connection.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock

THREAD_NAME: Final = "autoglm-throttle-breakers-push"

PING_S: Final = 1.0
SILENCE_LIMIT_S: Final = 3.0
"""The server is pinged once a second; three seconds without any message count as a lost connection."""

POLL_S: Final = 0.25
"""Seconds of one blocking read; between two reads the thread checks whether it must stop."""

FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 10.0
JITTER: Final = 0.2
"""Seconds before a reconnect, doubled from the first to the longest, varied by this share."""

SyncClient = Any
"""A synchronous client of redis-py: single, Sentinel or cluster."""


class BreakerSyncListener:
    """Listens on one channel.

    Args:
        connect: creates a synchronous client; called on the thread.
        channel: to subscribe.
        on_message: receives published data, on the thread; must not raise.
        on_subscribed: called after each subscription, on the thread; must not raise.
        clock: monotonic seconds.
    """

    _thread: threading.Thread | None

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        channel: str,
        on_message: Callable[[Any], None],
        on_subscribed: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.failures: int = 0
        """Connections that failed or were lost."""
        self.last_error: str | None = None
        """Text of the newest failure; kept after a recovery."""
        self._connect = connect
        self._channel = channel
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._clock = clock
        self._parent_connections: list[Any] = []
        self._connections: tuple[Any, ...] = ()
        self.reset_after_fork()

    def __repr__(self) -> str:
        state = "listening" if self.is_listening else "not listening"
        return f"BreakerSyncListener({state}, failures={self.failures})"

    def start(self) -> bool:
        """Start the thread unless it runs; return False if the system has no thread left."""
        with self._mutex:
            self._stopping = False
            if self._thread is not None:
                return True
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                self._failed(error)
                return False
        return True

    def stop(self, join_s: float) -> None:
        """Stop the thread, and wait for it at most ``join_s`` seconds."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
        self._wake_event.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(join_s)

    def wake(self) -> None:
        """Reconnect now: the server has replied to another connection."""
        self._wake_event.set()

    def reset_after_fork(self) -> None:
        """Reset in a forked child: thread and connection belong to the parent."""
        self.is_listening: bool = False
        """Whether changes are received at once."""
        if self._connections:  # kept: closing would write to the parent's socket
            self._parent_connections.append(self._connections)
        self._connections = ()
        self._mutex = threading.RLock()  # re-entrant: a finalizer may call stop() in the middle of start()
        self._wake_event = threading.Event()
        self._thread = None
        self._stopping = False
        self._pause_s = FIRST_PAUSE_S

    def _run(self) -> None:
        try:
            while not self._should_stop():
                try:
                    self._listen()
                except Exception as error:  # noqa: BLE001 - any client error; it must not end the thread
                    self._failed(error)
                finally:
                    self._disconnect()
                self._wake_event.clear()  # a wake-up from before this failure is void
                if not self._stopping:
                    self._wake_event.wait(self._pause_s * random.uniform(1.0 - JITTER, 1.0 + JITTER))
                    self._pause_s = min(2.0 * self._pause_s, MAX_PAUSE_S)
        finally:
            with self._mutex:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _should_stop(self) -> bool:
        """Decide under the mutex whether the thread ends, so that ``start`` never relies on a dying one."""
        with self._mutex:
            if self._stopping:
                self._thread = None
            return self._stopping

    def _listen(self) -> None:
        """Subscribe and dispatch messages until the connection is silent or closed.

        Raises:
            TimeoutError: no message arrived, not even a reply to a ping.
        """
        client = self._connect()
        self._connections = (client,)
        subscription = client.pubsub()
        self._connections = (subscription, client)
        # The confirmation arrives as a message; only then `is_listening` becomes true.
        subscription.subscribe(self._channel)
        received_s = pinged_s = self._clock()
        while not self._stopping:
            message = subscription.get_message(timeout=POLL_S)
            now = self._clock()
            if message is not None:
                received_s = now
                self._dispatch(message)
            elif now - received_s > SILENCE_LIMIT_S:
                raise TimeoutError(f"nothing received for {SILENCE_LIMIT_S:g} s")
            if now - pinged_s >= PING_S:
                pinged_s = now
                subscription.ping()

    def _dispatch(self, message: dict[str, Any]) -> None:
        if message["type"] == "message":
            self._on_message(message["data"])
        elif message["type"] == "subscribe":
            self.is_listening, self._pause_s = True, FIRST_PAUSE_S
            self._on_subscribed()

    def _disconnect(self) -> None:
        self.is_listening = False
        connections, self._connections = self._connections, ()
        for connection in connections:
            with contextlib.suppress(Exception):  # it may be broken already
                connection.close()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
