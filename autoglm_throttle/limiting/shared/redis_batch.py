"""Batches all checks of one event-loop iteration into one call, with at most two calls in flight.

The cost of a single check is not in the server but in the client: some 50 microseconds of Python for each
command. Here a call carries all checks that arrived since the last one was sent. A busy service sends large
calls, an idle one sends at once, and there is no batching delay. The only timer is that of the deadline.

It knows neither limits nor Redis. A `BatchCodec` encodes entries into calls and decodes replies into answers;
a `BatchSender` sends the calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeAlias

from autoglm_throttle.limiting.shared.batch_codec import A, E
from autoglm_throttle.limiting.shared.stall import GRACE_S, STALL_S
from autoglm_throttle.limiting.shared.store import Health, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoglm_throttle.limiting.shared.batch_codec import Codec, Sender
    from autoglm_throttle.limiting.shared.batch_rules import BatchRules

GRAIN_S: Final = 0.002
"""Seconds: deadlines that close together share one timer."""

_Waiter: TypeAlias = "asyncio.Future[A | Trouble] | None"


class _Flight(Generic[E, A]):
    """Entries of one round trip, as three columns, and its time limit."""

    __slots__ = ("dues", "entries", "futures", "loses", "missed", "task", "told", "trouble")

    def __init__(
        self,
        entries: Sequence[E],
        futures: Sequence[_Waiter[A]],
        dues: Sequence[float],
        loses: float,
    ) -> None:
        self.entries = entries
        self.futures = futures
        self.dues = dues
        self.loses = loses
        """Loop time at which the call is abandoned, so that it does not keep its slot forever."""
        self.task: asyncio.Task[None] | None = None
        self.trouble: Trouble | None = None
        """Error to report for an abandoned call; None: it is reported already."""
        self.told = False
        """Whether a caller in it has timed out."""
        self.missed = False
        """Whether its answer came after all callers had timed out: it is no sign of health then.
        A server that always takes a little longer than the deadline would otherwise never be left alone.
        """

    def wanted(self) -> bool:
        """Whether no caller in it has timed out."""
        return not self.told


class RedisBatch(Generic[E, A]):
    """The calls of one event loop. All methods belong to that loop's thread.

    Args:
        loop: the running loop.
        codec: encodes entries and decodes replies.
        sender: sends the calls.
        rules: sizes and times.
        report: called once for each round trip and each firing of the deadline: None if it answered.
        read_s: seconds after which an unanswered call is abandoned.
        split: whether entries of different tags need calls of their own.
    """

    def __init__(  # noqa: PLR0913 - the six parts of a batch
        self,
        loop: asyncio.AbstractEventLoop,
        codec: Codec[E, A],
        send: Sender,
        rules: BatchRules,
        report: Callable[[Trouble | None], None],
        *,
        read_s: float,
        split: bool,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self._codec = codec
        self._send = send
        self._rules = rules
        self._report = report
        self._read_s = read_s
        self._split = split
        self._deadline_s = rules.deadline_s
        self._most = rules.queue
        self._queue: deque[tuple[E, _Waiter[A], float]] = deque()
        self._flights: set[_Flight[E, A]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = rules.in_flight
        self._next: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed = math.inf
        self._quiet_until = -math.inf
        self._spared = -math.inf
        # Calls carry many callers: they run in no caller's context, and keep none alive.
        self._context = contextvars.Context()
        self._calls = 0
        self._asked = 0
        self._late = 0

    def __repr__(self) -> str:
        return f"RedisBatch({len(self._queue)} waiting, {len(self._flights)} in flight, {self._calls} calls)"

    def due(self) -> float:
        """Return the loop time by which a request that begins now must have its answers."""
        return self.loop.time() + self._deadline_s

    def ask(self, entry: E, due: float | None = None) -> asyncio.Future[A | Trouble]:
        """Send an entry with the next call; the future always ends, and not with an exception.

        Args:
            entry: the check.
            due: the value of `due` when its request began, if this is not its first check.
        """
        loop = self.loop
        future: asyncio.Future[A | Trouble] = loop.create_future()
        if len(self._queue) >= self._most:
            future.set_result(Trouble.QUEUE_FULL)
            return future
        if due is None:
            due = loop.time() + self._deadline_s
        elif due <= loop.time():
            future.set_result(Trouble.TIMEOUT)
            return future
        self._queue.append((entry, future, due))
        if self._next is None:
            self._schedule()
        if due < self._armed:
            self._arm(due)
        return future

    def tell(self, entry: E) -> None:
        """Send an entry that needs no answer; it is dropped if the queue is full."""
        if len(self._queue) < self._most:
            self._queue.append((entry, None, math.inf))
            if self._next is None:
                self._schedule()

    def unheard(self, entry: E, future: asyncio.Future[A | Trouble]) -> None:
        """Refund the possible grant of a cancelled caller of `request`."""
        if future.done() and not future.cancelled():
            self._took_back(entry, future.result())

    def abort(self) -> None:
        """Abandon all calls, and answer all callers that the store is unreachable."""
        waiting, self._queue = self._queue, deque()
        for _, future, _ in waiting:
            if future is not None and not future.done():
                future.set_result(Trouble.UNREACHABLE)
        for flight in self._flights:
            if flight.task is not None:
                flight.task.cancel()

    def health(self) -> Health:
        """Return the counters; from any thread."""
        flights = list(self._flights)  # a copy: the loop changes the set meanwhile
        waiting = len(self._queue) + sum(len(flight.entries) for flight in flights)
        return Health(calls=self._calls, asked=self._asked, late=self._late, waiting=waiting)

    def _schedule(self) -> None:
        """Start a call at the next iteration of the loop, so that all checks of this one share it."""
        if len(self._flights) < self._in_flight:
            # Not by the loop's factory: an eager task would start at once, with the first check alone.
            self._next = asyncio.Task(self._fly(), loop=self.loop, context=self._context)
            self._tasks.add(self._next)
            self._next.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._next is task:  # cancelled before it began, as when a loop's tasks are all cancelled
            self._next = None

    def _board(self) -> _Flight[E, A] | None:
        """Take the next call, if entries are queued, and schedule the one after it."""
        self._next = None
        taken = self._take()
        if not taken:
            return None
        entries, futures, dues = zip(*taken, strict=True)
        flight: _Flight[E, A] = _Flight(entries, futures, dues, self.loop.time() + self._read_s)
        flight.task = asyncio.current_task()
        self._flights.add(flight)
        if self._queue:
            self._schedule()
        if flight.loses < self._armed:
            self._arm(flight.loses)
        return flight

    def _take(self) -> list[tuple[E, _Waiter[A], float]]:
        """Pop the oldest entries up to the key limit of a call, without those of cancelled callers."""
        queue, most, keys = self._queue, self._rules.batch_keys, 0
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

    async def _fly(self) -> None:
        flight = self._board()
        if flight is None:
            return
        trouble: Trouble | None = Trouble.CONFUSED
        try:
            trouble = await self._carry(flight)
            # The callers' timeouts have been reported already; a call that was not sent is the same failure.
            if not flight.missed or trouble not in {None, Trouble.TIMEOUT}:
                self._report(trouble)
        except asyncio.CancelledError:
            trouble = Trouble.LOST
            if flight.trouble is not None:
                self._report(flight.trouble)
            raise
        finally:
            self._flights.discard(flight)
            self._fail(flight.futures, trouble or Trouble.CONFUSED)
            if self._queue and self._next is None:
                self._schedule()

    async def _carry(self, flight: _Flight[E, A]) -> Trouble | None:
        parts = _by_tag(flight) if self._split else ((flight.entries, flight.futures),)
        encode = self._codec.encode
        self._calls += 1
        self._asked += len(flight.futures) - flight.futures.count(None)
        replies = await self._send([encode(entries) for entries, _ in parts], flight.wanted)
        flight.missed = _all_told(flight.futures)
        worst: Trouble | None = None
        for (entries, futures), reply in zip(parts, replies, strict=True):
            worst = self._land(entries, futures, reply) or worst
        return worst

    def _land(self, entries: Sequence[E], futures: Sequence[_Waiter[A]], reply: object) -> Trouble | None:
        """Deliver the answers of one reply."""
        if isinstance(reply, Trouble):
            self._fail(futures, reply)
            return reply
        try:
            answers = self._codec.decode(reply, entries)
        except ValueError:
            self._fail(futures, Trouble.CONFUSED)
            return Trouble.CONFUSED
        for entry, future, answer in zip(entries, futures, answers, strict=True):
            if future is None:
                continue
            if not future.done():
                future.set_result(answer)
            else:
                self._nobody_waits(entry, future, answer)
        return None

    def _nobody_waits(self, entry: E, future: asyncio.Future[A | Trouble], answer: A | Trouble) -> None:
        """Handle a late reply: after its deadline the check was decided without it, and may have run."""
        if future.cancelled():
            self._took_back(entry, answer)
        else:
            self._late += 1

    def _took_back(self, entry: E, answer: A | Trouble) -> None:
        self._late += 1
        undo = None if isinstance(answer, Trouble) else self._codec.undo(entry, answer)
        if undo is not None:
            self.tell(undo)

    def _fail(self, futures: Sequence[_Waiter[A]], trouble: Trouble) -> int:
        """Answer an error to all callers still waiting; returns their number."""
        said = 0
        for future in futures:
            if future is not None and not future.done():
                future.set_result(trouble)
                said += 1
        return said

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = due
        self._timer = self.loop.call_at(due, self._tick, context=self._context)

    def _tick(self) -> None:
        """Expire the oldest deadline, unless the loop itself had stalled."""
        now = self.loop.time()
        stalled = now - self._armed > STALL_S
        self._armed, self._timer = math.inf, None
        # After a stall only callers expire that survived an earlier one: replies to the others may be here.
        said = self._expire(now, self._spared if stalled else now + GRAIN_S)
        if said and now >= self._quiet_until:
            # One silent server is one failure for each deadline, even if callers expire one after the other.
            self._quiet_until = now + self._deadline_s / 2
            self._report(Trouble.TIMEOUT)
        if stalled:
            self._spared = now
        due = max(self._next_due(), now + GRACE_S if stalled else now)
        if due < self._armed:
            self._arm(due)

    def _expire(self, now: float, last: float) -> int:
        """Answer TIMEOUT to all callers that were due until ``last``; returns their number."""
        queue = self._queue
        # A copy, and then one by one: at any call the garbage collector may settle a dropped request, and
        # its refund appends to this queue.
        said = self._fail([future for _, future, due in list(queue) if due <= last], Trouble.TIMEOUT)
        for _ in range(len(queue) if said else 0):
            item = queue.popleft()
            if item[1] is None or not item[1].done():
                queue.append(item)
        for flight in self._flights:
            past = [f for f, due in zip(flight.futures, flight.dues, strict=True) if due <= last]
            late = self._fail(past, Trouble.TIMEOUT)
            flight.told = flight.told or late > 0
            said += late
            if flight.loses <= min(now, last) and flight.task is not None:
                flight.trouble = Trouble.TIMEOUT
                flight.loses = math.inf
                flight.task.cancel()
        return said

    def _next_due(self) -> float:
        """Return the loop time of the next timer; infinite without entries and calls."""
        nexts = [due for _, future, due in list(self._queue) if future is not None and not future.done()]
        for flight in self._flights:
            nexts.append(flight.loses)
            waits = zip(flight.futures, flight.dues, strict=True)
            nexts += [due for future, due in waits if future is not None and not future.done()]
        return min(nexts, default=math.inf)


def _all_told(futures: Sequence[_Waiter[A]]) -> bool:
    """Whether no caller is waiting, and at least one of them has timed out."""
    told = False
    for future in futures:
        if future is not None:
            if not future.done():
                return False
            told = told or not future.cancelled()
    return told


def _by_tag(
    flight: _Flight[E, A],
) -> list[tuple[list[E], list[_Waiter[A]]]]:
    parts: dict[int, tuple[list[E], list[_Waiter[A]]]] = {}
    for entry, future in zip(flight.entries, flight.futures, strict=True):
        entries, futures = parts.setdefault(entry.tag, ([], []))
        entries.append(entry)
        futures.append(future)
    return list(parts.values())
