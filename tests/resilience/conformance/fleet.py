"""Events of the table for the breaker of a fleet: one process, and the replies of the store."""

from __future__ import annotations

from functools import partial

from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    GuardPermit,
    GuardRejection,
    ProbeLease,
    RemoteBreakerState,
)
from tests.resilience.conformance.events import OUTCOMES, EventHandlers, EventRunner, rejection
from tests.resilience.fake_store import FakeStore

STATES = {
    "opens": BreakerState.OPEN,
    "tries": BreakerState.HALF_OPEN,
    "closes": BreakerState.CLOSED,
    "forces open": BreakerState.FORCED_OPEN,
    "disables": BreakerState.DISABLED,
    "resets": BreakerState.CLOSED,
}
BY_OPERATORS = ("forces open", "disables", "resets")


class Fleet(EventRunner):
    """One process of a fleet, with replies of the store given in the row."""

    def __init__(self, rules: BreakerSettings) -> None:
        super().__init__()
        self.store = FakeStore()
        self.version = 0
        self.fence = 0
        self.circuit = GuardState("it", rules, clock=self.clock, store=self.store)
        self.calls: dict[str, GuardPermit] = {}

    def handlers(self) -> EventHandlers:
        circuit = self.circuit
        return {
            r"stored ([\w ]+?)(?: ([\d.]+))?": self.stored,
            r"another (opens|tries|closes|forces open|disables|resets)(?: ([\d.]+))?": self.push,
            r"the same news again": self.again,
            r"older news: opens ([\d.]+)": self.old,
            r"the store gives its lease": self.gives,
            r"the store has no lease left": lambda: self.replies(self.remote("tries", None)),
            r"the store says open for ([\d.]+)": lambda s: self.replies(self.remote("opens", s)),
            r"the store does not answer": lambda: self.replies(None),
            r"the store is away": lambda: self.up(False),
            r"the store is back": lambda: self.up(True),
            r"(ok|fail|slow|neutral)": self.call,
            r"ask ?(\w*)": self.request,
            r"(\w+) (ok|fail|slow|neutral)": self.end,
            r"force open": partial(circuit.breaker.operate, BreakerEvent.FORCE),
            r"reset": partial(circuit.breaker.operate, BreakerEvent.RESET),
            r"state": lambda: str(circuit.state()),
            r"stale": lambda: f"stale {circuit.view().stale_results}",
            r"questions": lambda: f"questions {self.store.questions}",
            r"said": self.reports,
        }

    def remote(self, text: str, wait_s: str | None) -> RemoteBreakerState:
        self.version += 1
        cause = BreakerCause.OPERATOR if text in BY_OPERATORS else BreakerCause.FAILURES
        return RemoteBreakerState(self.version, STATES[text], float(wait_s or 0.0), 0, cause)

    def stored(self, text: str, wait_s: str | None) -> None:
        self.store.first = self.remote(text, wait_s)

    def push(self, text: str, wait_s: str | None) -> None:
        self.update = self.remote(text, wait_s)
        self.store.push(self.update)

    def again(self) -> None:
        self.store.push(self.update)

    def old(self, wait_s: str) -> None:
        self.store.push(RemoteBreakerState(self.version - 1, BreakerState.OPEN, float(wait_s)))

    def gives(self) -> None:
        self.fence += 1
        self.replies(ProbeLease(self.fence, self.version))

    def replies(self, reply: ProbeLease | RemoteBreakerState | None) -> None:
        self.store.replies.append(reply)

    def up(self, up: bool) -> None:
        self.store.is_up = up

    def request(self, name: str) -> str:
        got = self.circuit.allow()
        if isinstance(got, GuardRejection):
            return rejection(got)
        self.calls[name] = got
        if got.serial:
            return "trial of the fleet" if got.fence else "trial"
        return "pass"

    def call(self, outcome: str) -> None:
        got = self.circuit.allow()
        assert isinstance(got, GuardPermit), f"{outcome}: the call was refused"
        self.circuit.record(got, OUTCOMES[outcome])

    def end(self, name: str, outcome: str) -> None:
        self.circuit.record(self.calls[name], OUTCOMES[outcome])

    def reports(self) -> str:
        """Return the messages of the process to the store since the last call."""
        handlers = []
        for kind, _, *figures in self.store.reports:
            match kind:
                case "opened":
                    handlers.append(f"opened for {figures[0]:g}")
                case "finished":
                    handlers.append(f"trial {figures[0]} {figures[1]}")
                case _:
                    handlers.append(f"operated {figures[0]}")
        self.store.reports.clear()
        return " ".join(["said", *(handlers or ["nothing"])])
