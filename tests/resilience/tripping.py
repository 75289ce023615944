"""Circuits in the initial states of tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoglm_throttle.resilience.fallback import Feature
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import BreakerState, BreakerTransition, GuardPermit, GuardRejection, Outcome


class RecordedTransitions:
    """Records announced transitions."""

    def __init__(self) -> None:
        self.changes: list[BreakerTransition] = []

    def __call__(self, changes: Sequence[BreakerTransition]) -> None:
        self.changes.extend(changes)

    @property
    def states(self) -> list[BreakerState]:
        """Return the announced states."""
        return [change.after for change in self.changes]


class Clocked(GuardState):
    """A circuit on a clock that only the test advances."""

    clock: ManualClock

    def __init__(self, rules: BreakerSettings | None = None, **parts: Any) -> None:
        super().__init__("db", rules or BreakerSettings(failures=1), clock=ManualClock(), **parts)


class Shedding:
    """An executor whose feature is shed while it has a rejection."""

    def __init__(self, rejection: GuardRejection | None) -> None:
        self.rejection = rejection
        self.feature = Feature("db")

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return fn(*args, **kwargs)

    async def call_async(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return await fn(*args, **kwargs)

    def check_function(self, *, asynchronous: bool) -> None:
        """Accept any function."""

    def shed_rejection(self, *, counted: bool) -> GuardRejection | None:
        del counted
        return self.rejection


def passed(answer: GuardPermit | GuardRejection) -> GuardPermit:
    """Return the permit; fail without one."""
    assert isinstance(answer, GuardPermit), answer
    return answer


def rejected(answer: GuardPermit | GuardRejection) -> GuardRejection:
    """Return the rejection; fail without one."""
    assert isinstance(answer, GuardRejection), answer
    return answer


def fail(circuit: GuardState, times: int = 1) -> None:
    """Record failed calls."""
    for _ in range(times):
        circuit.record(passed(circuit.allow()), Outcome.FAILURE, "it fails")


def opened(rules: BreakerSettings | None = None, **parts: Any) -> Clocked:
    """Build a circuit that has just opened."""
    circuit = Clocked(rules, **parts)
    fail(circuit, circuit.settings.failures)
    assert circuit.state() is BreakerState.OPEN
    return circuit


def half_open(rules: BreakerSettings | None = None, **parts: Any) -> Clocked:
    """Build a circuit whose open period has just ended."""
    circuit = opened(rules, **parts)
    circuit.clock.advance(circuit.settings.open_s)
    assert circuit.state() is BreakerState.HALF_OPEN
    return circuit
