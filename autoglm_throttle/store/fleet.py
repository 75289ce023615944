"""The priority rates of a fleet, and the background thread that renews their leases.

`LeasedBuckets` has the interface of ``PriorityBuckets``. It is used under the throttle's lock and makes no
calls. `FleetSync` is a thread, not a task: a process with a blocked event loop still lives, and the other
processes must go on counting it. A call is never made under the lock, and no request waits for one longer
than the deadline of the leases.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle._runtime.wakeup import new_wakeup
from autoglm_throttle._runtime.worker import Worker
from autoglm_throttle.limiting.decisions import rate_rejection, seconds_until
from autoglm_throttle.store.client import SyncClient
from autoglm_throttle.store.health import HealthState, OutageLog, StoreHealth
from autoglm_throttle.store.leases import TokenLease
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.running_time import RunningTime
from autoglm_throttle.store.script import SyncScript
from autoglm_throttle.types import Decision, Demand, Priority

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.control import RateSettings
    from autoglm_throttle.settings.groups.store import FleetSettings, StoreSettings
    from autoglm_throttle.types import Clock

# Longest wait for an answer, in running time: after it the store counts as unavailable.
DEADLINE_S: Final = 0.05
TIMER_S: Final = 0.001  # Seconds by which a timer may fire too early; the thread pauses no shorter

# A member count is clamped to 1..this: no mistake in a store may reduce the rates to nothing.
MAX_MEMBERS: Final = 10_000

THREAD: Final = "autoglm-throttle-fleet"
PROBE_S: Final = 1.0

MAX_MISSED_BEATS: Final = 3  # Missed heartbeats after which the others count a process as dead

TIMEOUT_TEXT: Final = f"no answer within {DEADLINE_S * 1000.0:.0f} ms"

# Commands that the server must permit for a fleet, on the keys below ``REDIS_PREFIX``.
RIGHTS: Final = "evalsha eval time hget hset pexpire zadd zcard zremrangebyscore"


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet that shares the priority rates, at one moment."""

    members: int  # Living processes, this one included; 1 before the store has answered
    up: bool  # Whether the store answers; during an outage each process uses its part of the rates
    calls: int  # Round trips for leases and heartbeats; only grows
    failures: int  # Round trips without a reply; only grows


class LeasedBuckets:
    """Tokens of a fleet that one process may spend, one `TokenLease` for each priority.

    The rates are those of the whole fleet. While the store is unavailable ``rates.workers`` processes divide
    them, or as many as the store counted last if that is 1.
    """

    def __init__(self, rates: RateSettings, fleet: FleetSettings, now: float) -> None:
        self.all: tuple[TokenLease, ...] = tuple(
            TokenLease(rate, max(1.0, rate * rates.burst_s), now, priority.label, fleet.fleet_lease_s)
            for priority, rate in zip(Priority, rates.rates_rps, strict=True)
        )
        self.borrows: bool = False  # As of `PriorityBuckets`: the settings forbid it in a fleet
        self.members: int = 1  # Living processes, counted by the store; 1 before its first answer
        self.health: StoreHealth = StoreHealth(1, (PROBE_S,), now=now)
        self.is_request_pending: bool = False  # Whether a call is under way
        # Called under the lock when a request is pending; must not block.
        self.wake: Callable[[], None] = lambda: None
        # Called under the lock when the store is lost, for other users of the same store.
        self.on_store_lost: Callable[[float], object] = lambda _: None
        self._workers = rates.workers
        self._wake_requested = False
        self._running = RunningTime(DEADLINE_S)
        self._answer_due_s = math.inf  # In running time; infinite: no request has waited

    @property
    def is_up(self) -> bool:
        """Whether the store answers."""
        return self.health.state is HealthState.UP

    @property
    def rates(self) -> tuple[float, ...]:
        """Current tokens per second: of the fleet, or of this process while the store is unavailable."""
        return tuple(lease.in_force for lease in self.all)

    @property
    def processes(self) -> int:
        """Number of processes that divide the rates while the store is unavailable."""
        return self._workers if self._workers > 1 else self.members

    def take(self, demand: Demand, now: float) -> TokenLease | Decision:
        """Take the demand's cost; returns the lease that paid, or the rejection."""
        lease = self.all[demand.rank]
        wait = lease.take(demand.cost, now)
        if not self._wake_requested and self.health.state is HealthState.UP and lease.is_short(now):
            self._wake_requested = True
            self.wake()
        return rate_rejection(lease, demand.cost, wait, now) if wait else lease

    def rescale(self, ceilings: Sequence[float], now: float) -> None:
        """Refill each bucket at its nominal rate times its ceiling, 0..1, given for high, mid, low."""
        for lease, ceiling in zip(self.all, ceilings, strict=True):
            lease.rescale(ceiling, now)

    def is_decidable(self, demand: Demand, now: float) -> bool:
        """Whether `take` can decide now: by the lease, by a known shortage, or without a store.

        A store without an answer for longer than the deadline counts as unavailable from here on.
        """
        lease = self.all[demand.rank]
        if lease.is_decidable(demand.cost, now):
            return True
        if self.running_time(now) >= self._answer_due_s:
            self.report_failure(now)  # the thread's call may hang: requests must not wait for it again
            return True
        return False

    def running_time(self, now: float) -> float:
        """Return the time without the seconds in which the loop of the waiters was late."""
        return self._running.at(now)

    def add_waiter(self, waiter: object, demand: Demand, now: float) -> float:
        """Register a waiter for the store's next answer; returns the seconds after which to ask again."""
        if now >= self._running.tick_ends_s - TIMER_S:
            self._running.end_tick(now)
        running_s = self.running_time(now)
        self._answer_due_s = min(self._answer_due_s, running_s + DEADLINE_S)
        self.all[demand.rank].waiters[waiter] = demand.cost
        if not self._wake_requested:
            self._wake_requested = True
            self.wake()
        if self._running.tick_ends_s < math.inf:  # another waiter ends the tick
            return seconds_until(self._answer_due_s, running_s)
        return seconds_until(self._running.start_tick(running_s, self._answer_due_s), now)

    def remove_waiter(self, waiter: object, demand: Demand, now: float) -> None:
        """Remove a waiter. Idempotent. One without an answer after the deadline reports the store as lost."""
        self.all[demand.rank].waiters.pop(waiter, None)
        if self.running_time(now) >= self._answer_due_s - TIMER_S:
            self.report_failure(now)

    @property
    def waiters(self) -> list[Any]:
        """All waiters without an answer."""
        return [waiter for lease in self.all for waiter in lease.waiters]

    def due_s(self) -> float:
        """Return the time at which unspent tokens must be returned."""
        return min(lease.due_s() for lease in self.all) if self.is_up else math.inf

    def next_request(self, now: float, *, beat: bool) -> list[int] | None:
        """Return the figures of the next call, five for each priority; None if no call is due.

        With ``beat`` a call is due in any case; while the store is unavailable it is the only call.
        """
        self._wake_requested = False
        if not self.waiters:  # those of the last wait were cancelled before a call
            self._end_wait()
        if not beat and not (self.is_up and any(lease.is_call_due(now) for lease in self.all)):
            return None
        requests = [lease.request(now) for lease in self.all]
        if not (beat or self.waiters or any(want or returned for _, _, want, _, returned in requests)):
            return None
        self.is_request_pending = True
        return [figure for request in requests for figure in request]

    def final_request(self) -> list[int]:
        """Return the figures of the last call: all unspent tokens are returned."""
        return [figure for lease in self.all for figure in lease.final_request()]

    def apply_reply(self, reply: Sequence[int], now: float) -> None:
        """Apply the store's answer: its clock, the members, then grant and remaining tokens by priority.

        All waiters are released, and register again if they need more. A ValueError changes nothing.
        """
        valid = all(isinstance(value, int) and value >= 0 for value in reply)
        wanted = all(map(TokenLease.may_be_granted, self.all, reply[2::2]))
        if len(reply) != 2 + 2 * len(self.all) or not valid or not wanted:
            raise ValueError(f"the fleet's script answered {reply!r:.80}")
        self.members = min(max(1, reply[1]), MAX_MEMBERS)
        for lease, grant, remaining in zip(self.all, reply[2::2], reply[3::2], strict=True):
            lease.apply_grant(grant, remaining, now)
        if not self.is_up:
            self.health.reset(now)
        self._end_wait()

    def store_lost(self, now: float) -> None:
        """Mark the store as lost: each process uses its part of the rates until `apply_reply`. Idempotent."""
        self._end_wait()
        if self.health.record_result(StoreErrorKind.LOST, now) is not None:
            for lease in self.all:
                lease.use_local_share(self.processes, now)
            self.on_store_lost(now)

    def _end_wait(self) -> None:
        self.is_request_pending = False
        self._answer_due_s = self._running.tick_ends_s = math.inf

    def report_failure(self, now: float) -> None:
        """Mark the store as lost after a timeout of any user, and wake the thread. Idempotent."""
        if self.is_up:
            self.store_lost(now)
            self.wake()


def fleet_keys(settings: StoreSettings) -> tuple[str, str]:
    """Return the keys of members and buckets; with one tag, so that a cluster keeps them in one place."""
    place = f"{settings.redis_prefix}:{settings.service}:{{fleet}}"
    return f"{place}:members", f"{place}:buckets"


class FleetSync:
    """Announces this process to its fleet, and keeps its leases filled; the lock and the clock are theirs."""

    def __init__(
        self,
        leases: LeasedBuckets,
        lock: SerialLock,
        store: StoreSettings,
        fleet: FleetSettings,
        connect: Callable[[], SyncClient],
        clock: Clock = time.monotonic,
    ) -> None:
        self.leases: LeasedBuckets = leases
        self.script: SyncScript = SyncScript(connect, "fleet.lua", RIGHTS)
        self.lock: SerialLock = lock
        self.clock: Clock = clock
        self.next_beat_s: float = -math.inf  # When the next heartbeat is due, while the store answers
        self._heartbeat_s = fleet.fleet_heartbeat_s
        self._keys = fleet_keys(store)
        self._name = secrets.token_hex(8)
        self._outage = OutageLog("the fleet's store")
        self._worker = Worker(
            THREAD, self._step, on_stop=self._leave, on_crash=self._record_failure, clock=clock
        )
        leases.wake = self._worker.wake
        # Starts the thread unless it runs; returns at once. Also after `stop`.
        self.start: Callable[[], None] = self._worker.start
        # Returns unspent tokens, leaves the fleet, and ends the thread; one that hangs is left behind.
        self.stop: Callable[..., None] = self._worker.stop
        # Stops the thread when the given owner is collected.
        self.stop_with: Callable[[object], None] = self._worker.stop_with

    def view(self) -> FleetView:
        """Return the state and the counts."""
        return FleetView(self.leases.members, self.leases.is_up, self.script.calls, self.script.failures)

    async def ensure(self, demand: Demand) -> None:
        """Wait, without the lock, until the leases can decide on a demand; 50 ms of running time at most."""
        gives_up_s = math.inf
        while True:
            wakeup = new_wakeup()
            now = self.clock()
            with self.lock:
                running_s = self.leases.running_time(now)
                gives_up_s = min(gives_up_s, running_s + DEADLINE_S)
                # At the end answers have come, but other requests took the tokens.
                if self.leases.is_decidable(demand, now) or running_s >= gives_up_s:
                    return
                seconds = min(self.leases.add_waiter(wakeup, demand, now), gives_up_s - running_s)
            try:
                await wakeup.sleep(seconds)
            finally:
                # The task may be closed at any moment, and never run again.
                self.lock.run(partial(self.leases.remove_waiter, wakeup, demand, self.clock()))

    def _step(self) -> float:
        """Make the call that is due; return the seconds to the next heartbeat, probe or return of tokens."""
        self._record_timeout()
        leases, now = self.leases, self.clock()
        with self.lock:
            if leases.is_up:
                beat, next_s = now >= self.next_beat_s, self.next_beat_s
            else:
                beat, next_s = leases.health.try_begin_probe(now), leases.health.next_probe_s
            figures = leases.next_request(now, beat=beat)
            due_s = leases.due_s()
        if figures is None:
            return max(min(next_s, due_s) - now, TIMER_S)
        self._exchange(figures)
        return 0.0

    def _record_timeout(self) -> None:
        """Log a loss that waiters have found, and call at once: the whole process can have stalled."""
        health = self.leases.health
        with self.lock:
            is_new = not self.leases.is_up and self._outage.since_s is None
            if is_new:
                health.next_probe_s = -math.inf
        if is_new:
            self._record_loss(health.since_s, TIMEOUT_TEXT)

    def _exchange(self, figures: list[int]) -> None:
        """Make one call, and wake all waiters."""
        leases = self.leases
        try:
            reply = self._call(figures, MAX_MISSED_BEATS * self._heartbeat_s)
            with self.lock:
                wakeups = leases.waiters
                since_s = None if leases.is_up else leases.health.since_s
                leases.apply_reply(reply, self.clock())
        except Exception as error:  # noqa: BLE001 - a client may raise anything: it is probed again in a second
            self._record_failure(error)
            now = self.clock()
            with self.lock:
                leases.health.record_probe(StoreErrorKind.LOST, now)
                leases.store_lost(now)
                wakeups = leases.waiters
        else:
            now = self.clock()
            self.next_beat_s = now + self._heartbeat_s
            if since_s is not None:
                self._record_loss(since_s, TIMEOUT_TEXT)
            self._outage.record_recovery(now, f": {leases.members} members")
        for wakeup in wakeups:
            wakeup()

    def _call(self, figures: Sequence[int], lifetime_s: float) -> list[int]:
        """Announce this process for a time, 0 to leave, with the figures of the leases; return the reply."""
        reply: list[int] = self.script.call(self._keys, (self._name, round(lifetime_s * 1e6), *figures))
        return reply

    def _leave(self) -> None:
        """Make the last call: return tokens and leave the fleet. A lost store is not waited for again."""
        with self.lock:
            figures = self.leases.final_request() if self.leases.is_up else None
        try:
            if figures is not None and self.script.is_connected:  # else the fleet does not know this process
                self._call(figures, 0.0)
        except Exception as error:  # noqa: BLE001 - tokens that cannot be returned are lost, no more
            self._record_failure(error)
        finally:
            self.next_beat_s = self.leases.health.next_probe_s = -math.inf
            self.script.close()

    def _record_failure(self, error: BaseException) -> None:
        self._record_loss(self.clock(), self.script.record_failure(error))

    def _record_loss(self, since_s: float, cause: str) -> None:
        effect = f"each process uses 1/{self.leases.processes} of the rates ({cause})"
        self._outage.record_loss(since_s, self.clock(), effect)
