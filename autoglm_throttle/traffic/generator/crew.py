"""Closed-loop sender: users wait for their responses, so offered load falls when the service slows down."""

from __future__ import annotations

import asyncio
import heapq
from array import array
from dataclasses import replace

from autoglm_throttle.traffic.arrivals import Plan
from autoglm_throttle.traffic.generator.options import Observer, Options
from autoglm_throttle.traffic.generator.roster import Roster
from autoglm_throttle.traffic.generator.sending import Sending
from autoglm_throttle.traffic.generator.target import Target
from autoglm_throttle.traffic.generator.wire import builder
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.result import Effort, Result
from autoglm_throttle.traffic.sheet import Sheet


class Crew(Sending):
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
        roster: Roster,
        target: Target,
        options: Options | None = None,
        observer: Observer | None = None,
    ) -> None:
        most, chosen = roster.most, options or Options()
        fitting = replace(
            chosen, connections=most, more_connections=0, max_inflight=max(most, chosen.max_inflight)
        )
        super().__init__(Sheet(), array("d"), target, fitting, observer)
        self._roster = roster
        self._ends_s = roster.ends_s
        self._due = roster.starts()
        self._users = array("I")
        self._clients = {user: roster.client(user) for user in roster.numbers()}
        self._priorities = roster.priorities()
        self._kinds = roster.kinds()
        self._sent = bytearray()
        self._asked = array("I")
        self._said = Load(self._plan(), roster.requests)
        build = builder(roster.requests, self._said.client, target)
        self._encode = lambda index: build(
            (self._asked[index], self._sent[index], self._clients[self._users[index]])
        )

    def _send_due(self, elapsed_s: float) -> bool:
        while self._due and self._due[0][0] <= elapsed_s:
            due_s, user = heapq.heappop(self._due)
            if due_s < self._ends_s[-1]:
                self._ask(user, due_s)
        return elapsed_s < self._ends_s[-1] and not self._stopped

    def _ask(self, user: int, due_s: float) -> None:
        index = self.sheet.add()
        self._offsets.append(due_s)
        self._users.append(user)
        self._sent.append(next(self._priorities))
        self._asked.append(next(self._kinds))
        self._next = index + 1
        self._launch(index)

    def _ended(self, index: int, now: float) -> None:
        user, think_s = self._users[index], self._roster.users.think_s
        due_s = self._roster.due(user, now - self._start_s + think_s)
        if due_s is None or self._stopped:
            return
        heapq.heappush(self._due, (due_s, user))
        if not think_s:
            # Without think time the next request is due now; the next tick would be up to 1 ms late.
            asyncio.get_running_loop().call_soon(self._at_once)

    def _at_once(self) -> None:
        if not self._stopped:
            self._send_due(self.elapsed_s)

    def _leave_out(self) -> None:
        self._due.clear()

    def _plan(self) -> Plan:
        return Plan(
            offsets=self._offsets,
            priorities=bytes(self._sent),
            segments=array("H", map(self._roster.step, self._offsets)),
            clients=array("I", (self._clients[user] for user in self._users)),
            kinds=self._asked,
            names=self._roster.names,
            ends_s=self._ends_s,
        )

    def _result(self, effort: Effort) -> Result:
        load = Load(self._plan(), self._roster.requests)
        return Result(load, self.sheet, effort, aborted=self._stopped, closed_loop=True)
