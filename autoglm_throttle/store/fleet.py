"""Background thread of a fleet: sends heartbeats and leases tokens before they are needed.

It is a thread, not a task: a process with a blocked event loop still lives, and the other processes must
go on counting it. A call is never made under the lock, and no request waits for one longer than the
deadline of the leases.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Final, cast

import anyio

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle._runtime.worker import JOIN_S, Worker
from autoglm_throttle.store.client import SyncClient, SyncScript
from autoglm_throttle.store.health import OutageLog
from autoglm_throttle.store.leased_buckets import DEADLINE_S, LeasedBuckets

if TYPE_CHECKING:
    from autoglm_throttle._runtime.wakeup import Wakeup
    from autoglm_throttle.settings.groups.store import FleetSettings, StoreSettings
    from autoglm_throttle.types import Clock, Demand

THREAD_NAME: Final = "autoglm-throttle-fleet"

TIMEOUT_S: Final = 0.25
"""For the client's connection and replies. No decision waits for it; it frees the thread."""

PROBE_S: Final = 1.0
JITTER: Final = 0.2
"""A lost store is probed once a second, plus or minus a fifth: a fleet must not probe in step."""

MAX_MISSED_BEATS: Final = 3
"""Missed heartbeats after which the others count a process as dead."""

MIN_PAUSE_S: Final = 0.001
"""Shortest pause between two looks at the leases."""

TIMEOUT_TEXT: Final = f"no answer within {DEADLINE_S * 1000.0:.0f} ms"
"""Cause of a loss that was reported by waiters."""

RIGHTS: Final = "evalsha eval time hget hset pexpire zadd zcard zremrangebyscore"
"""Commands that the server must permit for a fleet, on the keys below ``REDIS_PREFIX``."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet that shares the priority rates, at one moment."""

    members: int
    """Living processes, this one included; 1 before the store has answered."""
    up: bool
    """Whether the store answers; during an outage each process uses its part of the rates."""
    calls: int
    """Round trips for leases and heartbeats; only grows."""
    failures: int
    """Round trips without a reply; only grows."""


def fleet_keys(settings: StoreSettings) -> tuple[str, str]:
    """Return the keys of members and buckets; with one tag, so that a cluster keeps them in one place."""
    place = f"{settings.redis_prefix}:{settings.service}:{{fleet}}"
    return f"{place}:members", f"{place}:buckets"


class FleetSync:
    """Keeps the leases of this process filled, and announces it to the fleet.

    Args:
        leases: the leases to fill. Their ``wake`` becomes ours.
        lock: guards the leases, here and wherever they are taken from.
        member: sends the heartbeats and the figures of the leases.
        new_wakeup: makes a wake-up for the waiting task.
        clock: monotonic seconds, the same clock as for the leases.
    """

    def __init__(
        self,
        leases: LeasedBuckets,
        lock: SerialLock,
        member: FleetMember,
        new_wakeup: Callable[[], Wakeup],
        clock: Clock = time.monotonic,
    ) -> None:
        self.leases: LeasedBuckets = leases
        self.next_beat_s: float = -math.inf
        """When the next heartbeat is due; while the store is lost, the next probe."""
        self.lock: SerialLock = lock
        self.clock: Clock = clock
        self._new_wakeup = new_wakeup
        self._outage = OutageLog("the fleet's store")
        self._member = member
        self._worker = Worker(
            THREAD_NAME, self._step, on_stop=self._leave, on_crash=self._record_failure, clock=clock
        )
        leases.wake = self._worker.wake

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        script = self._member.script
        return f"FleetSync({state}, {self.leases!r}, calls={script.calls}, failures={script.failures})"

    @property
    def is_running(self) -> bool:
        """Whether the thread runs: from `start` to `stop`."""
        return self._worker.is_alive and not self._worker.is_stopping

    @property
    def members(self) -> int:
        """Living processes of the fleet; 1 before the first answer."""
        return self.leases.members

    @property
    def last_error(self) -> str | None:
        """Text of the newest failure, kept after a recovery."""
        return self._member.script.last_error

    def view(self) -> FleetView:
        """Return the state and the counts."""
        script = self._member.script
        is_up = self.leases.unavailable_since_s is None
        return FleetView(self.leases.members, is_up, script.calls, script.failures)

    def start(self) -> None:
        """Start the thread unless it runs; returns at once. Also after `stop`."""
        self._worker.start()

    def stop(self, join_s: float = JOIN_S) -> None:
        """Return unspent tokens, leave the fleet, and end the thread.

        Args:
            join_s: longest wait in seconds; a thread in a call that hangs is left behind.
        """
        self._worker.stop(join_s)

    def stop_with(self, owner: object) -> None:
        """Stop the thread when the owner is collected."""
        self._worker.stop_with(owner)

    async def ensure(self, demand: Demand) -> None:
        """Wait until the leases can decide on a demand; 50 ms at most.

        Await it, without the lock, where `LeasedBuckets.is_decidable` is False.
        Then `LeasedBuckets.take` decides.
        """
        gives_up_s = math.inf
        while True:
            wakeup = self._new_wakeup()
            now = self.clock()
            gives_up_s = min(gives_up_s, now + DEADLINE_S)
            with self.lock:
                if self.leases.is_decidable(demand, now):
                    return
                if now >= gives_up_s:
                    return  # answers came, but other requests took the tokens
                seconds = min(self.leases.add_waiter(wakeup, demand, now), gives_up_s - now)
            try:
                await wakeup.wait(seconds, anyio.sleep_forever)
            finally:
                # The task may be closed at any moment, and never run again.
                self.lock.run(partial(self.leases.remove_waiter, wakeup, demand, self.clock()))

    def _step(self) -> float:
        """Make the call that is due; return the seconds to the next heartbeat or return of tokens."""
        self._check_waiter_timeouts()
        now = self.clock()
        with self.lock:
            figures = self.leases.next_request(now, beat=now >= self.next_beat_s)
            due_s = self.leases.due_s()
        if figures is None:
            return max(min(self.next_beat_s, due_s) - now, MIN_PAUSE_S)
        self._exchange(figures)
        return 0.0

    def _check_waiter_timeouts(self) -> None:
        """Call at once after a timeout of the waiters, if no call of the thread has failed.

        The waiters may be wrong: the whole process can have stalled.
        """
        with self.lock:
            since_s = self.leases.unavailable_since_s
        if since_s is not None and self._outage.since_s is None:
            self._record_loss(since_s, TIMEOUT_TEXT)
            self.next_beat_s = -math.inf

    def _exchange(self, figures: list[int]) -> None:
        """Make one call, and wake all waiters."""
        try:
            reply = self._member.exchange(figures)
            with self.lock:
                wakeups, since_s = self.leases.waiters, self.leases.unavailable_since_s
                self.leases.apply_reply(reply, self.clock())
        except Exception as error:  # noqa: BLE001 - a client may raise anything: it is probed again in a second
            self._record_failure(error)
            now = self.clock()
            with self.lock:
                self.leases.store_lost(now)
                wakeups = self.leases.waiters
            self.next_beat_s = now + PROBE_S * random.uniform(1.0 - JITTER, 1.0 + JITTER)
        else:
            now = self.clock()
            self.next_beat_s = now + self._member.heartbeat_s
            if since_s is not None:
                self._record_loss(since_s, TIMEOUT_TEXT)
            self._outage.record_recovery(now, f": {self.leases.members} members")
        for wakeup in wakeups:
            cast("Wakeup", wakeup).set()  # the leases take any object for a waiter

    def _leave(self) -> None:
        """Make the last call: return tokens and leave the fleet. A lost store is not waited for again."""
        with self.lock:
            figures = self.leases.final_request() if self.leases.unavailable_since_s is None else None
        try:
            if figures is not None:
                self._member.leave(figures)
        except Exception as error:  # noqa: BLE001 - tokens that cannot be returned are lost, no more
            self._record_failure(error)
        finally:
            self.next_beat_s = -math.inf
            self._member.script.close()

    def _record_failure(self, error: BaseException) -> None:
        self._member.script.record_failure(error)
        self._record_loss(self.clock(), _error_text(error))

    def _record_loss(self, since_s: float, cause: str) -> None:
        effect = f"each process uses 1/{self.leases.processes} of the rates ({cause})"
        self._outage.record_loss(since_s, self.clock(), effect)


class FleetMember:
    """This process as a member of its fleet: its name, and its calls of the fleet's script.

    Args:
        store: the names in keys.
        fleet: the heartbeat.
        connect: makes a synchronous client without retries, with timeouts of `TIMEOUT_S`. It is called at
            the first call.
    """

    __slots__ = ("_keys", "heartbeat_s", "name", "script")

    def __init__(self, store: StoreSettings, fleet: FleetSettings, connect: Callable[[], SyncClient]) -> None:
        self._keys = fleet_keys(store)
        self.heartbeat_s: float = fleet.fleet_heartbeat_s
        self.name: str = secrets.token_hex(8)
        text = resources.files(__package__).joinpath("fleet.lua").read_text("utf-8")
        self.script: SyncScript = SyncScript(connect, text)

    def exchange(self, figures: Sequence[int]) -> list[int]:
        """Send a heartbeat and the figures of the leases; return the reply."""
        return self._call(figures, self.heartbeat_s * MAX_MISSED_BEATS)

    def leave(self, figures: Sequence[int]) -> None:
        """Send the last figures, if the fleet knows this process."""
        if self.script.is_connected:
            self._call(figures, 0.0)

    def _call(self, figures: Sequence[int], lifetime_s: float) -> list[int]:
        reply: list[int] = self.script.call(self._keys, (self.name, round(lifetime_s * 1e6), *figures))
        return reply


def _error_text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    forbidden = "NOPERM" in text or "NoPermission" in text or "can't run this command" in text
    return f"{text}; it needs the rights: {RIGHTS}" if forbidden else text
