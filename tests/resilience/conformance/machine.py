"""The words of the table for the machine alone: time is passed in, calls are asked for and told by name."""

from __future__ import annotations

import re
from collections.abc import Callable

from autoglm_throttle.model import Cause, Outcome
from autoglm_throttle.model.guard import Pass, Refusal, Transition
from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.rules import Rules

OUTCOMES = {
    "ok": Outcome.SUCCESS,
    "fail": Outcome.FAILURE,
    "slow": Outcome.SLOW,
    "neutral": Outcome.NEUTRAL,
}


def seconds(value: float) -> str:
    """As the table writes them: what a float adds far behind the point is no matter."""
    return f"{value:.6g}"


def refusal(refused: Refusal) -> str:
    return f"refused {seconds(refused.retry_after_s)} {refused.cause}"


def told(transitions: list[Transition]) -> str:
    steps = [f"{step.before}>{step.after}({step.cause})" for step in transitions]
    return " ".join(["told", *(steps or ["nothing"])])


class Machine:
    """One breaker, its clock, and the calls that are under way."""

    def __init__(self, rules: Rules) -> None:
        self.now = 1000.0
        self.breaker = Breaker("it", rules, self.now)
        self.calls: dict[str, Pass] = {}

    def does(self, event: str) -> str | None:
        """Let an event happen; its answer, if it is one that brings an answer."""
        for pattern, act in self.words().items():
            match = re.fullmatch(pattern, event)
            if match:
                return act(*match.groups())
        raise LookupError(event)

    def words(self) -> dict[str, Callable[..., str | None]]:
        breaker = self.breaker
        return {
            r"(ok|fail|slow|neutral)": self.call,
            r"ask ?(\w*)": self.ask,
            r"(\w+) (ok|fail|slow|neutral)": self.end,
            r"wait ([\d.]+)": self.wait,
            r"step back ([\d.]+)": self.step_back,
            r"force open": lambda: breaker.force_open(self.now),
            r"disable": lambda: breaker.disable(self.now),
            r"metrics only": lambda: breaker.metrics_only(self.now),
            r"reset": lambda: breaker.reset(self.now),
            r"open for ([\d.]+)": lambda s: breaker.open_for(float(s), Cause.RETRY_AFTER, self.now),
            r"state": lambda: str(breaker.state(self.now)),
            r"stale": lambda: f"stale {breaker.view(self.now).stale_results}",
            r"would refuse": lambda: f"would refuse {breaker.view(self.now).would_refuse}",
            r"told": lambda: told(breaker.drain()),
            r"look": self.look,
        }

    def ask(self, name: str) -> str:
        got = self.breaker.allow(self.now)
        if isinstance(got, Refusal):
            return refusal(got)
        self.calls[name] = got
        return self.leave(got)

    def leave(self, got: Pass) -> str:
        return "trial" if got.serial and not self.breaker.rules.max_in_flight else "pass"

    def call(self, outcome: str) -> None:
        got = self.breaker.allow(self.now)
        assert isinstance(got, Pass), f"{outcome}: the call was refused"
        self.breaker.record(got, OUTCOMES[outcome], self.now)

    def end(self, name: str, outcome: str) -> None:
        self.breaker.record(self.calls[name], OUTCOMES[outcome], self.now)

    def wait(self, span_s: str) -> None:
        self.now = round(self.now + float(span_s), 6)

    def step_back(self, span_s: str) -> None:
        self.now = round(self.now - float(span_s), 6)

    def look(self) -> None:
        repr(self.breaker)
        self.breaker.view(self.now)
        self.breaker.state(self.now)
        self.breaker.refuses(self.now)
