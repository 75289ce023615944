"""Closed loop: users wait for their responses, so offered load falls when the service slows down."""

from __future__ import annotations

import asyncio
import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from random import Random

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.connection_pool import ClientOptions
from autoglm_throttle.traffic.generator.sender import Observer, Sender
from autoglm_throttle.traffic.generator.target import TargetUrl, builder
from autoglm_throttle.traffic.plan import LoadPlan, PriorityMix, Users
from autoglm_throttle.traffic.request_log import RequestLog
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.traffic.results import Result, RunCost


@dataclass(frozen=True, slots=True)
class UserSchedule:
    """Active times and requests of the users. Users are identified by their number, from 0.

    Raises:
        TrafficError: the mix has another number of kinds than there are requests.
    """

    users: Users
    requests: Sequence[PlannedRequest] = (PlannedRequest(),)
    mix: PriorityMix = field(default_factory=PriorityMix)
    """A user is always the same client; priority and request are drawn each time."""
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.mix.kinds) != len(self.requests):
            raise TrafficError(f"{len(self.mix.kinds)} shares of {len(self.requests)} requests")

    @property
    def names(self) -> tuple[str, ...]:
        """Display name of each step."""
        return tuple(f"{users} users" for users, _ in self.users.steps)

    @property
    def ends_s(self) -> tuple[float, ...]:
        """End of each step, in seconds."""
        return tuple(accumulate(duration_s for _, duration_s in self.users.steps))

    def step(self, at_s: float) -> int:
        """Return the step that contains a time; the number of steps if it is after the last one."""
        return bisect_right(self.ends_s, at_s)

    def starts(self) -> list[tuple[float, int]]:
        """Return each user's first start, rising, spread over one think time to avoid synchronized users."""
        spread = {user: Random(f"{self.seed}:start:{user}").random() for user in range(self.users.peak_users)}
        first = {user: self.due(user, 0.0) or 0.0 for user in spread}
        return sorted((first[user] + spread[user] * self.users.think_s, user) for user in spread)

    def due(self, user: int, at_s: float) -> float | None:
        """Return the next start of a user: ``at_s``, the start of a later step with this user, or None."""
        first = self.step(at_s)
        for step in range(first, len(self.users.steps)):
            if user < self.users.steps[step][0]:
                return at_s if step == first else self.ends_s[step - 1]
        return None

    def client(self, user: int) -> int:
        """Return the client of a user."""
        edges = zipf_edges(self.mix.clients, self.mix.skew)
        return _rank(edges, Random(f"{self.seed}:client:{user}").random())

    def priorities(self) -> Iterator[int]:
        """Yield priority values without end."""
        ranked = list(self.mix.mix)
        drawn = _draws(f"{self.seed}:priorities:0", list(self.mix.mix.values()))
        return (int(ranked[rank]) for rank in drawn)

    def kinds(self) -> Iterator[int]:
        """Yield indices of requests without end."""
        return _draws(f"{self.seed}:kinds:0", self.mix.kinds)


def _draws(seed: str, weights: Sequence[float]) -> Iterator[int]:
    edges, one = list(accumulate(weights)), Random(seed).random
    while True:
        yield _rank(edges, one())


def _rank(edges: Sequence[float], draw: float) -> int:
    """Return the rank at which sums of weights pass this share of their total; never one without weight."""
    return min(bisect_right(edges, draw * edges[-1]), bisect_left(edges, edges[-1]))


@lru_cache(maxsize=1)
def zipf_edges(clients: int, skew: float) -> Sequence[float]:
    """Return sums of the weights of clients by rank; cached for tens of thousands of users."""
    return list(accumulate((rank + 1.0) ** -skew for rank in range(clients)))


class ClosedLoopSender(Sender):
    """One run of a closed loop; use it once. The plan of its result holds the requests that were sent.

    The intended start of a request is the end of its user's think time. Each user has a connection.

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
        most, chosen = schedule.users.peak_users, options or ClientOptions()
        fitting = replace(
            chosen, connections=most, more_connections=0, max_inflight=max(most, chosen.max_inflight)
        )
        super().__init__(RequestLog(), array("d"), target, fitting, observer)
        self._schedule = schedule
        self._ends_s = schedule.ends_s
        self._due = schedule.starts()
        self._users = array("I")
        self._clients = [schedule.client(user) for user in range(most)]
        self._priorities = schedule.priorities()
        self._kinds = schedule.kinds()
        self._sent_priorities = bytearray()
        self._sent_kinds = array("I")
        build = builder(schedule.requests, self._source().client, target)
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

    def _source(self) -> RequestSource:
        """Build the plan of the requests sent so far."""
        plan = LoadPlan(
            offsets=self._offsets,
            priorities=bytes(self._sent_priorities),
            segments=array("H", map(self._schedule.step, self._offsets)),
            clients=array("I", (self._clients[user] for user in self._users)),
            kinds=self._sent_kinds,
            names=self._schedule.names,
            ends_s=self._ends_s,
        )
        return RequestSource(plan, self._schedule.requests)

    def _result(self, run_cost: RunCost) -> Result:
        aborted = self._clock.is_stopped
        return Result(self._source(), self.request_log, run_cost, aborted=aborted, closed_loop=True)
