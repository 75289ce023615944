"""Histories and states of the live page, made without a thread."""

from __future__ import annotations

from autoglm_throttle import Demand, Permit, Priority
from autoglm_throttle.observe.metric import MetricsInput
from autoglm_throttle.observe.series import STEP_S, History
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.testing import ManualThrottle


def send(throttle: ManualThrottle, count: int, user: str = "one", priority: Priority = Priority.MID) -> None:
    """Send requests that take 0.08 s each, if they are admitted."""
    for _ in range(count):
        verdict = throttle.try_admit(Demand(priority, user=user))
        throttle.clock.advance(0.08)
        if isinstance(verdict, Permit):
            verdict.settle()


def stepped(throttle: ManualThrottle, admitted: int = 0, user: str = "one") -> tuple[MetricsInput, History]:
    """Return the input of the page after a step with some requests."""
    timer = history_timer(throttle)
    for count in (0, admitted):
        send(throttle, count, user)
        throttle.clock.advance(STEP_S - throttle.clock() % STEP_S)
        throttle.tick()
        timer.step()
    return MetricsInput(throttle.snapshot(), throttle.settings), timer.history
