"""The reference: an admission rule that knows the service in advance."""

from __future__ import annotations

from collections import deque

from benchmarks.loop.limiters.limiter import BaseLimiter, LimiterContext
from benchmarks.loop.plant import BatchPlant, Replica
from benchmarks.loop.request import Request


class OracleLimiter(BaseLimiter):
    """Knows the present speed of each replica, but not the cost of a request.

    Strict priority; an idle replica gets exactly its next batch, the largest that lasts at most half the
    objective; a request that would be late is rejected on arrival, or when it is dequeued.
    """

    def __init__(self, context: LimiterContext) -> None:
        if not isinstance(context.plant, BatchPlant):
            raise TypeError("the oracle knows services that batch statically")
        self._context = context
        self._plant: BatchPlant = context.plant
        self._queues: tuple[deque[Request], ...] = (deque(), deque(), deque())

    def arrive(self, request: Request) -> None:
        """Reject the request, start it, or enqueue it for the next batch."""
        now = self._context.scheduler.now
        self._reject_late(request.priority, now)
        ahead = sum(len(queue) for queue in self._queues[: request.priority + 1])
        if ahead / self._rate() + 2.0 * self._longest() > self._context.slo_s:
            self._context.reject(request)
            return
        self._queues[request.priority].append(request)
        idle = [index for index, replica in enumerate(self._plant.replicas) if not replica.running]
        if idle:
            self.settled(max(idle, key=lambda index: self._plant.replicas[index].speed))

    def ended(self, request: Request, *, ok: bool) -> None:
        """Do nothing: the state of the replicas is visible."""

    def settled(self, replica: int) -> None:
        """Send the next batch to a replica."""
        now = self._context.scheduler.now
        chosen = self._plant.replicas[replica]
        free = self._size(chosen)
        lasts_s = self._plant.batch_s(chosen, float(free))
        for queue in self._queues:
            while queue and free:
                request = queue.popleft()
                if now + lasts_s > request.sent_s + self._context.slo_s:
                    self._context.reject(request)
                else:
                    free -= 1
                    self._context.admit(request, replica)

    def _reject_late(self, priority: int, now: float) -> None:
        """Reject requests that would be late, so that they do not count as ahead of others."""
        soonest = self._soonest()
        for queue in self._queues[: priority + 1]:
            while queue and now + soonest > queue[0].sent_s + self._context.slo_s:
                self._context.reject(queue.popleft())

    def _size(self, replica: Replica) -> int:
        """Requests in the largest batch that lasts at most half the objective; at least one."""
        spec = self._plant.spec
        fits = (self._context.slo_s / 2.0 * replica.speed - spec.base_s) / spec.item_s
        return max(1, min(spec.batch, int(fits + 1e-9)))

    def _rate(self) -> float:
        return sum(self._size(r) / self._plant.batch_s(r, float(self._size(r))) for r in self._plant.replicas)

    def _longest(self) -> float:
        return max(self._plant.batch_s(r, float(self._size(r))) for r in self._plant.replicas)

    def _soonest(self) -> float:
        return min(self._plant.batch_s(r, 1.0) for r in self._plant.replicas)
