"""The best that can be done by one who knows the service: the yardstick."""

from __future__ import annotations

from collections import deque

from benchmarks.loop.doors.door import PlainDoor, Site
from benchmarks.loop.plant import BatchPlant, Replica
from benchmarks.loop.request import Request


class OracleDoor(PlainDoor):
    """Knows the present speed of each replica, but not what a request will cost.

    Strict priority; an idle replica gets exactly its next batch, the largest that lasts at most half the
    objective; who could not be answered in time is refused on arrival, or when his turn comes.
    """

    def __init__(self, site: Site) -> None:
        if not isinstance(site.plant, BatchPlant):
            raise TypeError("the oracle knows services that batch statically")
        self._site = site
        self._plant: BatchPlant = site.plant
        self._lines: tuple[deque[Request], ...] = (deque(), deque(), deque())

    def arrive(self, request: Request) -> None:
        """Refuse it, start it, or let it wait for the next batch."""
        now = self._site.agenda.now
        self._forget(request.priority, now)
        ahead = sum(len(line) for line in self._lines[: request.priority + 1])
        if ahead / self._rate() + 2.0 * self._longest() > self._site.slo_s:
            self._site.refuse(request)
            return
        self._lines[request.priority].append(request)
        idle = [index for index, replica in enumerate(self._plant.replicas) if not replica.running]
        if idle:
            self.settled(max(idle, key=lambda index: self._plant.replicas[index].speed))

    def ended(self, request: Request, *, ok: bool) -> None:
        """It counts nothing: it sees the replicas."""

    def settled(self, replica: int) -> None:
        """Hand a replica its next batch."""
        now = self._site.agenda.now
        chosen = self._plant.replicas[replica]
        room = self._size(chosen)
        lasts_s = self._plant.batch_s(chosen, float(room))
        for line in self._lines:
            while line and room:
                request = line.popleft()
                if now + lasts_s > request.sent_s + self._site.slo_s:
                    self._site.refuse(request)
                else:
                    room -= 1
                    self._site.enter(request, replica)

    def _forget(self, priority: int, now: float) -> None:
        """Send away who cannot be answered in time any more, so that nobody counts him as ahead."""
        soonest = self._soonest()
        for line in self._lines[: priority + 1]:
            while line and now + soonest > line[0].sent_s + self._site.slo_s:
                self._site.refuse(line.popleft())

    def _size(self, replica: Replica) -> int:
        """Requests in the largest batch that lasts at most half the objective; at least one."""
        spec = self._plant.spec
        fits = (self._site.slo_s / 2.0 * replica.speed - spec.base_s) / spec.item_s
        return max(1, min(spec.batch, int(fits + 1e-9)))

    def _rate(self) -> float:
        return sum(self._size(r) / self._plant.batch_s(r, float(self._size(r))) for r in self._plant.replicas)

    def _longest(self) -> float:
        return max(self._plant.batch_s(r, float(self._size(r))) for r in self._plant.replicas)

    def _soonest(self) -> float:
        return min(self._plant.batch_s(r, 1.0) for r in self._plant.replicas)
