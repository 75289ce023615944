"""One run: streams of calls, limiters, one service, and the counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from benchmarks.field_cases.call import Call, Caller, Kind
from benchmarks.field_cases.tally import Tally
from benchmarks.loop.limiters.limiter import Limiter
from benchmarks.loop.plant import Listener, Plant
from benchmarks.loop.request import Request
from benchmarks.loop.scheduler import EventScheduler

SILENT = 1e-9
"""Speed of a service that gives no answer."""

MakePlant = Callable[[EventScheduler, Listener], Plant]
MakeLimiter = Callable[["World", int], Limiter]
"""Makes the limiter of one of the workers, of which there are as many as the number says."""

Rates = Sequence[tuple[float, float]]
"""Steps of a rate: begin in seconds, requests/s."""


class World:
    """Callers, the limiters of all workers, and the service behind them, on one scheduler.

    Args:
        make_plant: makes the service.
        make_limiter: makes the limiter of a worker.
        tally: the counts.
        slo_s: objective of the callers, for limiters of other designs.
        workers: processes with a limiter each; calls are spread at random.
        shares: of the calls, by worker; empty: equal ones.
    """

    def __init__(
        self,
        make_plant: MakePlant,
        make_limiter: MakeLimiter,
        tally: Tally,
        slo_s: float = 2.0,
        workers: int = 1,
        shares: tuple[float, ...] = (),
    ) -> None:
        self.scheduler = EventScheduler()
        self.slo_s = slo_s
        self.tally = tally
        self.shares = shares
        self.plant: Plant = make_plant(self.scheduler, self)
        self.limiters = [make_limiter(self, workers) for _ in range(workers)]
        self._serial = 0

    def speeds(self, *changes: tuple[float, float]) -> None:
        """Change the speed of the whole service at instants, as a share of the full speed."""
        for at_s, speed in changes:
            if at_s <= 0.0:
                self.plant.speed((-1, speed))
            else:
                self.scheduler.at(at_s, self.plant.speed, (-1, speed))

    def run(self, beyond_s: float | None = None) -> Tally:
        """Run to the end of the window and some seconds more: by default one objective."""
        self.scheduler.until(self.tally.until_s + (self.slo_s if beyond_s is None else beyond_s))
        return self.tally

    def number(self) -> int:
        """Return the number of the next call."""
        self._serial += 1
        return self._serial

    def arrive(self, call: Call) -> None:
        """Pass a call to the limiter of its worker."""
        self.tally.sent(call)
        self.limiters[call.worker].arrive(call)

    def admit(self, request: Request, replica: int | None = None) -> None:
        """Pass an admitted call to the service; one that only holds on is told to pause later."""
        assert isinstance(request, Call)
        if request.holds_s is None:
            self.plant.admit(request, replica)
        else:
            self.scheduler.at(self.scheduler.now + request.holds_s, self._pause, request)

    def reject(self, request: Request) -> None:
        """Reject a call."""
        assert isinstance(request, Call)
        self.tally.reject(request)
        if request.caller is not None:
            request.caller.rejected(request)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Count the end of a call; its limiter and its caller are told."""
        assert isinstance(request, Call)
        self.tally.end(request, self.scheduler.now, ok=ok)
        self.limiters[request.worker].ended(request, ok=ok)
        if request.caller is not None:
            request.caller.answered(request, ok=ok)

    def settled(self, replica: int) -> None:
        """Let all limiters continue after a batch."""
        for limiter in self.limiters:
            limiter.settled(replica)

    def _pause(self, call: Call) -> None:
        limiter = self.limiters[call.worker]
        pause = getattr(limiter, "pause", None)
        if pause is not None:
            pause(call)
            limiter.settled(0)


class Stream:
    """Poisson arrivals of one kind; their draws depend on the seed alone, whatever the limiter does.

    Args:
        world: where they arrive.
        kind: what they have in common.
        rates: requests/s, in steps.
        seed: of the draws.
        users: draws the user; None: no user is known.
        group: of the users, for the counts.
        caller: handles the ends; None: a rejection is final.
    """

    def __init__(
        self,
        world: World,
        kind: Kind,
        rates: Rates,
        seed: str,
        *,
        users: Callable[[random.Random], str] | None = None,
        group: str = "",
        caller: Caller | None = None,
    ) -> None:
        self._world, self._kind, self._rates = world, kind, list(rates)
        self._rng = random.Random(seed)
        self._users, self._group, self._caller = users, group, caller
        self._piece = 0
        self._schedule(self._rates[0][0])

    def _schedule(self, now: float) -> None:
        """Draw the next arrival, anew where a rate ends before: Poisson arrivals have no memory."""
        while True:
            rate = self._rates[self._piece][1]
            at_s = now + self._rng.expovariate(rate) if rate > 0.0 else float("inf")
            ends_s = self._rates[self._piece + 1][0] if self._piece + 1 < len(self._rates) else float("inf")
            if at_s < ends_s:
                self._world.scheduler.at(at_s, self._send)
                return
            if ends_s == float("inf"):
                return
            self._piece += 1
            now = ends_s

    def _send(self, _event: object) -> None:
        world, rng, kind = self._world, self._rng, self._kind
        call = make_call(world, kind, rng)
        if self._users is not None:
            call.user = self._users(rng)
        call.group, call.caller = self._group, self._caller
        world.arrive(call)
        self._schedule(world.scheduler.now)


def make_call(world: World, kind: Kind, rng: random.Random) -> Call:
    """Draw a call of a kind that is sent now."""
    drawn = rng.random()
    high, mid, _ = kind.mix
    priority = 0 if drawn < high else 1 if drawn < high + mid else 2
    call = Call(world.number(), world.scheduler.now, priority, kind)
    if kind.draw_work is not None:
        call.work = kind.draw_work(rng)
        if isinstance(call.work, float):
            call.cost = call.work
    if len(world.limiters) > 1:
        if world.shares:
            (call.worker,) = rng.choices(range(len(world.limiters)), world.shares)
        else:
            call.worker = rng.randrange(len(world.limiters))
    return call
