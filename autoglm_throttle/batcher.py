"""Adaptive micro-batching for models called in process: many submitted items, one call of the model.

Only asyncio; one event loop at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar, cast

from autoglm_throttle._runtime import weak_method
from autoglm_throttle._runtime.fork import rebuild_after_fork
from autoglm_throttle.control.batch_size import BatchSize
from autoglm_throttle.limiting.batch_queue import BatchItem, ItemQueue
from autoglm_throttle.resilience.single_flight import copy_exception
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import BatcherView, Clock, GpuCondition, Priority, ThrottleError

T = TypeVar("T")
R = TypeVar("R")

WAIT_SHARE: Final = 0.1  # share of the objective that a batch may wait for further items
IDLE_S: Final = 1.0  # after so long without an item the next one waits for no other
GAP_WEIGHT: Final = 0.1  # weight of the newest gap in the mean between two arrivals
NEAR_MEMORY_TARGET: Final = 0.95  # share of `gpu_memory_target` above which batches do not grow


class QueueFull(ThrottleError):
    """The queue is full, and no item of a lower priority waits in it."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue of the batcher is full; retry in {retry_after_s:.3g} s")
        self.retry_after_s: float = retry_after_s
        """Predicted seconds until the present queue has run."""


class TooLate(ThrottleError):
    """An item was dropped before it ran: its batch would have ended after its deadline."""


class BatcherClosed(ThrottleError):
    """The batcher accepts no more items, or was closed before an item ran."""


class BatchContractError(ThrottleError):
    """The function of a batcher returned another number of results than it was given items."""


_Entry = tuple[T, "asyncio.Future[R]"]


class AdaptiveBatcher(Generic[T, R]):
    """Runs submitted items in batches whose size follows a latency objective.

    A batch starts when it is full, when its oldest item has waited ``0.1 * slo_s`` or ``max_wait_s``, when no
    further item is expected within that time, or when a deadline comes near. While batches run, items gather.
    Items are taken by priority, then by deadline, then by arrival; one that has waited for half of the time
    to its deadline is taken first.
    An item whose batch would end after its deadline is dropped before it runs.

    Args:
        run: given a list of items, returns as many results in the same order; an exception among them goes to
            the caller of its item alone. A coroutine function runs in the event loop, another in a thread.
        slo_s: objective for the 95th percentile from submission to result, s, above 0.
        max_cost: the largest cost of a batch, at least 1; an item that costs more runs alone.
        max_wait_s: longest wait for further items, s, at least 0.
        max_queue: items that may wait, at least 1.
        concurrency: batches that run at the same time, at least 1.
        throttle: its GPU telemetry bounds the size: batches shrink above ``gpu_memory_target``, and grow
            twice as fast while a device is underfed. Its metrics and its snapshot include the batcher.
        name: label in these metrics; one for each batcher of a throttle.
        clock: monotonic seconds.

    Raises:
        ValueError: with every argument that is out of range, or for a name that the throttle knows already.
    """

    def __init__(  # noqa: PLR0913 - one argument for each property
        self,
        run: Callable[[list[T]], Sequence[R | BaseException]]
        | Callable[[list[T]], Awaitable[Sequence[R | BaseException]]],
        *,
        slo_s: float,
        max_cost: float = 32.0,
        max_wait_s: float = 0.010,
        max_queue: int = 1024,
        concurrency: int = 1,
        throttle: Throttle | None = None,
        name: str = "model",
        clock: Clock = time.monotonic,
    ) -> None:
        given = {"slo_s": slo_s, "max_cost": max_cost, "max_wait_s": max_wait_s}
        faults = [
            f"{name} must be finite: {value!r}" for name, value in given.items() if not math.isfinite(value)
        ]
        faults += ["slo_s must be above 0"] * (slo_s <= 0.0) + ["max_cost must be at least 1"] * (
            max_cost < 1.0
        )
        faults += ["max_wait_s must be at least 0"] * (max_wait_s < 0.0)
        faults += ["max_queue must be at least 1"] * (max_queue < 1)
        faults += ["concurrency must be at least 1"] * (concurrency < 1)
        if faults:
            raise ValueError("; ".join(faults))
        self.slo_s: float = slo_s
        self._run = run
        self._is_async = inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(
            getattr(run, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        self._max_cost, self._max_queue, self._concurrency = max_cost, max_queue, concurrency
        self._wait_s = min(max_wait_s, WAIT_SHARE * slo_s)
        self._throttle = throttle
        self._clock = clock
        self.name: str = name
        self._begin()
        if throttle is not None:
            other = throttle.batchers.get(name)
            if other is not None and other() is not None:
                raise ValueError(f"the throttle has a batcher of the name {name!r} already")
            throttle.batchers[name] = weak_method(self.view)
        rebuild_after_fork(self, AdaptiveBatcher._begin)

    def _begin(self) -> None:
        """Start without items: at construction, and anew in a forked child."""
        self._queue: ItemQueue[_Entry[T, R]] = ItemQueue(self._max_queue)
        self._size = BatchSize(self.slo_s, self._max_cost, self._wait_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = self._is_scheduled = False
        self._arrived_s = -math.inf
        self._gap_s = math.inf  # mean seconds between two arrivals
        self._batches = self._failed = self._items = self._full = self._late = 0
        self._cost = self._run_s = self._waited_s = 0.0

    async def submit(
        self, item: T, priority: Priority = Priority.MID, cost: float = 1.0, deadline_s: float | None = None
    ) -> R:
        """Run an item in a batch, and return its result.

        A cancelled caller's item leaves the queue at once; one that runs already is not interrupted.

        Args:
            item: passed to the function of the batcher.
            priority: the more important items are taken first.
            cost: weight of the item in a batch, above 0.
            deadline_s: seconds from now after which the result is of no use; None: ``slo_s``.

        Raises:
            QueueFull: the queue is full.
            TooLate: it could not have ended before its deadline.
            BatcherClosed: the batcher was closed.
            BatchContractError: the function returned a wrong number of results.
            ValueError: ``cost`` or ``deadline_s`` is not above 0 and finite.
            RuntimeError: items of another running event loop wait or run.
            Exception: raised by the function for the batch, or returned for this item.
        """
        within_s = self.slo_s if deadline_s is None else deadline_s
        if not (0.0 < cost < math.inf and 0.0 < within_s < math.inf):
            raise ValueError(f"cost and deadline_s must be above 0 and finite: {cost!r}, {within_s!r}")
        loop = self._bind()
        now = self._clock()
        gap_s, self._arrived_s = now - self._arrived_s, now
        if gap_s >= IDLE_S:
            self._gap_s = math.inf
        else:
            mean_s = gap_s if self._gap_s == math.inf else self._gap_s
            self._gap_s = mean_s + GAP_WEIGHT * (gap_s - mean_s)
        future: asyncio.Future[R] = loop.create_future()
        waiting = BatchItem((item, future), priority, cost, now, now + within_s)
        evicted = self._queue.push(waiting)
        if evicted is not None:
            self._full += 1
            _fail(evicted, QueueFull(self._retry_after_s()))
        if len(self._tasks) < self._concurrency:
            self._start_soon()
        try:
            return await future
        except asyncio.CancelledError:
            self._queue.remove(waiting)
            raise

    async def aclose(self, drain_s: float = 5.0) -> None:
        """Accept no more items, run what waits for ``drain_s`` at most, then cancel the rest. Idempotent.

        A function that runs in a thread is not interrupted, but its results are no longer delivered.
        """
        self._is_closed = True
        loop = asyncio.get_running_loop()
        if loop is self._loop and (self._tasks or len(self._queue)):
            self._idle = loop.create_future()
            self._start_soon()
            await asyncio.wait([self._idle], timeout=drain_s)
            for item in self._queue.clear():
                _fail(item, BatcherClosed("the batcher was closed before this item ran"))
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def view(self) -> BatcherView:
        """Return the present state and the counters."""
        size, queue = self._size, self._queue
        return BatcherView(
            name=self.name,
            target=size.target,
            waiting=len(queue),
            waiting_cost=queue.cost,
            running=len(self._tasks),
            batches=self._batches,
            failed=self._failed,
            items=self._items,
            cost=self._cost,
            run_s=self._run_s,
            wait_s=self._waited_s,
            full=self._full,
            late=self._late,
            p95_s=size.p95_s,
            per_cost_s=size.model.per_cost_s,
            fixed_s=size.model.fixed_s,
        )

    def _bind(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop. Items of one that was closed are forgotten with it."""
        if self._is_closed:
            raise BatcherClosed("the batcher is closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed() and (self._tasks or len(self._queue)):
                raise RuntimeError("a batcher serves one event loop: items of another one wait or run")
            self._loop, self._timer, self._is_scheduled = loop, None, False
            self._tasks.clear()
            self._queue.clear()
        return loop

    def _retry_after_s(self) -> float:
        batches = math.ceil(self._queue.cost / self._size.target / self._concurrency)
        return batches * self._size.model.predict(self._size.target) or self.slo_s

    def _start_soon(self) -> None:
        # Not now: items that are submitted in the same iteration of the event loop are taken together.
        if not self._is_scheduled:
            self._is_scheduled = True
            cast("asyncio.AbstractEventLoop", self._loop).call_soon(self._start)

    def _start(self) -> None:
        """Start every batch that is due, and set the timer for the next one."""
        loop = cast("asyncio.AbstractEventLoop", self._loop)
        self._is_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while len(self._tasks) < self._concurrency and len(self._queue):
            now = self._clock()
            due_s = self._due_s(now)
            if due_s > now:
                self._timer = loop.call_later(due_s - now, self._start)
                return
            batch, late = self._queue.take(self._size.target, now, self._size.model.predict_upper)
            self._late += len(late)
            for item in late:
                _fail(item, TooLate("it would have ended after its deadline"))
            if batch:
                task = loop.create_task(self._run_batch(batch, now))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
        if self._idle is not None and not self._tasks and not self._idle.done():
            self._idle.set_result(None)

    def _due_s(self, now: float) -> float:
        """Return the time at which the next batch starts if nothing else happens."""
        queue, target = self._queue, self._size.target
        due_s = queue.oldest_s() + self._wait_s
        if self._is_closed or queue.cost >= target or due_s - now < self._gap_s:
            return now
        return min(
            due_s, queue.earliest_deadline_s() - self._size.model.predict_upper(min(target, queue.cost))
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start_soon()

    async def _run_batch(self, batch: list[BatchItem[_Entry[T, R]]], began_s: float) -> None:
        try:
            results = await self._call([item.payload[0] for item in batch])
        except asyncio.CancelledError:
            for item in batch:
                _fail(item, BatcherClosed("the batch of this item was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - each caller gets it
            self._record_failure(batch, error)
            return
        self._record(batch, began_s, self._clock())
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                _fail(item, result)
            elif not item.payload[1].done():
                item.payload[1].set_result(result)

    def _record(self, batch: list[BatchItem[_Entry[T, R]]], began_s: float, now: float) -> None:
        cost, run_s = math.fsum(item.cost for item in batch), now - began_s
        self._batches += 1
        self._items += len(batch)
        self._cost += cost
        self._run_s += run_s
        self._waited_s += math.fsum(began_s - item.arrived_s for item in batch)
        latencies_s = [now - item.arrived_s for item in batch]
        growth, is_full = self._memory()
        self._size.record(cost, run_s, latencies_s, now, growth=growth, is_memory_full=is_full)

    def _record_failure(self, batch: list[BatchItem[_Entry[T, R]]], error: Exception) -> None:
        self._batches += 1
        self._failed += 1
        if _is_out_of_memory(error):
            self._size.record_out_of_memory(self._clock())
        for item in batch:
            _fail(item, copy_exception(error, error.__traceback__))

    async def _call(self, items: list[T]) -> Sequence[R | BaseException]:
        run: Callable[[list[T]], Any] = self._run
        if self._is_async:
            results = await run(items)
        else:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._concurrency, "autoglm-throttle-batcher")
            results = await asyncio.get_running_loop().run_in_executor(self._executor, run, items)
        if len(results) != len(items):
            raise BatchContractError(f"{len(results)} results for {len(items)} items")
        return cast("Sequence[R | BaseException]", results)

    def _memory(self) -> tuple[float, bool]:
        """Return the multiple of the usual growth that the devices allow, and whether memory is full."""
        view = None if self._throttle is None else self._throttle.control.gpu_view
        if view is None or self._throttle is None:
            return 1.0, False
        target, fill = self._throttle.settings.gpu.gpu_memory_target, view.memory_ratio or 0.0
        if fill > NEAR_MEMORY_TARGET * target:
            return 0.0, fill > target
        is_underfed = any(one.condition is GpuCondition.UNDERFED for one in view.verdicts.values())
        return (2.0 if is_underfed else 1.0), False


def _fail(item: BatchItem[_Entry[Any, Any]], error: BaseException) -> None:
    future = item.payload[1]
    if not future.done():
        future.set_exception(error)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the model ran out of memory: PyTorch, JAX and ONNX Runtime have an error class or text each."""
    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, MemoryError) or any(
        each in text
        for each in ("out of memory", "outofmemory", "resource_exhausted", "failed to allocate memory")
    )
