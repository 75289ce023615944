"""The breaker compared with its oracle, one feature at a time, to reach rare states."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState
from tests.resilience.oracle import drawn
from tests.resilience.oracle.test_breaker_machine import BreakerMachine, ConcurrentCaller

SHORT = settings(
    max_examples=settings().max_examples * 2 // 3, stateful_step_count=50, report_multiple_bugs=False
)


class RampMachine(BreakerMachine):
    """A ramp without concurrent callers."""

    @initialize(rules=drawn.ramping())
    def begin(self, rules: BreakerSettings) -> None:
        self.set_out(rules, set(), BreakerState.RAMPING)


class WindowMachine(BreakerMachine):
    """Closed, and judged by rates."""

    @initialize(rules=drawn.windowed())
    def begin(self, rules: BreakerSettings) -> None:
        self.set_out(rules, set(), BreakerState.CLOSED)


class OperatedMachine(BreakerMachine):
    """Usual rules, and whatever operators decide, here and elsewhere."""

    @initialize(
        rules=drawn.plain(),
        command=st.sampled_from([BreakerEvent.FORCE, BreakerEvent.DISABLE, BreakerEvent.RESET]),
    )
    def begin(self, rules: BreakerSettings, command: BreakerEvent) -> None:
        self.set_out(rules, {ConcurrentCaller.OPERATOR, ConcurrentCaller.FLEET}, BreakerState.OPEN)
        self.decide(command)


TestRamp = RampMachine.TestCase
TestRamp.settings = SHORT
TestWindow = WindowMachine.TestCase
TestWindow.settings = SHORT
TestOperated = OperatedMachine.TestCase
TestOperated.settings = SHORT
