"""The garbage collector may settle a lost permit, or close a waiter, during any operation."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from autoglm_throttle import (
    Demand,
    Outcome,
    Permit,
    Priority,
    Rejection,
    Settings,
)
from autoglm_throttle.admission import (
    control_loop,
    controller,
    counters,
    permit,
    settlement,
    snapshot,
    verdicts,
)
from autoglm_throttle.events import LogEvent
from autoglm_throttle.limiting import (
    concurrency_limiter,
    decisions,
    queue,
    queue_wait,
    service_estimator,
    sliding_window,
    token_bucket,
    user_limits,
)
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle
from tests.admission.limited_throttle import (
    HIGH_RATES,
    NO_REMAINING_STATE,
    in_flight,
    limited_throttle,
    permit_for,
    permits_for,
    remaining_state,
    ticket_for,
    warmed,
)
from tests.gc_control import Collector

pytestmark = pytest.mark.untraced

HIGH, MID, LOW = Priority
SLOTS = 3
MID_TOKENS = 36
"""Tokens of a full bucket, which refills negligibly in a scenario."""

SETTINGS: dict[str, Any] = {
    "policy": "concurrency",
    "inflight_start": SLOTS,
    "inflight_max": SLOTS,
    "inflight_floor": 1,
    "burst_s": 3600,
    **HIGH_RATES,
    "rate_mid_rps": MID_TOKENS / 3600,
}


WATCHED = {
    str(module.__file__)
    for module in (
        control_loop,
        controller,
        verdicts,
        counters,
        settlement,
        permit,
        snapshot,
        concurrency_limiter,
        service_estimator,
        decisions,
        queue,
        queue_wait,
        sliding_window,
        token_bucket,
        user_limits,
    )
}
"""Modules whose state must be consistent."""


OTHER, SAME = Demand(LOW, "v"), Demand(MID, "u", 3.0)
"""Demands of the abandoned waiter: of another user, or of the user of the scenario, at another cost."""


class QueueScenario:
    """A throttle with two running requests and one free slot, or three running and some queued.

    Args:
        user_limit: one or more.
        abandoned: demand of the waiter cancelled by the collector; None: empty queue.
    """

    def __init__(self, user_limit: str, abandoned: Demand | None) -> None:
        clock, full = ManualClock(), abandoned is not None
        settings = Settings(user_limit=user_limit, **SETTINGS)
        self.throttle = warmed(ManualThrottle(settings, clock, FakeGpu(clock=clock)))
        self.running = [permit_for(self.throttle, Demand(MID, "u")) for _ in range(SLOTS if full else 2)]
        self.in_queue = [ticket_for(self.throttle, Demand(MID, "u")) for _ in range(2 if full else 0)]
        self.lost_permit = self.running.pop()
        self.abandoned = ticket_for(self.throttle, abandoned) if abandoned else None
        self.woken: list[Ticket] = []

    def collect(self) -> None:
        """End an abandoned stream and an abandoned waiter, as the garbage collector does."""
        self.lost_permit.settle(Outcome.NEUTRAL)
        if self.abandoned is not None:
            self.throttle.leave(self.abandoned)


Action = Callable[[QueueScenario], None]


def arrive(scenario: QueueScenario) -> None:
    take(scenario, scenario.throttle.try_admit(Demand(MID, "u")))


def take(scenario: QueueScenario, verdict: Permit | Ticket | Rejection) -> None:
    if isinstance(verdict, Permit):
        scenario.running.append(verdict)
    elif isinstance(verdict, Ticket):
        scenario.in_queue.append(verdict)


def arrive_later(scenario: QueueScenario) -> None:
    """Arrive in the next period of the limiter, which closes the last one first."""
    scenario.throttle.clock.advance(0.5)
    arrive(scenario)


def arrive_too_often(scenario: QueueScenario) -> None:
    take(scenario, scenario.throttle.try_admit(Demand(HIGH, "u", 20.0)))


def settle(scenario: QueueScenario) -> None:
    scenario.running.pop().settle()


def settle_later(scenario: QueueScenario) -> None:
    scenario.throttle.clock.advance(0.3)
    settle(scenario)


def called(scenario: QueueScenario) -> None:
    for ticket, verdict in scenario.throttle.called():
        if ticket in scenario.in_queue:
            scenario.in_queue.remove(ticket)
        take(scenario, verdict)


def called_after_a_settling(scenario: QueueScenario) -> None:
    settle(scenario)
    called(scenario)


def called_too_late(scenario: QueueScenario) -> None:
    scenario.throttle.clock.advance(0.6)
    called(scenario)


def leave(scenario: QueueScenario) -> None:
    for ticket in scenario.in_queue[:1]:
        scenario.in_queue.remove(ticket)
        scenario.throttle.leave(ticket)


def leave_after_the_call(scenario: QueueScenario) -> None:
    settle(scenario)
    leave(scenario)


def look(scenario: QueueScenario) -> None:
    """Poll a ticket, as a task before it sleeps and after its wake-up."""
    for ticket in list(scenario.in_queue):
        if ticket.on_ready is None:
            wait(scenario, ticket)
    while scenario.woken:
        resume(scenario, scenario.woken.pop(0))


def wait(scenario: QueueScenario, ticket: Ticket) -> None:
    if ticket.state is TicketState.WAITING:
        ticket.on_ready = lambda: scenario.woken.append(ticket)
    else:
        scenario.throttle.admission.parts.settlement.mark_claimed(ticket)
    resume(scenario, ticket)


def resume(scenario: QueueScenario, ticket: Ticket) -> None:
    if ticket in scenario.in_queue:
        verdict = scenario.throttle.admission.verdicts.poll(ticket)
        if verdict is not None:
            scenario.in_queue.remove(ticket)
            take(scenario, verdict)


def look_too_late(scenario: QueueScenario) -> None:
    scenario.throttle.clock.advance(0.6)
    look(scenario)


def observe(scenario: QueueScenario) -> None:
    scenario.throttle.tick()


ACTIONS: list[Action] = [
    *(arrive, arrive_later, arrive_too_often, settle, settle_later, called, called_after_a_settling),
    *(called_too_late, leave, leave_after_the_call, look, look_too_late, observe),
]


def check_counts(scenario: QueueScenario) -> None:
    """End all requests, and compare the counts."""
    owner = scenario.throttle
    assert TicketState.CANCELLED not in {
        ticket.state for ticket in owner.admission.parts.settlement.unclaimed
    }
    assert owner.admission.parts.settlement.limiter.waiting == 0 or in_flight(owner) == SLOTS
    called(scenario)
    for ticket in scenario.woken:
        resume(scenario, ticket)
    assert in_flight(owner) == len(scenario.running)
    assert owner.admission.parts.settlement.limiter.waiting == len(scenario.in_queue)
    assert sum(owner.snapshot().active.values()) == len(scenario.running)
    for ticket in scenario.in_queue:
        owner.leave(ticket)
    for running in scenario.running:
        running.settle()
    snapshot = owner.snapshot()
    assert in_flight(owner) == 0
    assert remaining_state(owner) == NO_REMAINING_STATE
    assert snapshot.stale_results == 0
    admitted = sum(n for (_, name, _), n in snapshot.requests.items() if name == "admitted")
    assert sum(snapshot.outcomes.values()) == admitted
    requested = Demand(HIGH, "u", holds_slot=False)
    spent = 19 - int(permit_for(owner, requested).decision.remaining)
    assert spent == admitted
    mid = owner.admission.parts.buckets.all[MID]
    assert MID_TOKENS - mid.tokens(owner.clock()) == pytest.approx(admitted, abs=0.1)


@pytest.mark.parametrize(
    "user_limit", ["20/minute", pytest.param("20/minute;100/day", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "abandoned",
    [pytest.param(None, marks=pytest.mark.slow), OTHER, pytest.param(SAME, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("action", ACTIONS)
def test_counts_match_whenever_the_collector_runs(
    action: Action, abandoned: Demand | None, user_limit: str
) -> None:
    moment, seen = 1, 1
    while moment <= seen:
        scenario = QueueScenario(user_limit, abandoned)
        collector = Collector(scenario.collect, moment, WATCHED)
        collector.watch(partial(action, scenario))
        seen = collector.seen
        if seen < moment:
            scenario.collect()
        check_counts(scenario)
        moment += 1


def test_cleanup_inside_the_lock_counts_once_and_is_deferred() -> None:
    """A closed coroutine settles its permit, checks that, and may settle it again."""
    scenario = QueueScenario("20/minute", None)
    running, lock = scenario.running[0], scenario.throttle.admission.parts.settlement.lock
    with lock:
        running.settle(Outcome.NEUTRAL)
        assert running.settled
        assert in_flight(scenario.throttle) == 2
    assert in_flight(scenario.throttle) == 1
    snapshot = scenario.throttle.snapshot()
    assert (snapshot.outcomes[MID, Outcome.NEUTRAL], snapshot.stale_results) == (1, 0)
    with lock:
        running.settle()
    assert scenario.throttle.snapshot().stale_results == 1


def test_hundreds_of_cleanups_inside_the_lock_fail_no_request() -> None:
    throttle = limited_throttle(1000)
    running = permits_for(throttle, 900)
    with throttle.admission.parts.settlement.lock:
        for abandoned in running:
            abandoned.settle(Outcome.NEUTRAL)
    assert in_flight(throttle) == 0
    assert throttle.snapshot().outcomes[LOW, Outcome.NEUTRAL] == 900


def test_a_cleanup_inside_the_lock_writes_no_log() -> None:
    throttle = limited_throttle()
    permit_for(throttle, Demand(LOW))
    ticket = ticket_for(throttle, Demand(LOW))
    lock, held = throttle.admission.parts.settlement.lock, list[bool]()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            held.append(lock.is_held())

    handler = Handler()
    logging.getLogger("autoglm_throttle").addHandler(handler)
    try:
        with lock:
            throttle.admission.parts.events.waiting.append(LogEvent("test", logging.WARNING, "a line", {}))
            throttle.leave(ticket)
        throttle.snapshot()
    finally:
        logging.getLogger("autoglm_throttle").removeHandler(handler)
    assert held == [False]


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


def test_waiter_of_the_parent_ends_in_a_child_with_held_lock() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ORPHANED], capture_output=True, text=True, check=False
    )
    assert done.stdout == "nothing hung\n", done.stderr
