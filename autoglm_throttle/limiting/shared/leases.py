"""The priority rates of a fleet: what this process has leased of them, and when to ask for more.

It has the face of ``PriorityBuckets``. It is touched under the throttle's lock, asks nobody by itself,
and says through `wants` what is to be asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from autoglm_throttle.limiting.instant import until
from autoglm_throttle.limiting.rate_refusal import rate_refusal
from autoglm_throttle.limiting.shared.lease import Lease
from autoglm_throttle.model import Decision, Demand, Priority

DEADLINE_S: Final = 0.05
"""An answer that takes longer than this is not waited for: the store counts as away."""

TIMER_S: Final = 0.001
"""By so much a timer may fire too early."""

MOST_MEMBERS: Final = 10_000
"""A member count is held to 1..this: no mistake in a store may cut the rates to nothing."""

_HEAD: Final = 2
_EACH: Final = 2


def _nobody() -> None:
    return None


def _unlinked(now: float) -> None:  # noqa: ARG001 - the face of a listener
    return None


class Leases:
    """What one process may spend of a fleet's tokens, one `Lease` for each priority.

    Args:
        rates: nominal tokens per second of the whole fleet, for high, mid, low.
        burst_s: seconds of nominal rate that a full bucket holds; it holds at least one token.
        now: monotonic seconds.
        workers: processes of the fleet where that is known, for times when the store cannot be asked;
            1: the members it has counted last.
        lease_s: seconds after which unspent tokens go back.
    """

    def __init__(
        self, rates: Sequence[float], burst_s: float, now: float, *, workers: int = 1, lease_s: float = 1.0
    ) -> None:
        self.all: tuple[Lease, ...] = tuple(
            Lease(rate, max(1.0, rate * burst_s), now, priority.label, lease_s)
            for priority, rate in zip(Priority, rates, strict=True)
        )
        self.members: int = 1
        """Living processes, counted by the store; 1 before its first answer."""
        self.away_since_s: float | None = None
        """Since when the store cannot be asked; None: it can."""
        self.wake: Callable[[], None] = _nobody
        """Called under the lock when there is something to ask; must not block."""
        self.lost: Callable[[float], None] = _unlinked
        """Told, under the lock, when the store is away: whoever else asks it need not find out."""
        self._workers = workers
        self._woken = False
        self._asking = False
        self._silent_s: float | None = None
        """Since when an answer is being waited for: by a call, or by somebody for whom none is made yet."""

    def __repr__(self) -> str:
        state = "leased" if self.away_since_s is None else "alone"
        pools = "/".join(f"{lease.tokens(0.0):g}" for lease in self.all)
        return f"Leases({state}, {self.members} members, {pools} tokens)"

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second in force: of the whole fleet, or this process's part while the store is away."""
        return tuple(lease.in_force for lease in self.all)

    @property
    def processes(self) -> int:
        """Among how many the rates are divided while the store cannot be asked."""
        return self._workers if self._workers > 1 else self.members

    def take(self, demand: Demand, now: float) -> Lease | Decision:
        """Take the demand's cost; returns the lease that paid, or the refusal."""
        lease = self.all[demand.priority]
        wait = lease.take(demand.cost, now)
        if not self._woken and self.away_since_s is None and lease.low(now):
            self._woken = True
            self.wake()
        return rate_refusal(lease, demand.cost, wait, now) if wait else lease

    def rescale(self, ceilings: Sequence[float], now: float) -> None:
        """Refill each bucket at its nominal rate times its ceiling, 0..1, given for high, mid, low."""
        for lease, ceiling in zip(self.all, ceilings, strict=True):
            lease.rescale(ceiling, now)

    def covers(self, demand: Demand, now: float) -> bool:
        """Whether `take` can say the truth now; else the store must be asked first.

        True if the lease holds enough, if it is known that the store does not, and without a store. One that
        is silent for longer than the deadline counts as away from here on.
        """
        lease = self.all[demand.priority]
        if lease.settled(demand.cost, now):
            return True
        if self._silent_s is not None and now >= self._silent_s + DEADLINE_S:
            self._unheard(now)
            return True
        return False

    def wait(self, token: object, demand: Demand, now: float) -> float:
        """Somebody waits for the store's next answer, under a token of their own.

        Returns:
            Seconds after which `covers` should be asked again, whether or not there was an answer.
        """
        if self._silent_s is None:
            self._silent_s = now
        self.all[demand.priority].wait(token, demand.cost)
        if not self._woken:
            self._woken = True
            self.wake()
        return until(self._silent_s + DEADLINE_S, now)

    def leave(self, token: object, demand: Demand, now: float) -> None:
        """Nobody waits under this token any more. Idempotent.

        Who leaves because nothing was heard for the deadline has found out that the store is away.
        """
        self.all[demand.priority].leave(token)
        if self._silent_s is None:
            return
        if now >= self._silent_s + DEADLINE_S - TIMER_S:
            self._unheard(now)
        elif not self._asking and not any(lease.waiting for lease in self.all):
            self._silent_s = None

    @property
    def waiting(self) -> list[object]:
        """The tokens of all who wait for an answer that has not come."""
        return [token for lease in self.all for token in lease.waiting]

    def due_s(self) -> float:
        """When `wants` has something to say even if nobody asks: unspent tokens go back."""
        return math.inf if self.away_since_s is not None else min(lease.due_s() for lease in self.all)

    def wants(self, now: float, *, beat: bool) -> list[int] | None:
        """The figures of the next call, five for each priority; None if there is nothing to ask.

        Args:
            now: monotonic seconds.
            beat: a sign of life is due, so the call is made in any case; while the store is away it is
                the only one that is made.
        """
        self._woken = False
        if not beat and (self.away_since_s is not None or not any(lease.calls(now) for lease in self.all)):
            return None
        asks = [lease.ask(now) for lease in self.all]
        if not (beat or self.waiting or any(ask.want or ask.back for ask in asks)):
            return None
        self._asking = True
        if self._silent_s is None:
            self._silent_s = now
        return [figure for ask in asks for figure in ask]

    def farewell(self) -> list[int]:
        """The figures of the last call: all that is unspent goes back."""
        return [figure for lease in self.all for figure in lease.ask_nothing()]

    def granted(self, reply: Sequence[int], now: float) -> None:
        """Take in the store's answer: its clock, the members, then grant and left for each priority.

        Nobody waits any more then. Who finds that it was too little for them waits anew: an event loop that
        stands still between the answer and its reader says nothing about the store.

        Raises:
            ValueError: the reply has another shape; nothing has changed then.
        """
        if len(reply) != _HEAD + _EACH * len(self.all) or not all(
            isinstance(value, int) and value >= 0 for value in reply
        ):
            raise ValueError(f"the fleet's script answered {reply!r:.80}")
        self.members = min(max(1, reply[1]), MOST_MEMBERS)
        for lease, at in zip(self.all, range(_HEAD, len(reply), _EACH), strict=True):
            lease.granted(reply[at], reply[at + 1], now)
        self.away_since_s = None
        self._asking = False
        self._silent_s = None

    def away(self, now: float) -> None:
        """The store cannot be asked: each process runs its part of the rates, until `granted`. Idempotent."""
        self._asking = False
        self._silent_s = None
        if self.away_since_s is None:
            self.away_since_s = now
            for lease in self.all:
                lease.alone(self.processes, now)
            self.lost(now)

    def suspect(self, now: float) -> None:
        """Somebody else has found the store silent: nobody waits for it until a call has told. Idempotent."""
        if self.away_since_s is None:
            self._unheard(now)

    def _unheard(self, now: float) -> None:
        """Somebody has waited in vain. Whoever calls the store is told: no request has a call made now."""
        self.away(now)
        self.wake()

    def forget(self, now: float) -> None:
        """Begin anew with nothing, in a forked process."""
        self.away_since_s = self._silent_s = None
        self._asking = self._woken = False
        for lease in self.all:
            lease.forget(now)
