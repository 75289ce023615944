"""Closed-loop sender: users wait for their responses, so offered load falls when the service slows down."""

from __future__ import annotations

import asyncio
import heapq
from array import array
from dataclasses import replace

from autoglm_throttle.traffic.generator.encoding import builder
from autoglm_throttle.traffic.generator.options import ClientOptions, Observer
from autoglm_throttle.traffic.generator.sender import Sender
from autoglm_throttle.traffic.generator.target import TargetUrl
from autoglm_throttle.traffic.generator.user_schedule import UserSchedule
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.request_log import RequestLog
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.result import Result, RunCost


class ClosedLoopSender(Sender):
    """One run of a closed loop; use it once. The plan of its result holds the requests that were sent.

    The intended start of a request is the end of its user's think time.

    Args:
        schedule: active times and requests of the users.
        target: destination of the requests.
        options: client options; there is one connection for each user.
        observer: called with each result as it occurs.

    Raises:
        TrafficError: httptools is missing, or too few files may be opened.
    """

    def __init__(
        self,
        schedule: UserSchedule,
        target: TargetUrl,
        options: ClientOptions | None = None,
        observer: Observer | None = None,
    ) -> None:
        most, chosen = schedule.peak_users, options or ClientOptions()
        fitting = replace(
            chosen, connections=most, more_connections=0, max_inflight=max(most, chosen.max_inflight)
        )
        super().__init__(RequestLog(), array("d"), target, fitting, observer)
        self._schedule = schedule
        self._ends_s = schedule.ends_s
        self._due = schedule.starts()
        self._users = array("I")
        self._clients = {user: schedule.client(user) for user in schedule.numbers()}
        self._priorities = schedule.priorities()
        self._kinds = schedule.kinds()
        self._sent_priorities = bytearray()
        self._sent_kinds = array("I")
        load = RequestSource(self._plan(), schedule.requests)
        build = builder(schedule.requests, load.client, target)
        self._encode = lambda index: build(
            (self._sent_kinds[index], self._sent_priorities[index], self._clients[self._users[index]])
        )

    def send_due(self, elapsed_s: float) -> bool:
        """Launch the due requests; return whether more follow."""
        while self._due and self._due[0][0] <= elapsed_s:
            due_s, user = heapq.heappop(self._due)
            if due_s < self._ends_s[-1]:
                self._send_request(user, due_s)
        return elapsed_s < self._ends_s[-1] and not self._clock.is_stopped

    def _send_request(self, user: int, due_s: float) -> None:
        index = self.request_log.add()
        self._offsets.append(due_s)
        self._users.append(user)
        self._sent_priorities.append(next(self._priorities))
        self._sent_kinds.append(next(self._kinds))
        self._requests.next = index + 1
        self._launch(index)

    def _ended(self, index: int, now: float) -> None:
        user, think_s = self._users[index], self._schedule.users.think_s
        due_s = self._schedule.due(user, now - self._clock.start_s + think_s)
        if due_s is None or self._clock.is_stopped:
            return
        heapq.heappush(self._due, (due_s, user))
        if not think_s:
            # Without think time the next request is due now; the next tick would be up to 1 ms late.
            asyncio.get_running_loop().call_soon(self._send_now)

    def _send_now(self) -> None:
        if not self._clock.is_stopped:
            self.send_due(self.elapsed_s)

    def _skip_unsent(self) -> None:
        self._due.clear()

    def _plan(self) -> LoadPlan:
        return LoadPlan(
            offsets=self._offsets,
            priorities=bytes(self._sent_priorities),
            segments=array("H", map(self._schedule.step, self._offsets)),
            clients=array("I", (self._clients[user] for user in self._users)),
            kinds=self._sent_kinds,
            names=self._schedule.names,
            ends_s=self._ends_s,
        )

    def _result(self, run_cost: RunCost) -> Result:
        load = RequestSource(self._plan(), self._schedule.requests)
        return Result(load, self.request_log, run_cost, aborted=self._clock.is_stopped, closed_loop=True)
