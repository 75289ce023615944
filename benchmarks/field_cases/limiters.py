"""Limiters of the field cases: the real `Throttle`, and a limit set by hand with a bounded queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoglm_throttle import Demand, Outcome, Permit, Priority, RoutePolicy, Settings, Throttle
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.types import GpuSample
from benchmarks.field_cases.call import Call, Kind
from benchmarks.field_cases.world import World
from benchmarks.loop.limiters.limiter import BaseLimiter, Limiter, LimiterContext
from benchmarks.loop.limiters.no_limit import NoLimit
from benchmarks.loop.limiters.shares import Gradient, SharesLimiter
from benchmarks.loop.limiters.throttle_limiter import UnusedProvider
from benchmarks.loop.request import Request

CEILING_RPS = 1e6
"""Rates that never act: the concurrency limit alone is measured."""

SLO_S = 2.0
"""Objective in the settings, unless a case names another one; None: no objective is set."""

QUEUE_PER_SLOT = 4
"""Requests that a limit set by hand lets wait, for each slot."""

WAIT_SHARE = 0.25
"""Share of the objective of the shortest requests that all wait for a limit set by hand.

It is one time for all, as a person sets it: long requests that waited longer would stand before short ones.
"""

OURS = "ours"
PEERS = ("gradient", "fixed")


class FieldThrottle(BaseLimiter):
    """A `Throttle` on the clock of the scheduler, driven through its synchronous methods.

    Args:
        context: time and service.
        settings: of the throttle.
    """

    def __init__(self, context: LimiterContext, settings: Settings) -> None:
        self._context = context
        self.throttle = Throttle(
            settings, gpu=UnusedProvider(), sampling="manual", clock=context.scheduler.clock
        )
        self.throttle.start()
        self._demands: dict[tuple[str, int, str], Demand] = {}
        self._waiting: dict[Ticket, Call] = {}

    def arrive(self, request: Request) -> None:
        """Request admission from the throttle."""
        assert isinstance(request, Call)
        verdict = self.throttle.try_admit(self._demand(request))
        if isinstance(verdict, Permit):
            self._admit(request, verdict)
        elif isinstance(verdict, Ticket):
            self._waiting[verdict] = request
            self._context.scheduler.at(verdict.arrived_s + verdict.max_wait_s, self._poll)
        else:
            request.retry_after_s = verdict.decision.retry_after_s
            self._context.reject(request)
        if self._waiting:
            self._poll(None)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Settle the permit."""
        request.tag.settle(Outcome.SUCCESS if ok else Outcome.FAILURE)

    def settled(self, replica: int) -> None:  # noqa: ARG002
        """Admit the tickets that became ready."""
        if self._waiting:
            self._poll(None)

    def pause(self, call: Call) -> None:
        """Pause the permit, if permits can be paused."""
        pause = getattr(call.tag, "pause", None)
        if pause is not None:
            pause()

    def watch(self, read: Callable[[], Sequence[GpuSample]], every_s: float) -> None:
        """Pass the samples of an engine to the throttle."""

        def observe(_event: object) -> None:
            self.throttle.observe(read())
            self._context.scheduler.at(self._context.scheduler.now + every_s, observe)

        self._context.scheduler.at(every_s, observe)

    def _admit(self, call: Call, permit: Permit) -> None:
        call.tag = permit
        call.on_first_token = permit.record_first_event
        self._context.admit(call)

    def _demand(self, call: Call) -> Demand:
        key = (call.kind.name, call.priority, call.user)
        found = self._demands.get(key)
        if found is None:
            kind = call.kind
            found = self._demands[key] = Demand(
                Priority(call.priority),
                user=call.user or "anonymous",
                route=kind.name or None,
                slo_s=kind.slo_s if kind.declares_slo else None,
            )
        return found

    def _poll(self, _event: object) -> None:
        for ticket, verdict in self.throttle.called():
            call = self._waiting.pop(ticket)
            if isinstance(verdict, Permit):
                self._admit(call, verdict)
            else:
                call.retry_after_s = verdict.decision.retry_after_s
                self._context.reject(call)


class FixedLimiter(BaseLimiter):
    """A constant limit with a queue by priority that is bounded in length and in time.

    Args:
        context: time, service and objective.
        limit: requests in flight at most.
        queued: whether requests wait for it.
    """

    def __init__(self, context: LimiterContext, limit: int, *, queued: bool = True) -> None:
        self._context = context
        self._limit = limit
        self._length = QUEUE_PER_SLOT * limit if queued else 0
        self._queues: tuple[deque[Request], ...] = (deque(), deque(), deque())
        self._in_flight = 0

    def arrive(self, request: Request) -> None:
        """Admit the request, enqueue it, or reject it or one that is less important."""
        self.settled(0)
        if self._in_flight < self._limit:
            self._start(request)
            return
        if sum(map(len, self._queues)) >= self._length:
            less = next((queue for queue in self._queues[: request.priority : -1] if queue), None)
            self._context.reject(less.pop() if less else request)
            if not less:
                return
        self._queues[request.priority].append(request)

    def ended(self, request: Request, *, ok: bool) -> None:  # noqa: ARG002
        """Release the slot."""
        self._in_flight -= 1

    def settled(self, replica: int) -> None:  # noqa: ARG002
        """Fill the free slots, high first, and reject requests that waited too long."""
        now = self._context.scheduler.now
        for queue in self._queues:
            while queue:
                if now - queue[0].sent_s > WAIT_SHARE * self._context.slo_s:
                    self._context.reject(queue.popleft())
                elif self._in_flight < self._limit:
                    self._start(queue.popleft())
                else:
                    break

    def _start(self, request: Request) -> None:
        self._in_flight += 1
        self._context.admit(request)


def maker(
    name: str,
    *,
    fixed: int,
    tuning: Sequence[tuple[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    kinds: Sequence[Kind] = (),
) -> Callable[[World, int], Limiter]:
    """Return what makes a limiter for each of some workers.

    Args:
        name: ``ours``, ``gradient``, ``none``, ``fixed``, or ``fixed:N`` and ``fixed:N:unqueued``.
        fixed: the limit set by hand, for all workers together.
        tuning: settings of the throttle from the command line.
        settings: settings of the throttle in this case.
        kinds: their declared objectives become those of routes.
    """

    def make(world: World, workers: int) -> Limiter:
        if name == OURS:
            return FieldThrottle(world, _settings(workers, tuning, settings or {}, kinds))
        if name == "gradient":
            return SharesLimiter(world, Gradient(world.scheduler))
        return NoLimit(world) if name == "none" else make_fixed(world, name, fixed, workers)

    return make


def make_fixed(context: LimiterContext, name: str, fixed: int, workers: int = 1) -> FixedLimiter:
    """Make a constant limit from its name."""
    _, _, rest = name.partition(":")
    number, _, unqueued = rest.partition(":")
    return FixedLimiter(context, max(1, int(number or fixed) // workers), queued=not unqueued)


def _settings(
    workers: int, tuning: Sequence[tuple[str, Any]], settings: Mapping[str, Any], kinds: Sequence[Kind]
) -> Settings:
    routes = [
        RoutePolicy(f"/{kind.name}", name=kind.name, slo_s=kind.slo_s) for kind in kinds if kind.declares_slo
    ]
    values: dict[str, Any] = {
        "policy": "concurrency",
        "slo_s": SLO_S,
        "rate_high_rps": CEILING_RPS,
        "rate_mid_rps": CEILING_RPS,
        "rate_low_rps": CEILING_RPS,
        "workers": workers,
        **({"routes": routes} if routes else {}),
        **settings,
        **dict(tuning),
    }
    return Settings(**{name: value for name, value in values.items() if value is not None})
