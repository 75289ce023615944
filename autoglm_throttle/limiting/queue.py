"""Priority queues of the concurrency limiter, fair between the users of one priority."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final

from autoglm_throttle.limiting.ticket import Ticket
from autoglm_throttle.types import Priority

# Index of the queue that is served first; the queue of a priority is the one after its number.
RESERVED_QUEUE = 0
RESERVED_MAX_WAIT = 0.5  # Share of its objective that a request on the reserved share may wait
BURST = 2.0  # Least burst of an unused reserved share, in requests

# Seconds of the share saved as credit: with less, a class with a tenth of the high demand gets nothing.
BURST_S = 3.0

COUNTERS_MAX: Final = 10_000  # Users whose served requests are remembered in one queue
STALE_TURNS_MAX: Final = 64  # Outdated turns beyond the valid ones before they are dropped

_LOW = Priority.LOW


class TicketQueue:
    """Tickets of one priority: those of one user in order of arrival, users in turn.

    The next ticket is the oldest of the user who has been served least, by the cost of the demands, or by
    their tokens where they are known. A user who joins counts as served as much as the least served one in
    the queue: nobody saves up turns (virtual token counter; start-time fair queueing). Unless it is
    ``fair``, only the arrival counts.
    """

    __slots__ = ("_by_user", "_fair", "_queued_at_least", "_served", "_turns", "_virtual", "tickets")

    def __init__(self, *, fair: bool) -> None:
        self._fair = fair
        self.tickets: OrderedDict[Ticket, None] = OrderedDict()  # All tickets, in order of arrival
        # Those of each user; most users have one, which then stands for itself.
        self._by_user: dict[str, Ticket | OrderedDict[Ticket, None]] = {}
        self._served: dict[str, float] = {}  # Cost served to users beyond the least served one
        self._virtual = 0.0  # Cost served to the least served user in the queue
        # Heap of users with tickets; outdated entries, and those of users without tickets, are skipped.
        self._turns: list[tuple[float, float, str]] = []
        # At each position: the number of users with at least so many tickets.
        self._queued_at_least: list[int] = [0]

    def append(self, ticket: Ticket) -> None:
        """Append a ticket."""
        self.tickets[ticket] = None
        if not self._fair:
            return
        user = ticket.demand.user
        mine = self._by_user.get(user)
        count = 1 if mine is None else _count(mine) + 1
        if mine is None:
            self._by_user[user] = ticket
            served = max(self._served.get(user, 0.0), self._virtual)
            self._served[user] = served
            self._push_turn(served, ticket.arrived_s, user)
        elif isinstance(mine, Ticket):
            self._by_user[user] = OrderedDict.fromkeys((mine, ticket))
        else:
            mine[ticket] = None
        if count == len(self._queued_at_least):
            self._queued_at_least.append(0)
        self._queued_at_least[count] += 1

    def remove(self, ticket: Ticket) -> None:
        """Remove a ticket."""
        del self.tickets[ticket]
        if not self._fair:
            return
        mine = self._by_user[ticket.demand.user]
        self._queued_at_least[_count(mine)] -= 1
        if not isinstance(mine, Ticket):
            del mine[ticket]
        if mine is ticket or not mine:
            del self._by_user[ticket.demand.user]

    def count_before(self, user: str) -> int:
        """Count the tickets that are served before a new one of a user."""
        if not self._fair:
            return len(self.tickets)
        return sum(self._queued_at_least[1 : 2 + _count(self._by_user.get(user))])

    def displaced_by(self, user: str) -> Ticket | None:
        """Return the newest ticket of the user with most, if a new one of ``user`` is to replace it.

        So one user cannot fill a queue (longest queue drop). Nearly equal users do not replace each other.
        """
        least = _count(self._by_user.get(user)) + 2
        if not self._fair or least >= len(self._queued_at_least) or not self._queued_at_least[least]:
            return None
        most = max(self._by_user.values(), key=_count)
        return most if isinstance(most, Ticket) else next(reversed(most))

    def next(self) -> Ticket | None:
        """Return the ticket to be served next; None if there is none."""
        if not self._fair:
            return next(iter(self.tickets), None)
        turns = self._turns
        while turns:
            served, _, user = turns[0]
            mine = self._by_user.get(user)
            if mine is not None and self._served[user] == served:
                return _oldest(mine)
            heapq.heappop(turns)
        return None

    def serve(self, ticket: Ticket) -> None:
        """Remove the ticket that `next` has returned, and charge its cost to its user."""
        self.remove(ticket)
        if not self._fair:
            return
        user = ticket.demand.user
        served = self._served[user]
        self._virtual = max(self._virtual, served)
        reservation = ticket.charges.reservation
        if reservation is None:
            cost = ticket.demand.cost
        else:
            cost, reservation.queue = reservation.charges[0][1].work, self
        self._served[user] = served = served + cost
        mine = self._by_user.get(user)
        if mine is not None:
            heapq.heapreplace(self._turns, (served, _oldest(mine).arrived_s, user))
        if len(self._served) > COUNTERS_MAX:
            self._forget()

    def charge(self, user: str, cost: float) -> None:
        """Charge more, or less if it is negative, to a user whose request has cost other than estimated."""
        served = self._served.get(user)
        if served is None:  # the user was forgotten
            return
        self._served[user] = served = served + cost
        mine = self._by_user.get(user)
        if mine is not None:
            self._push_turn(served, _oldest(mine).arrived_s, user)

    def _push_turn(self, served: float, arrived_s: float, user: str) -> None:
        heapq.heappush(self._turns, (served, arrived_s, user))
        if len(self._turns) > 2 * len(self._by_user) + STALE_TURNS_MAX:
            self._drop_stale_turns()

    def _drop_stale_turns(self) -> None:
        """Rebuild the heap: users who join and leave before their turn would fill it."""
        self._turns = [
            (self._served[user], _oldest(mine).arrived_s, user) for user, mine in self._by_user.items()
        ]
        heapq.heapify(self._turns)

    def _forget(self) -> None:
        """Forget the users who would start anew anyway; then the oldest ones."""
        self._served = {
            user: served
            for user, served in self._served.items()
            if served > self._virtual or user in self._by_user
        }
        excess = len(self._served) - COUNTERS_MAX // 2
        for user in [user for user in self._served if user not in self._by_user][: max(0, excess)]:
            del self._served[user]


def _count(mine: Ticket | OrderedDict[Ticket, None] | None) -> int:
    return 1 if isinstance(mine, Ticket) else len(mine or ())


def _oldest(mine: Ticket | OrderedDict[Ticket, None]) -> Ticket:
    return mine if isinstance(mine, Ticket) else next(iter(mine))


class PriorityQueues:
    """One queue for the reserved share, then one for each priority, in the order of service.

    The first queue is entered for credit, which grows like a token bucket with a share of the measured rate.
    In any t seconds at most ``max(BURST, BURST_S * share * rate) + share * rate * t`` requests spend it,
    so a burst of low requests cannot occupy that queue. If they are ``fair``, users are served in turn.
    """

    __slots__ = ("_credit", "_credit_s", "_share", "all")

    def __init__(self, share: float, now: float, *, fair: bool) -> None:
        self.all: tuple[TicketQueue, ...] = (
            TicketQueue(fair=False),
            *(TicketQueue(fair=fair) for _ in Priority),
        )
        self._share = share  # Of the service rate, 0..1
        self._credit = 0.0
        self._credit_s = now

    def take_reserved(self, rate_rps: float, now: float) -> bool:
        """Spend the credit of one request, if there is enough."""
        share_rps = self._share * rate_rps
        credit = self._credit + (now - self._credit_s) * share_rps
        credit = min(credit, max(BURST, BURST_S * share_rps))
        self._credit_s = now
        taken = credit >= 1.0
        self._credit = credit - 1.0 if taken else credit
        return taken

    def is_ahead(self, priority: Priority) -> bool:
        """Whether any ticket of this class or a higher one is queued."""
        share, high, mid, low = self.all
        return bool(
            share.tickets
            or high.tickets
            or (priority and (mid.tickets or (priority is _LOW and low.tickets)))
        )

    def count_ahead(self, priority: Priority, user: str) -> int:
        """Count the tickets that are served before a new request of this class and user."""
        ahead = self.all[priority + 1].count_before(user)
        for queue in self.all[: priority + 1]:
            ahead += len(queue.tickets)
        return ahead

    def waiting(self) -> tuple[int, int, int]:
        """Count the tickets of high, mid and low, in all queues."""
        share, high, mid, low = self.all
        shared = [ticket.demand.priority for ticket in share.tickets]
        return (
            len(high.tickets),
            len(mid.tickets) + shared.count(Priority.MID),
            len(low.tickets) + shared.count(Priority.LOW),
        )
