"""Closed loop: users wait for their responses, so offered load falls when the service slows down."""

from __future__ import annotations

import asyncio
import heapq
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from random import Random
from typing import cast

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.connection_pool import ClientOptions
from autoglm_throttle.traffic.generator.sender import Observer, OpenLoopSender
from autoglm_throttle.traffic.generator.target import TargetUrl
from autoglm_throttle.traffic.plan import LoadPlan, PriorityMix, Users
from autoglm_throttle.traffic.plan.load_plan import draws
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource


@dataclass(frozen=True, slots=True)
class UserSchedule:
    """Active times and requests of users, by their number; a wrong number of shares raises TrafficError."""

    users: Users
    requests: Sequence[PlannedRequest] = (PlannedRequest(),)
    # A user is always the same client; priority and request are drawn each time.
    mix: PriorityMix = field(default_factory=PriorityMix)
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
        spread = (Random(f"{self.seed}:start:{user}").random() for user in range(self.users.peak_users))
        return sorted(
            ((self.due(user, 0.0) or 0.0) + share * self.users.think_s, user)
            for user, share in enumerate(spread)
        )

    def due(self, user: int, at_s: float) -> float | None:
        """Return the next start of a user: ``at_s``, the start of a later step with this user, or None."""
        first = self.step(at_s)
        for step in range(first, len(self.users.steps)):
            if user < self.users.steps[step][0]:
                return at_s if step == first else self.ends_s[step - 1]
        return None

    def clients(self) -> Iterator[int]:
        """Yield the client of each user."""
        return draws(f"{self.seed}:clients", self.mix.client_weights)

    def priorities(self) -> Iterator[int]:
        """Yield priority values without end."""
        ranked = list(self.mix.mix)
        return (int(ranked[rank]) for rank in draws(f"{self.seed}:priorities:0", list(self.mix.mix.values())))

    def kinds(self) -> Iterator[int]:
        """Yield indices of requests without end."""
        return draws(f"{self.seed}:kinds:0", self.mix.kinds)


class ClosedLoopSender(OpenLoopSender):
    """A run of users with a connection each; use it once. Its result plans the requests that were sent."""

    is_closed_loop = True

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
        self._sent_priorities = bytearray()
        # Its columns grow with each request that is sent.
        self._plan = LoadPlan(
            offsets=array("d"),
            priorities=cast("bytes", self._sent_priorities),
            segments=array("H"),
            clients=array("I"),
            kinds=array("I"),
            names=schedule.names,
            ends_s=schedule.ends_s,
        )
        super().__init__(RequestSource(self._plan, schedule.requests), target, fitting, observer)
        self._schedule = schedule
        self._due = schedule.starts()
        self._users = array("I")
        self._clients = list(islice(schedule.clients(), most))
        self._priorities = schedule.priorities()
        self._kinds = schedule.kinds()

    def send_due(self, elapsed_s: float) -> bool:
        """Launch the due requests; return whether more follow."""
        if self._stopped_s is not None:
            return False
        while self._due and self._due[0][0] <= elapsed_s:
            due_s, user = heapq.heappop(self._due)
            if due_s < self._plan.duration_s:
                self._send_request(user, due_s)
        return elapsed_s < self._plan.duration_s

    def _send_request(self, user: int, due_s: float) -> None:
        plan = self._plan
        plan.offsets.append(due_s)
        self._sent_priorities.append(next(self._priorities))
        plan.segments.append(self._schedule.step(due_s))
        plan.clients.append(self._clients[user])
        plan.kinds.append(next(self._kinds))
        self._users.append(user)
        self.request_log.add()
        self._launch_next()

    def _ended(self, index: int, now: float) -> None:
        user, think_s = self._users[index], self._schedule.users.think_s
        due_s = self._schedule.due(user, now - self.start_s + think_s)
        if due_s is None:
            return
        heapq.heappush(self._due, (due_s, user))
        if not think_s:
            # Without think time the next request is due now; the next tick would be up to 1 ms late.
            asyncio.get_running_loop().call_soon(lambda: self.send_due(self.elapsed_s))
