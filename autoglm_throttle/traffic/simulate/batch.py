"""Static batching: one batch at a time, everything in it ends together."""

from __future__ import annotations

from collections import deque

from autoglm_throttle.traffic.simulate.spec import BatchSpec, Item


class BatchEngine:
    """The work of a device in batch mode. Pure: time is passed in."""

    def __init__(self, spec: BatchSpec) -> None:
        self._spec = spec
        self._queue: deque[Item] = deque()
        self._running: list[Item] = []
        self.ends_s: float | None = None
        """When the running batch ends; None while idle."""

    @property
    def resident(self) -> int:
        """Requests inside, waiting or running."""
        return len(self._queue) + len(self._running)

    @property
    def queued(self) -> int:
        """Requests that wait."""
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
        """Let an item wait for the next batch."""
        self._queue.append(item)

    def begin(self, now: float, slowness: float) -> bool:
        """Start a batch of what waits; False if nothing waits."""
        if not self._queue:
            return False
        size = min(len(self._queue), self._spec.max_batch)
        self._running = [self._queue.popleft() for _ in range(size)]
        self.ends_s = now + slowness * (self._spec.base_s + size * self._spec.per_item_s)
        return True

    def finish(self) -> list[Item]:
        """The batch is over: its items."""
        ended, self._running, self.ends_s = self._running, [], None
        return ended

    def delay(self, _now: float, by_s: float) -> None:
        """What runs now ends later."""
        if self.ends_s is not None:
            self.ends_s += by_s

    def cut(self, _now: float) -> None:
        """A batch cannot be cut short: a new speed holds from the next one on."""

    def drop(self, item_id: int, _now: float) -> bool:
        """Take out an item that waits; False if there is none: a batch that runs is not cut."""
        waiting = [item for item in self._queue if item.id != item_id]
        found = len(waiting) < len(self._queue)
        if found:
            self._queue = deque(waiting)
        return found

    def generated(self, _id: int, _now: float) -> int:
        """No tokens in this mode."""
        return 0

    def clear(self) -> list[Item]:
        """Drop everything inside and say what it was."""
        lost = [*self._running, *self._queue]
        self._queue.clear()
        self.finish()
        return lost
