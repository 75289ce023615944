"""Static batching: one batch at a time; all its requests end together."""

from __future__ import annotations

from collections import deque

from autoglm_throttle.traffic.simulate.spec import BatchSpec, Item


class BatchEngine:
    """Models the work of a device in batch mode. Pure: time is passed in."""

    def __init__(self, spec: BatchSpec) -> None:
        self._spec = spec
        self._queue: deque[Item] = deque()
        self._running: list[Item] = []
        self.ends_s: float | None = None
        """End of the running batch; None while idle."""

    @property
    def resident(self) -> int:
        """Requests on the device, queued or running."""
        return len(self._queue) + len(self._running)

    @property
    def queued(self) -> int:
        """Queued requests."""
        return len(self._queue)

    @property
    def fill(self) -> float:
        """Running requests as a share of the largest batch."""
        return len(self._running) / self._spec.max_batch

    @property
    def kv_used(self) -> int:
        """No tokens in this mode."""
        return 0

    def fits(self, _item: Item) -> bool:
        """Whether the item could run on the empty device: always."""
        return True

    def add(self, item: Item, _now: float) -> None:
        """Queue an item for the next batch."""
        self._queue.append(item)

    def begin(self, now: float, slowness: float) -> bool:
        """Start a batch of queued items; False if the queue is empty."""
        if not self._queue:
            return False
        size = min(len(self._queue), self._spec.max_batch)
        self._running = [self._queue.popleft() for _ in range(size)]
        self.ends_s = now + slowness * (self._spec.base_s + size * self._spec.per_item_s)
        return True

    def finish(self) -> list[Item]:
        """End the batch and return its items."""
        ended, self._running, self.ends_s = self._running, [], None
        return ended

    def delay(self, _now: float, by_s: float) -> None:
        """Postpone the end of the running batch."""
        if self.ends_s is not None:
            self.ends_s += by_s

    def truncate(self, _now: float) -> None:
        """Do nothing: a batch cannot be shortened; a new speed holds from the next one on."""

    def drop(self, item_id: int, _now: float) -> bool:
        """Remove a queued item; False if it is not queued. A running batch is not shortened."""
        waiting = [item for item in self._queue if item.id != item_id]
        removed = len(waiting) < len(self._queue)
        if removed:
            self._queue = deque(waiting)
        return removed

    def generated(self, _id: int, _now: float) -> int:
        """No tokens in this mode."""
        return 0

    def clear(self) -> list[Item]:
        """Remove all items and return them."""
        lost = [*self._running, *self._queue]
        self._queue.clear()
        self.finish()
        return lost
