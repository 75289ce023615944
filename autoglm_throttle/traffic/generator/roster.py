"""The users of a closed loop: when each of them works, as whom, and what they ask for. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from random import Random

from autoglm_throttle.traffic.arrivals import Crowd, Users
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.load import Request


@dataclass(frozen=True, slots=True)
class Roster:
    """Who works when, and what they send. Users are known by their number, from 0.

    Raises:
        TrafficError: other shares of kinds than there are requests, or no user in this share.
    """

    users: Users
    requests: Sequence[Request] = (Request(),)
    crowd: Crowd = field(default_factory=Crowd)
    """A user is one client for good; priority and request are drawn each time."""
    seed: int = 0
    share: int = 0
    """Which share of the users works here: those whose number is this one modulo ``shares``."""
    shares: int = 1

    def __post_init__(self) -> None:
        if len(self.crowd.kinds) != len(self.requests):
            raise TrafficError(f"{len(self.crowd.kinds)} shares of {len(self.requests)} requests")
        if self.most < 1:
            raise TrafficError(f"{self.users.most} users cannot be shared by {self.shares} processes")

    @property
    def most(self) -> int:
        """The most users there are here at once."""
        return len(self.numbers())

    @property
    def names(self) -> tuple[str, ...]:
        """One per step, for people."""
        return tuple(f"{users} users" for users, _ in self.users.steps)

    @property
    def ends_s(self) -> tuple[float, ...]:
        """When each step ends."""
        return tuple(accumulate(duration_s for _, duration_s in self.users.steps))

    def numbers(self) -> range:
        """The users that work here at some time."""
        return range(self.share, self.users.most, self.shares)

    def step(self, at_s: float) -> int:
        """The step that a time is in; the number of steps if it is after the last one."""
        return bisect_right(self.ends_s, at_s)

    def starts(self) -> list[tuple[float, int]]:
        """When each user begins, spread over one think time so that they are not in step; rising."""
        spread = {user: Random(f"{self.seed}:start:{user}").random() for user in self.numbers()}
        first = {user: self.due(user, 0.0) or 0.0 for user in spread}
        return sorted((first[user] + spread[user] * self.users.think_s, user) for user in spread)

    def due(self, user: int, at_s: float) -> float | None:
        """When a user works next: then, at the start of a later step that has the user, or never."""
        first = self.step(at_s)
        for step in range(first, len(self.users.steps)):
            if user < self.users.steps[step][0]:
                return at_s if step == first else self.ends_s[step - 1]
        return None

    def client(self, user: int) -> int:
        """The client that a user is."""
        edges = zipf_edges(self.crowd.clients, self.crowd.skew)
        return _rank(edges, Random(f"{self.seed}:client:{user}").random())

    def priorities(self) -> Iterator[int]:
        """Priority values, without an end."""
        ranked = list(self.crowd.mix)
        drawn = _draws(f"{self.seed}:priorities:{self.share}", list(self.crowd.mix.values()))
        return (int(ranked[rank]) for rank in drawn)

    def kinds(self) -> Iterator[int]:
        """Indices of requests, without an end."""
        return _draws(f"{self.seed}:kinds:{self.share}", self.crowd.kinds)


def _draws(seed: str, weights: Sequence[float]) -> Iterator[int]:
    edges, one = list(accumulate(weights)), Random(seed).random
    while True:
        yield _rank(edges, one())


def _rank(edges: Sequence[float], draw: float) -> int:
    """The rank at which sums of weights pass this share of their total; never one without weight."""
    return min(bisect_right(edges, draw * edges[-1]), bisect_left(edges, edges[-1]))


@lru_cache(maxsize=1)
def zipf_edges(clients: int, skew: float) -> Sequence[float]:
    """Sums of the weights of clients by rank; kept, since tens of thousands of users ask for the same."""
    return list(accumulate((rank + 1.0) ** -skew for rank in range(clients)))
