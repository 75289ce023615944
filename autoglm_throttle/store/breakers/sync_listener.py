"""Listener thread: receives the published changes of the other processes of a fleet.

Messages published without a subscriber are lost, so the user of this class reads all states after each
subscription and periodically. Unanswered pings detect a dead connection.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.store.client import SyncClient

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


class BreakerSyncListener:
    """Listens on one channel.

    Args:
        connect: creates a synchronous client; called on the thread.
        channel: to subscribe.
        on_message: receives published data, on the thread; must not raise.
        on_subscribed: called after each subscription, on the thread; must not raise.
        clock: monotonic seconds.
    """

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
        self.on_message: Callable[[Any], None] = on_message
        self.on_subscribed: Callable[[], None] = on_subscribed
        self._connect = connect
        self._channel = channel
        self._clock = clock
        self._pause_s = FIRST_PAUSE_S
        self._connection: _Connection | None = None
        self._worker = Worker(
            THREAD_NAME, self._step, on_stop=self._disconnect, on_crash=self._record_failure, clock=clock
        )

    def __repr__(self) -> str:
        state = "listening" if self.is_listening else "not listening"
        return f"BreakerSyncListener({state}, failures={self.failures})"

    @property
    def is_listening(self) -> bool:
        """Whether changes are received at once."""
        connection = self._connection
        return connection is not None and connection.is_subscribed

    def start(self) -> None:
        """Start the thread unless it runs."""
        self._worker.start()

    def stop(self, join_s: float) -> None:
        """Stop the thread, and wait for it at most ``join_s`` seconds."""
        self._worker.stop(join_s)

    def stop_with(self, owner: object) -> None:
        """Stop the thread when the owner is collected."""
        self._worker.stop_with(owner)

    def wake(self) -> None:
        """Reconnect now: the server has replied to another connection."""
        self._worker.wake()

    def _step(self) -> float:
        """Subscribe, or receive one message; return the pause before a reconnect."""
        try:
            if self._connection is None:
                self._connection = _Connection(self._connect(), self._clock())
                self._connection.subscribe(self._channel)
            self._receive(self._connection)
        except Exception as error:  # noqa: BLE001 - any client error: the thread connects again
            self._record_failure(error)
            self._disconnect()
            pause_s = self._pause_s * random.uniform(1.0 - JITTER, 1.0 + JITTER)
            self._pause_s = min(2.0 * self._pause_s, MAX_PAUSE_S)
            return pause_s
        return 0.0

    def _receive(self, connection: _Connection) -> None:
        message = connection.receive(self._clock)
        if message is None:
            return
        if message["type"] == "message":
            self.on_message(message["data"])
        elif message["type"] == "subscribe":
            connection.is_subscribed, self._pause_s = True, FIRST_PAUSE_S
            self.on_subscribed()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _record_failure(self, error: BaseException) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"


class _Connection:
    """A subscription on a connection of its own, supervised by pings."""

    __slots__ = ("_client", "_pinged_s", "_received_s", "_subscription", "is_subscribed")

    def __init__(self, client: SyncClient, now: float) -> None:
        self.is_subscribed: bool = False
        """Whether the server has confirmed the subscription: the confirmation arrives as a message."""
        self._client = client
        self._subscription: Any = None
        self._received_s = self._pinged_s = now

    def subscribe(self, channel: str) -> None:
        """Subscribe to a channel.

        Raises:
            Exception: of the client.
        """
        self._subscription = self._client.pubsub()
        self._subscription.subscribe(channel)

    def receive(self, clock: Clock) -> dict[str, Any] | None:
        """Wait for a message, for `POLL_S` at most, and send the ping that is due.

        Raises:
            TimeoutError: nothing has arrived for too long, not even a reply to a ping.
            Exception: of the client.
        """
        message: dict[str, Any] | None = self._subscription.get_message(timeout=POLL_S)
        now = clock()
        if message is not None:
            self._received_s = now
        elif now - self._received_s > SILENCE_LIMIT_S:
            raise TimeoutError(f"nothing received for {SILENCE_LIMIT_S:g} s")
        if now - self._pinged_s >= PING_S:
            self._pinged_s = now
            self._subscription.ping()
        return message

    def close(self) -> None:
        """Close the subscription, then its connection."""
        for part in (self._subscription, self._client):
            if part is not None:
                with contextlib.suppress(Exception):  # it may be broken already
                    part.close()
