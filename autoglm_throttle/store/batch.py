"""Batches all checks of one event-loop iteration into one call, with at most two calls in flight.

The cost of a single check is not in the server but in the client: some 50 microseconds of Python for each
command. Here a call carries all checks that arrived since the last one was sent. A busy service sends large
calls, an idle one sends at once, and there is no batching delay. The only timer is that of the deadline.

Deadlines are in the loop's running time, which stops while the loop is late: a reply that waits in the socket
of a blocked process is no failure of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.store.protocol import Answer, StoreErrorKind, StoreStats, WindowEntry
from autoglm_throttle.store.running_time import GRAIN_S, TICK_LEAST_S, RunningTime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.protocol import WindowProtocol
    from autoglm_throttle.store.script import LuaScript

Reply: TypeAlias = "asyncio.Future[Answer | StoreErrorKind]"
# An entry, the future of its caller, and its deadline; a refund has neither.
_Queued: TypeAlias = "tuple[WindowEntry, Reply | None, float]"


@dataclass(slots=True, eq=False)
class _BatchCall:
    """Entries of one round trip, as three columns, and its time limit."""

    entries: Sequence[WindowEntry]
    futures: Sequence[Reply | None]
    dues: Sequence[float]
    gives_up_s: float  # Running time at which the call is abandoned, so that it frees its slot
    task: asyncio.Task[None] | None
    is_abandoned: bool = False
    is_sent: bool = False  # Whether its connection was open in time
    has_timeouts: bool = False  # Whether a caller in it has timed out
    # Whether its answer came after all callers had timed out: it is no sign of health then. A server that
    # always takes a little longer than the deadline would otherwise never be left alone.
    missed: bool = False


class RedisBatch:
    """The calls of one event loop, whose tasks and callbacks alone call all methods but `stats`.

    Calls run in no caller's context, and keep none alive. To a cluster, entries of different tags are sent in
    calls of their own. Each round trip and each firing of the deadline is reported: None if it answered.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: WindowProtocol,
        script: LuaScript,
        settings: StoreSettings,
        report: Callable[[StoreErrorKind | None], None],
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.script: LuaScript = script
        self._protocol = protocol
        # A plain attribute: it is read for each request, and an attribute of a pydantic model takes longer.
        # Seconds from a request to its answer, with or without the store.
        self.deadline_s: float = settings.redis_deadline_s
        self._settings = settings
        self._queue_max = settings.redis_queue
        self._running = RunningTime(self.deadline_s)
        self._due_s = math.inf  # Earliest deadline, in running time as all below; infinite: none
        self._next_report_s = -math.inf  # Until then expired deadlines are not reported again
        self._timer_context = contextvars.Context()
        self._report = report
        self._lock = SerialLock()
        self._queue: list[_Queued] = []
        # Deadline of all checks since the last call was begun, for one tick at most; None: there are none
        self._shared_due_s: float | None = None
        self._batch_calls: set[_BatchCall] = set()
        self._next: asyncio.Task[None] | None = None
        self._counts = StoreStats()

    def request(self, entry: WindowEntry, due: float | None = None) -> Reply:
        """Send a check with the next call, or one more of a request that is due; the future never raises."""
        future: Reply = self.loop.create_future()
        if len(self._queue) >= self._queue_max:
            future.set_result(StoreErrorKind.QUEUE_FULL)
            return future
        if due is None:
            due = self._shared_due_s or self._share_due()
        elif due <= self.running_time():
            future.set_result(StoreErrorKind.TIMEOUT)
            return future
        else:
            self._schedule()
            self._set_due(due)
        self._queue.append((entry, future, due))
        return future

    def _share_due(self) -> float:
        """Schedule the call and the deadline of all checks of this iteration of the loop."""
        self._shared_due_s = due = self._running.at(self.loop.time()) + self.deadline_s
        self._schedule()
        if due < self._due_s:
            self._set_due(due)
        return due

    def running_time(self) -> float:
        """Return the loop time without the seconds by which the loop was late."""
        return self._running.at(self.loop.time())

    def send_oneway(self, entry: WindowEntry) -> None:
        """Send an entry that needs no answer; it is dropped if the queue is full."""
        self._lock.run(lambda: self._append_oneway(entry))

    def _append_oneway(self, entry: WindowEntry) -> None:
        if len(self._queue) < self._queue_max:
            self._queue.append((entry, None, math.inf))
            self._schedule()
        else:
            self._counts.lost += 1

    def caller_cancelled(self, entry: WindowEntry, future: Reply) -> None:
        """Refund the possible grant of a cancelled caller of `request`."""
        if future.done() and not future.cancelled():
            self._refund_late(entry, future.result())

    def abort(self) -> None:
        """Abandon all calls, and answer all callers that the store is unreachable."""
        waiting, self._queue, self._shared_due_s = self._queue, [], None
        futures = [future for _, future, _ in waiting]
        self._counts.lost += futures.count(None)
        _fail(futures, StoreErrorKind.UNREACHABLE)
        for call in self._batch_calls:
            if call.task is not None:
                call.task.cancel()

    def stats(self) -> StoreStats:
        """Return the counters; from any thread."""
        batch_calls = list(self._batch_calls)  # a copy: the loop changes the set meanwhile
        waiting = len(self._queue) + sum(len(call.entries) for call in batch_calls)
        return self._counts + StoreStats(waiting=waiting)

    def _schedule(self) -> None:
        """Start a call at the next iteration of the loop, so that all checks of this one share it."""
        if self._next is not None and not self._next.done():  # done: cancelled before it began
            return
        self._next = None
        if len(self._batch_calls) < self._settings.redis_in_flight:
            # Not by the loop's factory: an eager task would start at once, with the first check alone.
            self._next = asyncio.Task(self._send(), loop=self.loop, context=contextvars.Context())

    def _take(self) -> _BatchCall | None:
        """Take the oldest entries up to the key limit of a call, and schedule the call after it."""
        most = self._settings.redis_batch_keys
        taken: list[_Queued] = []
        self._next = self._shared_due_s = None  # a check that comes now must schedule the next call
        while self._queue and not taken:
            head = self._queue[:most]
            waiting = [item for item in head if item[1] is None or not item[1].done()]  # not cancelled
            fits = bisect_right(list(accumulate([len(entry.keys) for entry, _, _ in waiting])), most) or 1
            # Not `most`: an abandoned request may have added its refund meanwhile.
            taken, self._queue[: len(head)] = waiting[:fits], waiting[fits:]
        if not taken:
            return None
        gives_up_s = self._settings.redis_connect_s + self._running.at(self.loop.time())
        entries, futures, dues = zip(*taken, strict=True)
        call = _BatchCall(entries, futures, dues, gives_up_s, asyncio.current_task())
        self._batch_calls.add(call)
        if self._queue:
            self._schedule()
        if gives_up_s < self._due_s:
            self._set_due(gives_up_s)
        return call

    async def _send(self) -> None:
        call = self._take()
        if call is None:
            return
        kind: StoreErrorKind | None = StoreErrorKind.CONFUSED
        try:
            kind = await self._exchange(call)
            # The callers' timeouts have been reported already; a call that was not sent is the same failure.
            if not call.missed or kind not in {None, StoreErrorKind.TIMEOUT}:
                self._report(kind)
        except asyncio.CancelledError:
            kind = StoreErrorKind.LOST
            self._counts.lost += call.futures.count(None)
            if call.is_abandoned:
                self._report(StoreErrorKind.TIMEOUT if call.is_sent else StoreErrorKind.UNREACHABLE)
            raise
        finally:
            self._batch_calls.discard(call)
            if kind is not None:
                _fail(call.futures, kind)
            if self._queue:
                self._schedule()

    async def _exchange(self, call: _BatchCall) -> StoreErrorKind | None:
        parts = _by_tag(call) if self.script.cluster else [(call.entries, call.futures)]
        self._counts.calls += 1
        self._counts.sent += len(call.futures) - call.futures.count(None)
        encoded = list(map(self._protocol.encode, map(itemgetter(0), parts)))
        replies = await self.script(encoded, partial(self._may_send, call))
        call.missed = call.has_timeouts and all(future is None or future.done() for future in call.futures)
        worst: StoreErrorKind | None = None
        for (entries, futures), reply in zip(parts, replies, strict=True):
            worst = self._deliver(entries, futures, reply) or worst
        return worst

    def _may_send(self, call: _BatchCall) -> bool:
        """Return whether no caller in it has timed out, now that a connection is open."""
        call.is_sent = not call.has_timeouts
        call.gives_up_s = self._running.at(self.loop.time()) + self._settings.redis_read_s
        return call.is_sent

    def _deliver(
        self, entries: Sequence[WindowEntry], futures: Sequence[Reply | None], reply: object
    ) -> StoreErrorKind | None:
        """Deliver the answers of one reply."""
        error, answers = StoreErrorKind.CONFUSED, None
        if isinstance(reply, StoreErrorKind):
            error = reply
        else:
            with contextlib.suppress(ValueError):
                answers = self._protocol.decode(reply, entries)
        if answers is None:
            self._counts.lost += futures.count(None)
            _fail(futures, error)
            return error
        for entry, future, answer in zip(entries, futures, answers, strict=True):
            if future is None:
                continue
            if not future.done():
                future.set_result(answer)
            elif future.cancelled():
                self._refund_late(entry, answer)
            else:  # after its deadline the check was decided without its reply
                self._refund_late(entry, answer, only_slots=True)
        return None

    def _refund_late(
        self, entry: WindowEntry, answer: Answer | StoreErrorKind, *, only_slots: bool = False
    ) -> None:
        self._counts.late += 1
        undo = None
        if not isinstance(answer, StoreErrorKind):
            undo = self._protocol.undo(entry, answer, only_slots=only_slots)
        if undo is not None:
            self.send_oneway(undo)

    def _set_due(self, due_s: float) -> None:
        """Expire entries at ``due_s`` at the latest."""
        self._due_s = min(due_s, self._due_s)
        if self._running.tick_ends_s == math.inf:
            self._set_tick(self._running.at(self.loop.time()))

    def _set_tick(self, now: float) -> None:
        ends_s = self._running.start_tick(now, self._due_s)
        self.loop.call_at(ends_s, self._on_tick, context=self._timer_context)

    def _on_tick(self) -> None:
        """Measure how late the loop is, and expire the deadlines that have passed in its running time."""
        with self._lock:  # an abandoned request may refund in the midst of it, which adds to the queue
            now = self._running.end_tick(self.loop.time())
            self._shared_due_s = None
            if self._queue:  # also where a call was cancelled before it began
                self._schedule()
            if now + TICK_LEAST_S >= self._due_s:
                self._on_deadline(now)
            elif not self._queue and not self._batch_calls:
                self._due_s = math.inf
            if self._due_s < math.inf:
                self._set_tick(now)

    def _on_deadline(self, now: float) -> None:
        failed = self._expire(now + GRAIN_S)
        if failed and now >= self._next_report_s:
            # One silent server is one failure for each deadline, even if callers expire one by one.
            self._next_report_s = now + self.deadline_s / 2
            self._report(StoreErrorKind.TIMEOUT)
        self._due_s = self._next_due()

    def _expire(self, last: float) -> int:
        """Answer TIMEOUT to all callers that were due until ``last``; returns their number."""
        failed = _fail([future for _, future, due in self._queue if due <= last], StoreErrorKind.TIMEOUT)
        if failed:
            self._queue = [item for item in self._queue if item[1] is None or not item[1].done()]
        for call in self._batch_calls:
            past = [f for f, due in zip(call.futures, call.dues, strict=True) if due <= last]
            late = _fail(past, StoreErrorKind.TIMEOUT)
            call.has_timeouts = call.has_timeouts or late > 0
            failed += late
            if call.gives_up_s <= last and call.task is not None:
                call.is_abandoned = True
                call.gives_up_s = math.inf
                call.task.cancel()
        return failed

    def _next_due(self) -> float:
        """Return the earliest deadline; infinite without entries and calls."""
        waits = [(future, due) for _, future, due in self._queue]
        for call in self._batch_calls:
            waits += zip(call.futures, call.dues, strict=True)
        nexts = [due for future, due in waits if future is not None and not future.done()]
        return min([*nexts, *(call.gives_up_s for call in self._batch_calls)], default=math.inf)


def _fail(futures: Sequence[Reply | None], kind: StoreErrorKind) -> int:
    """Answer an error to all callers still waiting; returns their number."""
    failed = 0
    for future in futures:
        if future is not None and not future.done():
            future.set_result(kind)
            failed += 1
    return failed


def _by_tag(call: _BatchCall) -> list[tuple[Sequence[WindowEntry], Sequence[Reply | None]]]:
    parts: dict[int, list[tuple[WindowEntry, Reply | None]]] = {}
    for entry, future in zip(call.entries, call.futures, strict=True):
        parts.setdefault(entry.tag, []).append((entry, future))
    return [(entries, futures) for entries, futures in (zip(*part, strict=True) for part in parts.values())]
