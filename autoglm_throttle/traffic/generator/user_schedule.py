"""Schedule of the users of a closed loop: their times, clients and requests. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from random import Random

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import PriorityMix, Users
from autoglm_throttle.traffic.request_source import PlannedRequest


@dataclass(frozen=True, slots=True)
class UserSchedule:
    """Active times and requests of the users. Users are identified by their number, from 0.

    Raises:
        TrafficError: the mix has another number of kinds than there are requests, or no user in this share.
    """

    users: Users
    requests: Sequence[PlannedRequest] = (PlannedRequest(),)
    mix: PriorityMix = field(default_factory=PriorityMix)
    """A user is always the same client; priority and request are drawn each time."""
    seed: int = 0
    share: int = 0
    """Share of the users that this process runs: numbers equal to this one modulo ``shares``."""
    shares: int = 1

    def __post_init__(self) -> None:
        if len(self.mix.kinds) != len(self.requests):
            raise TrafficError(f"{len(self.mix.kinds)} shares of {len(self.requests)} requests")
        if self.peak_users < 1:
            raise TrafficError(f"{self.users.peak_users} users cannot be shared by {self.shares} processes")

    @property
    def peak_users(self) -> int:
        """Highest number of users of this share at the same time."""
        return len(self.numbers())

    @property
    def names(self) -> tuple[str, ...]:
        """Display name of each step."""
        return tuple(f"{users} users" for users, _ in self.users.steps)

    @property
    def ends_s(self) -> tuple[float, ...]:
        """End of each step, in seconds."""
        return tuple(accumulate(duration_s for _, duration_s in self.users.steps))

    def numbers(self) -> range:
        """Return the users of this share."""
        return range(self.share, self.users.peak_users, self.shares)

    def step(self, at_s: float) -> int:
        """Return the step that contains a time; the number of steps if it is after the last one."""
        return bisect_right(self.ends_s, at_s)

    def starts(self) -> list[tuple[float, int]]:
        """Return each user's first start, rising, spread over one think time to avoid synchronized users."""
        spread = {user: Random(f"{self.seed}:start:{user}").random() for user in self.numbers()}
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
        drawn = _draws(f"{self.seed}:priorities:{self.share}", list(self.mix.mix.values()))
        return (int(ranked[rank]) for rank in drawn)

    def kinds(self) -> Iterator[int]:
        """Yield indices of requests without end."""
        return _draws(f"{self.seed}:kinds:{self.share}", self.mix.kinds)


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
