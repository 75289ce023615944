"""The garbage collector may settle a forgotten permit, or close a waiter, in the midst of anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from autoglm_throttle import (
    Demand,
    Outcome,
    Permit,
    Priority,
    Rejection,
    Settings,
)
from autoglm_throttle.admission import control_loop, controller, counters, permit, settlement, snapshot
from autoglm_throttle.limiting import (
    concurrency_limiter,
    instant,
    queue,
    reserved_share,
    service_estimator,
    sliding_window,
    token_bucket,
    user_limits,
)
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle
from tests.admission.gated_throttle import NOTHING, WIDE, in_flight, left_over, permit_for, ticket_for, warmed
from tests.gc_control import Collector

pytestmark = pytest.mark.untraced

HIGH, MID, LOW = Priority
SLOTS = 3
MID_TOKENS = 36
"""Of a full bucket, which gains next to nothing in a scene."""

SETTINGS = {
    "policy": "concurrency",
    "inflight_start": SLOTS,
    "inflight_max": SLOTS,
    "inflight_floor": 1,
    "burst_s": 3600,
    **WIDE,
    "rate_mid_rps": MID_TOKENS / 3600,
}


WATCHED = {
    str(module.__file__)
    for module in (
        control_loop,
        controller,
        counters,
        settlement,
        permit,
        snapshot,
        concurrency_limiter,
        service_estimator,
        reserved_share,
        instant,
        queue,
        sliding_window,
        token_bucket,
        user_limits,
    )
}
"""Where the books are kept."""


OTHER, SAME = Demand(LOW, "v"), Demand(MID, "u", 3.0)
"""Who stands in line and is given up: somebody else, or who does all the rest here, at a cost of its own."""


class Scene:
    """A throttle with two running requests and one free slot, or three running and some in line.

    Args:
        user_limit: one or more.
        given_up: whom the collector takes out of the line; None: nobody stands in it.
    """

    def __init__(self, user_limit: str, given_up: Demand | None) -> None:
        clock, full = ManualClock(), given_up is not None
        settings = Settings(user_limit=user_limit, **SETTINGS)
        self.throttle = warmed(ManualThrottle(settings, clock, FakeGpu(clock=clock)))
        self.running = [permit_for(self.throttle, Demand(MID, "u")) for _ in range(SLOTS if full else 2)]
        self.in_line = [ticket_for(self.throttle, Demand(MID, "u")) for _ in range(2 if full else 0)]
        self.forgotten = self.running.pop()
        self.given_up = ticket_for(self.throttle, given_up) if given_up else None
        self.rung: list[Ticket] = []

    def collect(self) -> None:
        """What the collector does: end a stream that nobody reads, and a task that nobody awaits."""
        self.forgotten.settle(Outcome.NEUTRAL)
        if self.given_up is not None:
            self.throttle.leave(self.given_up)


Action = Callable[[Scene], None]


def arrive(scene: Scene) -> None:
    take(scene, scene.throttle.try_admit(Demand(MID, "u")))


def take(scene: Scene, verdict: Permit | Ticket | Rejection) -> None:
    if isinstance(verdict, Permit):
        scene.running.append(verdict)
    elif isinstance(verdict, Ticket):
        scene.in_line.append(verdict)


def arrive_later(scene: Scene) -> None:
    """In the next period of the gate, which closes one first."""
    scene.throttle.clock.advance(0.5)
    arrive(scene)


def arrive_too_often(scene: Scene) -> None:
    take(scene, scene.throttle.try_admit(Demand(HIGH, "u", 20.0)))


def settle(scene: Scene) -> None:
    scene.running.pop().settle()


def settle_later(scene: Scene) -> None:
    scene.throttle.clock.advance(0.3)
    settle(scene)


def called(scene: Scene) -> None:
    for ticket, verdict in scene.throttle.called():
        if ticket in scene.in_line:
            scene.in_line.remove(ticket)
        take(scene, verdict)


def called_after_a_settling(scene: Scene) -> None:
    settle(scene)
    called(scene)


def called_too_late(scene: Scene) -> None:
    scene.throttle.clock.advance(0.6)
    called(scene)


def leave(scene: Scene) -> None:
    for ticket in scene.in_line[:1]:
        scene.in_line.remove(ticket)
        scene.throttle.leave(ticket)


def leave_after_the_call(scene: Scene) -> None:
    settle(scene)
    leave(scene)


def look(scene: Scene) -> None:
    """What a task does before it sleeps, and when its bell has rung."""
    for ticket in list(scene.in_line):
        if ticket.on_ready is None:
            wait(scene, ticket)
    while scene.rung:
        resume(scene, scene.rung.pop(0))


def wait(scene: Scene, ticket: Ticket) -> None:
    if ticket.state is TicketState.WAITING:
        ticket.on_ready = lambda: scene.rung.append(ticket)
    else:
        scene.throttle.admission.parts.settlement.mark_claimed(ticket)
    resume(scene, ticket)


def resume(scene: Scene, ticket: Ticket) -> None:
    if ticket in scene.in_line:
        verdict = scene.throttle.admission.poll(ticket)
        if verdict is not None:
            scene.in_line.remove(ticket)
            take(scene, verdict)


def look_too_late(scene: Scene) -> None:
    scene.throttle.clock.advance(0.6)
    look(scene)


def observe(scene: Scene) -> None:
    scene.throttle.tick()


ACTIONS: list[Action] = [
    *(arrive, arrive_later, arrive_too_often, settle, settle_later, called, called_after_a_settling),
    *(called_too_late, leave, leave_after_the_call, look, look_too_late, observe),
]


def even(scene: Scene) -> None:
    """End everything, and compare the books."""
    owner = scene.throttle
    assert TicketState.CANCELLED not in {
        ticket.state for ticket in owner.admission.parts.settlement.unclaimed
    }
    assert owner.admission.parts.settlement.limiter.waiting == 0 or in_flight(owner) == SLOTS
    called(scene)
    for ticket in scene.rung:
        resume(scene, ticket)
    assert in_flight(owner) == len(scene.running)
    assert owner.admission.parts.settlement.limiter.waiting == len(scene.in_line)
    assert sum(owner.snapshot().active.values()) == len(scene.running)
    for ticket in scene.in_line:
        owner.leave(ticket)
    for running in scene.running:
        running.settle()
    snapshot = owner.snapshot()
    assert in_flight(owner) == 0
    assert left_over(owner) == NOTHING
    assert snapshot.stale_results == 0
    admitted = sum(n for (_, name, _), n in snapshot.requests.items() if name == "admitted")
    assert sum(snapshot.outcomes.values()) == admitted
    asked = Demand(HIGH, "u", holds_slot=False)
    spent = 19 - int(permit_for(owner, asked).decision.remaining)
    assert spent == admitted
    mid = owner.admission.parts.buckets.all[MID]
    assert MID_TOKENS - mid.tokens(owner.clock()) == pytest.approx(admitted, abs=0.1)


@pytest.mark.parametrize(
    "user_limit", ["20/minute", pytest.param("20/minute;100/day", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "given_up",
    [pytest.param(None, marks=pytest.mark.slow), OTHER, pytest.param(SAME, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("action", ACTIONS)
def test_counts_match_whenever_the_collector_runs(
    action: Action, given_up: Demand | None, user_limit: str
) -> None:
    moment, seen = 1, 1
    while moment <= seen:
        scene = Scene(user_limit, given_up)
        collector = Collector(scene.collect, moment, WATCHED)
        collector.watch(partial(action, scene))
        seen = collector.seen
        if seen < moment:
            scene.collect()
        even(scene)
        moment += 1


def test_a_cleanup_inside_the_lock_counts_once_and_takes_effect_after_it() -> None:
    """A coroutine that is closed settles its permit, looks whether it is settled, and may settle it again."""
    scene = Scene("20/minute", None)
    running, lock = scene.running[0], scene.throttle.admission.parts.settlement.lock
    with lock:
        running.settle(Outcome.NEUTRAL)
        assert running.settled
        assert in_flight(scene.throttle) == 2
    assert in_flight(scene.throttle) == 1
    snapshot = scene.throttle.snapshot()
    assert (snapshot.outcomes[MID, Outcome.NEUTRAL], snapshot.stale_results) == (1, 0)
    with lock:
        running.settle()
    assert scene.throttle.snapshot().stale_results == 1


ORPHANED = """
import asyncio, gc, os, signal, threading
from autoglm_throttle import Demand, Permit, Settings, Throttle

signal.alarm(60)
one_slot = {"inflight_start": 1, "inflight_max": 1, "inflight_floor": 1}
throttle = Throttle(Settings(policy="concurrency", gpu="none", **one_slot))
running = throttle.try_admit(Demand())
ticket = throttle.try_admit(Demand(slo_s=1000.0))
waiter = throttle.wait(ticket)
loop = asyncio.new_event_loop()
task = loop.create_task(waiter)
loop.run_until_complete(asyncio.sleep(0))
held, done = threading.Event(), threading.Event()

def hold():
    with throttle.admission.parts.settlement.lock:
        held.set()
        done.wait(60)

threading.Thread(target=hold, daemon=True).start()
held.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(60)
    waiter.close()
    running.settle()
    assert isinstance(throttle.try_admit(Demand()), Permit)
    assert throttle.snapshot().oddities["disconnected_in_queue"] == 0
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
done.set()
task.cancel()
loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
assert throttle.snapshot().oddities["disconnected_in_queue"] == 1
print("nothing hung")
"""


def test_a_waiter_of_the_parent_ends_in_a_child_although_the_lock_was_held() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ORPHANED], capture_output=True, text=True, check=False
    )
    assert done.stdout == "nothing hung\n", done.stderr
