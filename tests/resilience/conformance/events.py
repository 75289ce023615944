"""Common events of all parts of the table: patterns, each with its handler."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from autoglm_throttle.types import BreakerTransition, GuardRejection, Outcome

OUTCOMES = {
    "ok": Outcome.SUCCESS,
    "fail": Outcome.FAILURE,
    "slow": Outcome.SLOW,
    "neutral": Outcome.NEUTRAL,
}

EventHandlers = Mapping[str, Callable[..., str | None]]


class EventRunner:
    """Runs the events of a row on a manual clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def handlers(self) -> EventHandlers:
        """Return the handlers by pattern; each gets the groups and may return a result."""
        raise NotImplementedError

    def run_all(self, events: list[str]) -> list[str]:
        """Run all events; returns the results."""
        answers = [self.run_event(event) for event in events]
        return [answer for answer in answers if answer is not None]

    def run_event(self, event: str) -> str | None:
        """Run one event; returns its result, if it has one."""
        usual: EventHandlers = {r"wait ([\d.]+)": self.wait, r"step back ([\d.]+)": self.step_back}
        for pattern, act in {**usual, **self.handlers()}.items():
            match = re.fullmatch(pattern, event)
            if match:
                return act(*match.groups())
        raise LookupError(f"no such event: {event}")

    def clock(self) -> float:
        return self.now

    def wait(self, span_s: str) -> None:
        self.now = round(self.now + float(span_s), 6)

    def step_back(self, span_s: str) -> None:
        self.now = round(self.now - float(span_s), 6)


def seconds(value: float) -> str:
    """Format seconds as in the table, without rounding errors."""
    return f"{value:.6g}"


def rejection(rejected: GuardRejection) -> str:
    return f"refused {seconds(rejected.retry_after_s)} {rejected.cause}"


def notified(transitions: list[BreakerTransition]) -> str:
    steps = [f"{step.before}>{step.after}({step.cause})" for step in transitions]
    return " ".join(["told", *(steps or ["nothing"])])
