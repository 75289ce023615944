"""Background thread of a fleet: sends heartbeats and leases tokens before they are needed.

It is a thread, not a task: a process with a blocked event loop still lives, and the other processes must
go on counting it. A call is never made under the lock, and no request waits for one longer than the
deadline of the leases.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from autoglm_throttle.store.leased_buckets import DEADLINE_S, LeasedBuckets

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock, Demand

_log = logging.getLogger("autoglm_throttle")

TIMEOUT_S: Final = 0.25
"""For the client's connection and replies. No decision waits for it; it frees the thread."""

PROBE_S: Final = 1.0
JITTER: Final = 0.2
"""A lost store is probed once a second, plus or minus a fifth: a fleet must not probe in step."""

MAX_MISSED_BEATS: Final = 3
"""Missed heartbeats after which the others count a process as dead."""

TIMEOUT_TEXT: Final = f"no answer within {DEADLINE_S * 1000.0:.0f} ms"
"""Cause of a loss that was reported by waiters."""

LOG_EVERY_S: Final = 30.0
"""At most one pair of log lines, lost and recovered, in this time."""

RIGHTS: Final = "evalsha eval time hget hset pexpire zadd zcard zremrangebyscore"
"""Commands that the server must permit for a fleet, on the keys below ``REDIS_PREFIX``."""

SyncClient = Any
"""A synchronous client of redis-py: single, Sentinel or cluster."""


class FleetWakeup(Protocol):
    """Wakes one task in its own event loop."""

    def set(self) -> None:
        """Wake it; from any thread."""
        ...

    async def wait(self, seconds: float, disconnected: Callable[[], Awaitable[None]]) -> bool:
        """Wait for it."""
        ...


@dataclass(frozen=True, slots=True)
class FleetRules:
    """Keys of a fleet, and its heartbeat."""

    prefix: str = "athr"
    service: str = "default"
    heartbeat_s: float = 5.0
    """Seconds between two heartbeats; a process that misses three of them counts as dead."""

    @property
    def keys(self) -> tuple[str, str]:
        """Members and buckets; one tag, so that a cluster keeps them in one place."""
        place = f"{self.prefix}:{self.service}:{{fleet}}"
        return f"{place}:members", f"{place}:buckets"


class FleetSync:
    """Keeps the leases of this process filled, and announces it to the fleet.

    Args:
        leases: the leases to fill. Their ``wake`` becomes ours.
        lock: guards the leases, here and wherever they are taken from; re-entrant.
        connect: makes a synchronous client without retries, with timeouts of `TIMEOUT_S`. It is called
            on the thread, at the first call.
        new_wakeup: makes a wake-up for the waiting task.
        rules: keys and heartbeat.
        clock: monotonic seconds, the same clock as for the leases.
    """

    def __init__(
        self,
        leases: LeasedBuckets,
        lock: contextlib.AbstractContextManager[Any],
        connect: Callable[[], SyncClient],
        new_wakeup: Callable[[], FleetWakeup],
        rules: FleetRules | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.leases: LeasedBuckets = leases
        self.rules: FleetRules = rules if rules is not None else FleetRules()
        self.running: bool = False
        """True from `start` to `stop`."""
        self.calls: int = 0
        """Round trips started."""
        self.failures: int = 0
        """Round trips without an answer."""
        self.last_error: str | None = None
        """Text of the newest failure, kept after a recovery."""
        self._connect = connect
        self._new_wakeup = new_wakeup
        self._clock = clock
        self._script = resources.files(__package__).joinpath("fleet.lua").read_text("utf-8")
        self._sha = sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._logged_s = -math.inf
        self._loss_logged = False
        self._reset(lock)

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"FleetSync({state}, {self.leases!r}, calls={self.calls}, failures={self.failures})"

    @property
    def members(self) -> int:
        """Living processes of the fleet; 1 before the first answer."""
        return self.leases.members

    def start(self) -> None:
        """Start the thread unless it runs; returns at once. Also after `stop` and in a fork."""
        with self._mutex:
            self._stopping = False
            self.running = True
            if self._thread is None:
                self._launch()

    def stop(self, join_s: float = 1.0) -> None:
        """Return unspent tokens, leave the fleet, and end the thread.

        Args:
            join_s: longest wait in seconds; a thread in a call that hangs is left behind.
        """
        with self._mutex:
            self.running = False
            self._stopping = True
            thread = self._thread
        self._alarm.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(join_s)

    def reset_after_fork(self, lock: contextlib.AbstractContextManager[Any]) -> None:
        """Reset in a forked process: thread, connection, membership and tokens belong to the parent.

        Args:
            lock: the one that guards the leases from now on; the parent's thread may hold the old one.
        """
        self.running = False
        self.leases.reset_after_fork(self._clock())
        self._reset(lock)

    async def ensure(self, demand: Demand) -> None:
        """Wait until the leases can decide on a demand; 50 ms at most.

        Await it, without the lock, where `LeasedBuckets.is_decidable` is False.
        Then `LeasedBuckets.take` decides.
        """
        gives_up_s = self._clock() + DEADLINE_S
        while True:
            wakeup = self._new_wakeup()
            now = self._clock()
            with self._lock:
                if self.leases.is_decidable(demand, now):
                    return
                if now >= gives_up_s:
                    return  # answers came, but other requests took the tokens
                seconds = min(self.leases.add_waiter(wakeup, demand, now), gives_up_s - now)
            try:
                await wakeup.wait(seconds, anyio.sleep_forever)
            finally:
                with self._lock:
                    self.leases.remove_waiter(wakeup, demand, self._clock())

    def _reset(self, lock: contextlib.AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._mutex = threading.RLock()  # re-entrant: a finalizer may call stop() in the middle of start()
        self._alarm: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Its ``put`` may be called in the midst of another one, by a finalizer."""
        self.leases.wake = self._wake
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._member = secrets.token_hex(8)
        self._client: SyncClient | None = None
        self._beat_s = -math.inf
        self._lost_s: float | None = None

    def _wake(self) -> None:
        self._alarm.put(None)

    def _launch(self) -> None:
        self._thread = threading.Thread(target=self._run, name="autoglm-throttle-fleet", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no threads left: the request that started us must not fail for it
            self._thread = None
            self.running = False
            self._record_failure(error)

    def _run(self) -> None:
        try:
            while not self._should_end():
                self._check_waiter_timeouts()
                now = self._clock()
                beat = now >= self._beat_s
                with self._lock:
                    figures = self.leases.next_request(now, beat=beat)
                    due_s = self.leases.due_s()
                if figures is None:
                    self._sleep(min(self._beat_s, due_s) - now)
                else:
                    self._exchange(figures)
        finally:
            with self._mutex:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _should_end(self) -> bool:
        """Decide under the mutex whether the thread ends, so that ``start`` never relies on a dying one."""
        with self._mutex:
            if not self._stopping:
                return False
        self._send_final_request()
        with self._mutex:
            if self._stopping:
                self._thread = None
            return self._stopping

    def _check_waiter_timeouts(self) -> None:
        """Call at once after a timeout of the waiters, if no call of the thread has failed.

        The waiters may be wrong: the whole process can have stalled.
        """
        with self._lock:
            since_s = self.leases.unavailable_since_s
        if since_s is not None and self._lost_s is None:
            self._record_loss(since_s, TIMEOUT_TEXT)
            self._beat_s = -math.inf

    def _sleep(self, seconds: float) -> None:
        """Sleep until the next heartbeat, until tokens must be returned, or until a request arrives."""
        with contextlib.suppress(queue.Empty):
            self._alarm.get(timeout=max(seconds, 0.001))
            while True:
                self._alarm.get_nowait()

    def _exchange(self, figures: list[int]) -> None:
        """Make one call, and wake all waiters."""
        try:
            reply = self._call(figures, self.rules.heartbeat_s * MAX_MISSED_BEATS)
            with self._lock:
                wakeups, since_s = self.leases.waiters, self.leases.unavailable_since_s
                self.leases.apply_reply(reply, self._clock())
        except Exception as error:  # noqa: BLE001 - a client may raise anything; no error may end the thread
            self._record_failure(error)
            now = self._clock()
            with self._lock:
                self.leases.store_lost(now)
                wakeups = self.leases.waiters
            self._beat_s = now + PROBE_S * random.uniform(1.0 - JITTER, 1.0 + JITTER)
        else:
            self._beat_s = self._clock() + self.rules.heartbeat_s
            if since_s is not None:
                self._record_loss(since_s, TIMEOUT_TEXT)
            self._record_recovery()
        for wakeup in wakeups:
            wakeup.set()  # type: ignore[attr-defined]  # the leases store waiters as plain objects

    def _call(self, figures: list[int], lifetime_s: float) -> list[int]:
        from redis.exceptions import NoScriptError

        self.calls += 1
        if self._client is None:
            self._client = self._connect()
        arguments = (*self.rules.keys, self._member, round(lifetime_s * 1e6), *figures)
        try:
            reply: list[int] = self._client.evalsha(self._sha, 2, *arguments)
        except NoScriptError:  # restarted or flushed server: nothing has run
            reply = self._client.eval(self._script, 2, *arguments)
        return reply

    def _send_final_request(self) -> None:
        """Make the last call: return tokens and leave the fleet. A lost store is not waited for again."""
        with self._lock:
            figures = self.leases.final_request() if self.leases.unavailable_since_s is None else None
        try:
            if figures is not None and self._client is not None:
                self._call(figures, 0.0)
        except Exception as error:  # noqa: BLE001 - tokens that cannot be returned are lost, no more
            self._record_failure(error)
        finally:
            self._beat_s = -math.inf
            self._close()

    def _record_failure(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self._close()
        self._record_loss(self._clock(), self._error_text(error))

    def _record_loss(self, since_s: float, cause: str) -> None:
        """Log the loss of the store once."""
        if self._lost_s is not None:
            return
        self._lost_s = since_s
        now = self._clock()
        self._loss_logged = now - self._logged_s >= LOG_EVERY_S
        if self._loss_logged:
            self._logged_s = now
            _log.warning(
                "the fleet's store is unavailable: each process uses 1/%d of the rates (%s)",
                self.leases.processes,
                cause,
            )

    def _error_text(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        forbidden = "NOPERM" in text or "NoPermission" in text or "can't run this command" in text
        return f"{text}; it needs the rights: {RIGHTS}" if forbidden else text

    def _record_recovery(self) -> None:
        if self._lost_s is not None:
            if self._loss_logged:
                _log.warning(
                    "the fleet's store is available again after %.1f s: %d members",
                    self._clock() - self._lost_s,
                    self.leases.members,
                )
            self._lost_s = None

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # it is broken already
                client.close()
