"""Common demands of the throttle tests, and their decisions."""

import threading
from collections.abc import Callable

from autoglm_throttle import (
    Decision,
    Demand,
    Permit,
    Priority,
    Throttle,
    Ticket,
)
from autoglm_throttle.testing import ManualThrottle

DEADLINE_S = 60.0
"""Longest wait for a thread; only a fault takes this long."""


def decided(
    throttle: Throttle, priority: Priority = Priority.MID, user: str = "", cost: float = 1.0
) -> Decision:
    verdict = throttle.try_admit(Demand(priority, user, cost))
    assert not isinstance(verdict, Ticket)
    return verdict.decision


def admitted(throttle: Throttle, times: int, priority: Priority = Priority.MID, user: str = "") -> int:
    return sum(decided(throttle, priority, user).allowed for _ in range(times))


def overheated(throttle: ManualThrottle, utilization_pct: float, samples: int = 3) -> ManualThrottle:
    throttle.gpu.utilization_pct = utilization_pct
    throttle.tick(samples)
    return throttle


def permit_of(throttle: Throttle) -> Permit:
    permit = throttle.try_admit(Demand())
    assert isinstance(permit, Permit)
    return permit


def run_threads(threads: int, work: Callable[[int], object]) -> None:
    """Run ``work`` in threads that start at the same instant."""
    barrier = threading.Barrier(threads)
    errors: list[Exception] = []

    def run(number: int) -> None:
        barrier.wait(DEADLINE_S)
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - the test's thread raises it
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert not errors
