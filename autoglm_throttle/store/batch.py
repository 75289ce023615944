"""Batches all checks of one event-loop iteration into one call, with at most two calls in flight.

The cost of a single check is not in the server but in the client: some 50 microseconds of Python for each
command. Here a call carries all checks that arrived since the last one was sent. A busy service sends large
calls, an idle one sends at once, and there is no batching delay. The only timer is that of the deadline.

It knows neither limits nor Redis: its `BatchTransport` encodes entries, sends calls and decodes replies.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeAlias

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.store.batch_codec import A, E
from autoglm_throttle.store.user_limit_store import StoreErrorKind, StoreStats
from autoglm_throttle.types import STALL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.batch_codec import BatchTransport

GRACE_S: Final = 0.010
"""Seconds for reading replies after a stall. Without it, stalls of 100 and 200 ms made up to 10
of 10 decisions time out with the reply already in the socket; with it, 0 of 240.
"""

GRAIN_S: Final = 0.002
"""Seconds: deadlines that close together share one timer."""

_Waiter: TypeAlias = "asyncio.Future[A | StoreErrorKind] | None"


class _BatchCall(Generic[E, A]):
    """Entries of one round trip, as three columns, and its time limit."""

    __slots__ = ("dues", "entries", "error_kind", "futures", "gives_up_s", "has_timeouts", "missed", "task")

    def __init__(
        self,
        entries: Sequence[E],
        futures: Sequence[_Waiter[A]],
        dues: Sequence[float],
        gives_up_s: float,
    ) -> None:
        self.entries = entries
        self.futures = futures
        self.dues = dues
        self.gives_up_s = gives_up_s
        """Loop time at which the call is abandoned, so that it does not keep its slot forever."""
        self.task: asyncio.Task[None] | None = None
        self.error_kind: StoreErrorKind | None = None
        """Error to report for an abandoned call; None: it is reported already."""
        self.has_timeouts = False
        """Whether a caller in it has timed out."""
        self.missed = False
        """Whether its answer came after all callers had timed out: it is no sign of health then.
        A server that always takes a little longer than the deadline would otherwise never be left alone.
        """

    def wanted(self) -> bool:
        """Whether no caller in it has timed out."""
        return not self.has_timeouts


class _DeadlineTimer:
    """One timer, for the earliest of all deadlines of a loop."""

    __slots__ = ("_handle", "_loop", "_on_due", "due_s", "last_stall_s", "next_report_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._handle: asyncio.TimerHandle | None = None
        self.due_s: float = math.inf
        """Loop time at which it fires; infinite: never."""
        self.last_stall_s: float = -math.inf
        """Loop time at which the loop itself was late."""
        self.next_report_s: float = -math.inf
        """Loop time until which expired deadlines are not reported again."""

    def arm(self, due_s: float) -> None:
        """Fire at ``due_s`` instead of later."""
        if self._handle is not None:
            self._handle.cancel()
        self.due_s = due_s
        self._handle = self._loop.call_at(due_s, self._on_due, context=contextvars.Context())

    def disarm(self, now: float) -> bool:
        """Record that it has fired; True if the loop itself had stalled."""
        stalled = now - self.due_s > STALL_S
        self.due_s, self._handle = math.inf, None
        return stalled


@dataclass(slots=True)
class _BatchCounts:
    """Counters of a batch; they only grow."""

    calls: int = 0
    sent: int = 0
    late: int = 0


class RedisBatch(Generic[E, A]):
    """The calls of one event loop. All methods but `stats` are called by that loop's tasks and callbacks.

    Calls carry many callers: they run in no caller's context, and keep none alive.

    Args:
        loop: the running loop.
        transport: encodes entries, sends calls and decodes replies.
        settings: sizes and times.
        report: called once for each round trip and each firing of the deadline: None if it answered.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: BatchTransport[E, A],
        settings: StoreSettings,
        report: Callable[[StoreErrorKind | None], None],
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.transport: BatchTransport[E, A] = transport
        self.deadline_s: float = settings.redis_deadline_s
        """Seconds from a request to its answer, with or without the store."""
        # Plain attributes: they are read for each call, and an attribute of a pydantic model takes longer.
        self._queue_max = settings.redis_queue
        self._calls_max = settings.redis_in_flight
        self._keys_max = settings.redis_batch_keys
        self._read_s = settings.redis_read_s
        self.timer: _DeadlineTimer = _DeadlineTimer(loop, self._tick)
        self._report = report
        self._lock = SerialLock()
        self._queue: deque[tuple[E, _Waiter[A], float]] = deque()
        self._batch_calls: set[_BatchCall[E, A]] = set()
        self._next: asyncio.Task[None] | None = None
        self._counts = _BatchCounts()

    def __repr__(self) -> str:
        waiting, in_flight = len(self._queue), len(self._batch_calls)
        return f"RedisBatch({waiting} waiting, {in_flight} in flight, {self._counts.calls} calls)"

    def due(self) -> float:
        """Return the loop time by which a request that begins now must have its answers."""
        return self.loop.time() + self.deadline_s

    def request(self, entry: E, due: float | None = None) -> asyncio.Future[A | StoreErrorKind]:
        """Send an entry with the next call; the future always ends, and not with an exception.

        Args:
            entry: the check.
            due: the value of `due` when its request began, if this is not its first check.
        """
        loop = self.loop
        future: asyncio.Future[A | StoreErrorKind] = loop.create_future()
        if len(self._queue) >= self._queue_max:
            future.set_result(StoreErrorKind.QUEUE_FULL)
            return future
        if due is None:
            due = loop.time() + self.deadline_s
        elif due <= loop.time():
            future.set_result(StoreErrorKind.TIMEOUT)
            return future
        self._queue.append((entry, future, due))
        if self._next is None:
            self._schedule()
        if due < self.timer.due_s:
            self.timer.arm(due)
        return future

    def send_oneway(self, entry: E) -> None:
        """Send an entry that needs no answer; it is dropped if the queue is full."""
        self._lock.run(lambda: self._append_oneway(entry))

    def _append_oneway(self, entry: E) -> None:
        if len(self._queue) < self._queue_max:
            self._queue.append((entry, None, math.inf))
            if self._next is None:
                self._schedule()

    def caller_cancelled(self, entry: E, future: asyncio.Future[A | StoreErrorKind]) -> None:
        """Refund the possible grant of a cancelled caller of `request`."""
        if future.done() and not future.cancelled():
            self._take_cancelled(entry, future.result())

    def abort(self) -> None:
        """Abandon all calls, and answer all callers that the store is unreachable."""
        waiting, self._queue = self._queue, deque()
        for _, future, _ in waiting:
            if future is not None and not future.done():
                future.set_result(StoreErrorKind.UNREACHABLE)
        for call in self._batch_calls:
            if call.task is not None:
                call.task.cancel()

    def stats(self) -> StoreStats:
        """Return the counters; from any thread."""
        batch_calls = list(self._batch_calls)  # a copy: the loop changes the set meanwhile
        waiting = len(self._queue) + sum(len(call.entries) for call in batch_calls)
        counts = self._counts
        return StoreStats(calls=counts.calls, sent=counts.sent, late=counts.late, waiting=waiting)

    def _schedule(self) -> None:
        """Start a call at the next iteration of the loop, so that all checks of this one share it."""
        if len(self._batch_calls) < self._calls_max:
            # Not by the loop's factory: an eager task would start at once, with the first check alone.
            self._next = asyncio.Task(self._send(), loop=self.loop, context=contextvars.Context())
            self._next.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._next is task:  # cancelled before it began, as when a loop's tasks are all cancelled
            self._next = None

    def _take(self) -> _BatchCall[E, A] | None:
        """Take the next call, if entries are queued, and schedule the one after it."""
        self._next = None
        taken = self._pop_entries()
        if not taken:
            return None
        entries, futures, dues = zip(*taken, strict=True)
        call: _BatchCall[E, A] = _BatchCall(entries, futures, dues, self.loop.time() + self._read_s)
        call.task = asyncio.current_task()
        self._batch_calls.add(call)
        if self._queue:
            self._schedule()
        if call.gives_up_s < self.timer.due_s:
            self.timer.arm(call.gives_up_s)
        return call

    def _pop_entries(self) -> list[tuple[E, _Waiter[A], float]]:
        """Pop the oldest entries up to the key limit of a call, without those of cancelled callers."""
        queue, most, keys = self._queue, self._keys_max, 0
        taken: list[tuple[E, _Waiter[A], float]] = []
        while queue:
            item = queue[0]
            if item[1] is not None and item[1].done():
                queue.popleft()
                continue
            keys += len(item[0].keys)
            if keys > most and taken:
                break
            taken.append(queue.popleft())
        return taken

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
            if call.error_kind is not None:
                self._report(call.error_kind)
            raise
        finally:
            self._batch_calls.discard(call)
            self._fail(call.futures, kind or StoreErrorKind.CONFUSED)
            if self._queue and self._next is None:
                self._schedule()

    async def _exchange(self, call: _BatchCall[E, A]) -> StoreErrorKind | None:
        transport = self.transport
        parts = _by_tag(call) if transport.split else ((call.entries, call.futures),)
        self._counts.calls += 1
        self._counts.sent += len(call.futures) - call.futures.count(None)
        encode = transport.codec.encode
        replies = await transport.sender([encode(entries) for entries, _ in parts], call.wanted)
        call.missed = _all_timed_out(call.futures)
        worst: StoreErrorKind | None = None
        for (entries, futures), reply in zip(parts, replies, strict=True):
            worst = self._deliver(entries, futures, reply) or worst
        return worst

    def _deliver(
        self, entries: Sequence[E], futures: Sequence[_Waiter[A]], reply: object
    ) -> StoreErrorKind | None:
        """Deliver the answers of one reply."""
        if isinstance(reply, StoreErrorKind):
            self._fail(futures, reply)
            return reply
        try:
            answers = self.transport.codec.decode(reply, entries)
        except ValueError:
            self._fail(futures, StoreErrorKind.CONFUSED)
            return StoreErrorKind.CONFUSED
        for entry, future, answer in zip(entries, futures, answers, strict=True):
            if future is None:
                continue
            if not future.done():
                future.set_result(answer)
            else:
                self._on_late_reply(entry, future, answer)
        return None

    def _on_late_reply(
        self, entry: E, future: asyncio.Future[A | StoreErrorKind], answer: A | StoreErrorKind
    ) -> None:
        """Handle a late reply: after its deadline the check was decided without it, and may have run."""
        if future.cancelled():
            self._take_cancelled(entry, answer)
        else:
            self._counts.late += 1

    def _take_cancelled(self, entry: E, answer: A | StoreErrorKind) -> None:
        self._counts.late += 1
        undo = None if isinstance(answer, StoreErrorKind) else self.transport.codec.undo(entry, answer)
        if undo is not None:
            self.send_oneway(undo)

    def _fail(self, futures: Sequence[_Waiter[A]], kind: StoreErrorKind) -> int:
        """Answer an error to all callers still waiting; returns their number."""
        failed = 0
        for future in futures:
            if future is not None and not future.done():
                future.set_result(kind)
                failed += 1
        return failed

    def _tick(self) -> None:
        """Expire the oldest deadline, unless the loop itself had stalled."""
        with self._lock:  # an abandoned request may refund in the midst of it, which adds to the queue
            self._expire_due()

    def _expire_due(self) -> None:
        timer, now = self.timer, self.loop.time()
        stalled = timer.disarm(now)
        # After a stall only callers expire that survived an earlier one: replies to the others may be here.
        failed = self._expire(now, timer.last_stall_s if stalled else now + GRAIN_S)
        if failed and now >= timer.next_report_s:
            # One silent server is one failure for each deadline, even if callers expire one after the other.
            timer.next_report_s = now + self.deadline_s / 2
            self._report(StoreErrorKind.TIMEOUT)
        if stalled:
            timer.last_stall_s = now
        due = max(self._next_due(), now + GRACE_S if stalled else now)
        if due < timer.due_s:
            timer.arm(due)

    def _expire(self, now: float, last: float) -> int:
        """Answer TIMEOUT to all callers that were due until ``last``; returns their number."""
        failed = self._fail([future for _, future, due in self._queue if due <= last], StoreErrorKind.TIMEOUT)
        if failed:
            self._queue = deque(item for item in self._queue if item[1] is None or not item[1].done())
        for call in self._batch_calls:
            past = [f for f, due in zip(call.futures, call.dues, strict=True) if due <= last]
            late = self._fail(past, StoreErrorKind.TIMEOUT)
            call.has_timeouts = call.has_timeouts or late > 0
            failed += late
            if call.gives_up_s <= min(now, last) and call.task is not None:
                call.error_kind = StoreErrorKind.TIMEOUT
                call.gives_up_s = math.inf
                call.task.cancel()
        return failed

    def _next_due(self) -> float:
        """Return the loop time of the next timer; infinite without entries and calls."""
        nexts = [due for _, future, due in self._queue if future is not None and not future.done()]
        for call in self._batch_calls:
            nexts.append(call.gives_up_s)
            waits = zip(call.futures, call.dues, strict=True)
            nexts += [due for future, due in waits if future is not None and not future.done()]
        return min(nexts, default=math.inf)


def _all_timed_out(futures: Sequence[_Waiter[A]]) -> bool:
    """Whether no caller is waiting, and at least one of them has timed out."""
    timed_out = False
    for future in futures:
        if future is not None:
            if not future.done():
                return False
            timed_out = timed_out or not future.cancelled()
    return timed_out


def _by_tag(
    call: _BatchCall[E, A],
) -> list[tuple[list[E], list[_Waiter[A]]]]:
    parts: dict[int, tuple[list[E], list[_Waiter[A]]]] = {}
    for entry, future in zip(call.entries, call.futures, strict=True):
        entries, futures = parts.setdefault(entry.tag, ([], []))
        entries.append(entry)
        futures.append(future)
    return list(parts.values())
