"""Events of the table for the state machine alone: time is passed in, calls have names."""

from __future__ import annotations

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import GuardPermit, GuardRejection
from tests.resilience.conformance.events import OUTCOMES, EventHandlers, EventRunner, notified, rejection


class Machine(EventRunner):
    """One breaker, and its calls in flight."""

    def __init__(self, rules: BreakerSettings) -> None:
        super().__init__()
        self.breaker = Breaker("it", rules)
        self.calls: dict[str, GuardPermit] = {}

    def handlers(self) -> EventHandlers:
        breaker = self.breaker
        return {
            r"(ok|fail|slow|neutral)": self.call,
            r"ask ?(\w*)": self.request,
            r"(\w+) (ok|fail|slow|neutral)": self.end,
            r"force open": lambda: breaker.operate(BreakerEvent.FORCE, self.now),
            r"disable": lambda: breaker.operate(BreakerEvent.DISABLE, self.now),
            r"metrics only": lambda: breaker.operate(BreakerEvent.METRICS_ONLY, self.now),
            r"reset": lambda: breaker.operate(BreakerEvent.RESET, self.now),
            r"open for ([\d.]+)": lambda s: breaker.open_for(float(s), self.now),
            r"state": lambda: str(breaker.state(self.now)),
            r"stale": lambda: f"stale {breaker.view(self.now).stale_results}",
            r"would refuse": lambda: f"would refuse {breaker.view(self.now).would_reject}",
            r"told": lambda: notified(breaker.machine.drain()),
            r"look": self.look,
        }

    def request(self, name: str) -> str:
        got = self.breaker.allow(self.now)
        if isinstance(got, GuardRejection):
            return rejection(got)
        self.calls[name] = got
        return "trial" if got.serial and not self.breaker.settings.max_in_flight else "pass"

    def call(self, outcome: str) -> None:
        got = self.breaker.allow(self.now)
        assert isinstance(got, GuardPermit), f"{outcome}: the call was refused"
        self.breaker.record(got, OUTCOMES[outcome], self.now)

    def end(self, name: str, outcome: str) -> None:
        self.breaker.record(self.calls[name], OUTCOMES[outcome], self.now)

    def look(self) -> None:
        self.breaker.view(self.now)
        self.breaker.state(self.now)
        self.breaker.rejection(self.now)
