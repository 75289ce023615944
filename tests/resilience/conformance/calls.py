"""Events of the table for guarded calls: result of the function, and result of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    Outcome,
)
from tests.resilience import faces
from tests.resilience.conformance.events import EventHandlers, EventRunner, rejection

NAMED: dict[str, type[BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    **{kind.__name__: kind for kind in (KeyboardInterrupt, KeyError, LookupError, TimeoutError, ValueError)},
}


def no_answer(seen: object) -> Outcome | None:
    """An empty list is no answer."""
    return Outcome.FAILURE if seen == [] else None


def one_that_raises(seen: object) -> Outcome | None:
    raise RuntimeError("the classifier itself")


def one_that_babbles(seen: object) -> Any:
    return "fine, I think"


CLASSIFIERS: dict[str, Callable[[object], Outcome | None]] = {
    "empty_fails": no_answer,
    "raises": one_that_raises,
    "babbles": one_that_babbles,
}


def classifier(reports: dict[str, str]) -> OutcomeClassifier:
    """Parse the classifier of a row."""
    ignore, expected = (
        tuple(NAMED[text] for text in reports.get(name, "").split(",") if text)
        for name in ("ignore", "expected")
    )
    return OutcomeClassifier(
        classify=CLASSIFIERS.get(reports.get("classify", "")), ignore=ignore, expected=expected
    )


def error(names: str) -> BaseException:
    """The exception of that name, or the group of them."""
    kinds = names.split("+")
    if len(kinds) > 1:
        return ExceptionGroup("several", [error(kind) for kind in kinds])  # type: ignore[type-var]
    if names == "GuardRefused":
        return GuardRejected(GuardRejection("another", BreakerState.OPEN, BreakerCause.FAILURES, 7.0))
    if names.startswith("httpx."):
        return getattr(httpx, names.removeprefix("httpx."))("the transport")  # type: ignore[no-any-return]
    return NAMED[names]("what went wrong")


class Calls(EventRunner):
    """A guard, and one way of making calls through it."""

    def __init__(self, rules: BreakerSettings, reports: dict[str, str], face: str) -> None:
        super().__init__()
        self.circuit = GuardState("it", rules, clock=self.clock, classifier=classifier(reports))
        self.face = faces.FACES[face]

    def handlers(self) -> EventHandlers:
        circuit = self.circuit
        return {
            r"returns": self.returns,
            r"returns nothing": lambda: self.returns([]),
            r"returns ValueError": lambda: self.returns(ValueError("a value like any other")),
            r"returns after ([\d.]+)": self.returns_late,
            r"raises (\S+)": self.raises,
            r"raises (\S+) after ([\d.]+)": self.raises_late,
            r"hangs": self.hangs,
            r"call": self.call,
            r"open for ([\d.]+)": lambda s: circuit.open_for(float(s)),
            r"force open": partial(circuit.breaker.operate, BreakerEvent.FORCE),
            r"metrics only": partial(circuit.breaker.operate, BreakerEvent.METRICS_ONLY),
            r"state": lambda: str(circuit.state()),
            r"in flight": lambda: f"in flight {circuit.view().in_flight}",
            r"stale": lambda: f"stale {circuit.view().stale_results}",
            r"classifier errors": lambda: f"classifier errors {circuit.view().classifier_errors}",
            r"last failure": lambda: circuit.view().last_failure,
        }

    def returns(self, value: object = "an answer") -> None:
        assert self.face(self.circuit, lambda: value) is value

    def returns_late(self, after_s: str) -> None:
        def act() -> object:
            self.wait(after_s)
            return "an answer"

        assert self.face(self.circuit, act) == "an answer"

    def raises(self, names: str, after_s: str = "0") -> None:
        raised = error(names)

        def act() -> object:
            self.wait(after_s)
            raise raised

        with pytest.raises(type(raised)) as caught:
            self.face(self.circuit, act)
        assert caught.value is raised

    def raises_late(self, names: str, after_s: str) -> None:
        self.raises(names, after_s)

    def hangs(self) -> None:
        assert isinstance(self.circuit.allow(), GuardPermit)

    def call(self) -> str:
        try:
            self.returns()
        except GuardRejected as rejected:
            return rejection(rejected.rejection)
        return "answered"
