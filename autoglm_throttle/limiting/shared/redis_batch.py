"""All decisions of one event-loop pass in one call, and at most two calls in flight.

What it costs a decision to travel alone is not the server but the client: some 50 microseconds of Python for
each command. Here a call carries all that have come up since the last one left: a busy service sends large
calls, an idle one sends at once, and there is no timer to tune. The only timer is that of the deadline.

It knows no limits and no Redis: a `Codec` makes entries into a call and a reply into answers, and a `Sender`
carries the calls.
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
"""Seconds: whose deadlines lie so close together have one."""

_Waiter: TypeAlias = "asyncio.Future[A | Trouble] | None"


class _Flight(Generic[E, A]):
    """What one round trip carries, as three columns, and until when."""

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
        """Loop time at which the call is given up, so that it does not keep its slot for ever."""
        self.task: asyncio.Task[None] | None = None
        self.trouble: Trouble | None = None
        """What is said of a call that was given up; None: nothing, for it is known already."""
        self.told = False
        """Whether somebody in it has been told that no answer came in time."""
        self.missed = False
        """Whether its answer came when all who waited had been told otherwise: it is no sign of health then.
        A server that always takes a little longer than the deadline would never be left alone."""

    def wanted(self) -> bool:
        """Whether nobody in it has been told otherwise."""
        return not self.told


class RedisBatch(Generic[E, A]):
    """The calls of one event loop. All methods belong to that loop's thread.

    Args:
        loop: the running loop.
        codec: how entries become calls.
        send: how calls become replies.
        rules: sizes and times.
        report: called once for each round trip and each firing of the deadline: None if it answered.
        read_s: seconds after which a call that is not answered is given up.
        split: whether entries of different tags need calls of their own.
    """

    def __init__(  # noqa: PLR0913 - the six things that a batch is made of
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
        """Loop time until which a request that begins now must have its answers."""
        return self.loop.time() + self._deadline_s

    def ask(self, entry: E, due: float | None = None) -> asyncio.Future[A | Trouble]:
        """Send an entry with the next call; the future always ends, and not with an exception.

        Args:
            entry: what to ask.
            due: what `due` gave when its request began, if this is not the first that it asks.
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
        """Send an entry that needs no answer; lost if too many wait already."""
        if len(self._queue) < self._most:
            self._queue.append((entry, None, math.inf))
            if self._next is None:
                self._schedule()

    def unheard(self, entry: E, future: asyncio.Future[A | Trouble]) -> None:
        """The caller of `ask` was cancelled: take back what the answer may already have granted."""
        if future.done() and not future.cancelled():
            self._took_back(entry, future.result())

    def abort(self) -> None:
        """Give up all calls, and tell all who wait that the store cannot be reached."""
        waiting, self._queue = self._queue, deque()
        for _, future, _ in waiting:
            if future is not None and not future.done():
                future.set_result(Trouble.UNREACHABLE)
        for flight in self._flights:
            if flight.task is not None:
                flight.task.cancel()

    def health(self) -> Health:
        """The counters; from any thread."""
        flights = list(self._flights)  # at once: the loop goes on meanwhile
        waiting = len(self._queue) + sum(len(flight.entries) for flight in flights)
        return Health(calls=self._calls, asked=self._asked, late=self._late, waiting=waiting)

    def _schedule(self) -> None:
        """Start a call at the next pass of the loop, so that all who ask in this one travel with it."""
        if len(self._flights) < self._in_flight:
            # Not by the loop's factory: an eager task would leave with the first who asks.
            self._next = asyncio.Task(self._fly(), loop=self.loop, context=self._context)
            self._tasks.add(self._next)
            self._next.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._next is task:  # cancelled before it began, by whoever cancels all tasks of a loop
            self._next = None

    def _board(self) -> _Flight[E, A] | None:
        """The next call, if anybody waits for one; and a task for the one after it."""
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
        """The oldest entries up to the most keys of a call, without those whose caller is gone."""
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
            # Who waited in vain has been reported; that nothing was sent since is the same silence.
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
        """Hand out the answers of one reply."""
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
        """A late reply: one whose deadline passed was decided without it, and may have run."""
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
        """Say a trouble to all who still wait; how many they were."""
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
        """The deadline of the oldest has come, unless the loop itself was held up."""
        now = self.loop.time()
        stalled = now - self._armed > STALL_S
        self._armed, self._timer = math.inf, None
        # After a stall only those are given up who have been spared once: the others' replies may be here.
        said = self._expire(now, self._spared if stalled else now + GRAIN_S)
        if said and now >= self._quiet_until:
            # One silence is one failure for each deadline, however many it hits one after the other.
            self._quiet_until = now + self._deadline_s / 2
            self._report(Trouble.TIMEOUT)
        if stalled:
            self._spared = now
        due = max(self._next_due(), now + GRACE_S if stalled else now)
        if due < self._armed:
            self._arm(due)

    def _expire(self, now: float, last: float) -> int:
        """Say TIMEOUT to all who were due until ``last``; how many they were."""
        queue = self._queue
        # A copy, and then one by one: at any call the garbage collector may run and end a forgotten request,
        # which gives units back.
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
        """Loop time at which something has to be looked at; infinite if nothing is under way."""
        nexts = [due for _, future, due in list(self._queue) if future is not None and not future.done()]
        for flight in self._flights:
            nexts.append(flight.loses)
            waits = zip(flight.futures, flight.dues, strict=True)
            nexts += [due for future, due in waits if future is not None and not future.done()]
        return min(nexts, default=math.inf)


def _all_told(futures: Sequence[_Waiter[A]]) -> bool:
    """Whether nobody waits any more, and not because all have left."""
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
