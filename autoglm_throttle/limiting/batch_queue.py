"""Queue of items that wait for a batch: bounded, by priority, then by deadline, then by arrival."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from autoglm_throttle.types import Priority

T = TypeVar("T")

AGED_SHARE: Final = 0.5  # share of the time to its deadline after which an item may pass more important ones


class BatchItem(Generic[T]):
    """An item with its cost, priority and times."""

    __slots__ = ("arrived_s", "cost", "deadline_s", "number", "payload", "priority")

    def __init__(
        self, payload: T, priority: Priority, cost: float, arrived_s: float, deadline_s: float
    ) -> None:
        self.payload: T = payload
        self.priority: Priority = priority
        self.cost: float = cost
        self.arrived_s: float = arrived_s
        """Monotonic time of submission."""
        self.deadline_s: float = deadline_s
        """Monotonic time at which the result is of no more use."""
        self.number: int = 0
        """Position in the order of arrival."""


class ItemQueue(Generic[T]):
    """Holds at most ``max_items`` items. A full queue evicts the newest one of the lowest priority.

    An item that has waited for half of the time to its deadline is taken first, whatever its priority, but
    only one for each batch: so no class starves, and no batch is filled with less important items.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._number = 0
        # Items by number, in order of arrival; an entry of a heap without its item was removed.
        self._items: list[dict[int, BatchItem[T]]] = [{} for _ in Priority]
        self._heaps: list[list[tuple[float, int]]] = [[] for _ in Priority]
        self.cost: float = 0.0
        """Sum of the costs of all waiting items."""

    def __len__(self) -> int:
        return sum(map(len, self._items))

    def push(self, item: BatchItem[T]) -> BatchItem[T] | None:
        """Add an item. If the queue is full, return the evicted one, which may be the item itself."""
        evicted = None
        if len(self) >= self._max_items:
            lowest = max(priority for priority, items in enumerate(self._items) if items)
            if lowest <= item.priority:
                return item
            evicted = self._items[lowest][next(reversed(self._items[lowest]))]
            self.remove(evicted)
        self._number += 1
        item.number = self._number
        self._items[item.priority][item.number] = item
        heappush(self._heaps[item.priority], (item.deadline_s, item.number))
        self.cost += item.cost
        return evicted

    def remove(self, item: BatchItem[T]) -> bool:
        """Remove an item; return whether it was waiting."""
        if self._items[item.priority].pop(item.number, None) is None:
            return False
        self.cost = self.cost - item.cost if len(self) else 0.0  # 0.0: rounding errors do not add up
        return True

    def clear(self) -> list[BatchItem[T]]:
        """Remove and return all items."""
        items = [item for waiting in self._items for item in waiting.values()]
        for item in items:
            self.remove(item)
        return items

    def oldest_s(self) -> float:
        """Return the time of arrival of the item that has waited longest; ``inf`` if none waits."""
        return min((item.arrived_s for item in self._oldest()), default=math.inf)

    def earliest_deadline_s(self) -> float:
        """Return the earliest deadline of all waiting items; ``inf`` if none waits."""
        return min((item.deadline_s for item in self._first()), default=math.inf)

    def take(
        self, target: float, now: float, predict: Callable[[float], float]
    ) -> tuple[list[BatchItem[T]], list[BatchItem[T]]]:
        """Take a batch: return its items, and the ones dropped because they would end after their deadline.

        A batch costs at most ``target``; an item that costs more is taken alone.
        """
        batch: list[BatchItem[T]] = []
        late: list[BatchItem[T]] = []
        cost = 0.0
        aged = min(self._oldest(), key=lambda item: item.arrived_s, default=None)
        if aged is not None and now - aged.arrived_s < AGED_SHARE * (aged.deadline_s - aged.arrived_s):
            aged = None
        # Each dropped item makes the batch that can still be filled shorter, so the next one may be in time.
        end_s = now + predict(min(target, self.cost))
        for priority in range(len(self._items)):
            while (item := aged or self._peek(priority)) is not None:
                aged = None
                if batch and cost + item.cost > target:
                    return batch, late
                self.remove(item)
                if max(end_s, now + predict(item.cost)) > item.deadline_s:
                    late.append(item)
                    end_s = now + predict(min(target, cost + self.cost))
                else:
                    batch.append(item)
                    cost += item.cost
        return batch, late

    def _peek(self, priority: int) -> BatchItem[T] | None:
        """Return the item of a priority with the earliest deadline."""
        heap, items = self._heaps[priority], self._items[priority]
        while heap:
            item = items.get(heap[0][1])
            if item is not None:
                return item
            heappop(heap)
        return None

    def _oldest(self) -> list[BatchItem[T]]:
        return [next(iter(items.values())) for items in self._items if items]

    def _first(self) -> list[BatchItem[T]]:
        found = (self._peek(priority) for priority in range(len(self._items)))
        return [item for item in found if item is not None]
