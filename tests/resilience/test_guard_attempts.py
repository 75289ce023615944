"""Replacement answers of a guarded function, and its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from autoglm_throttle.resilience.calls import GuardedAttempt, attempt, attempt_async
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.types import BreakerState, GuardRejection, Outcome
from tests.resilience.doubling import Slot, double, double_later
from tests.resilience.faces import drive
from tests.resilience.tripping import Clocked, Shedding, half_open, opened


class Substitute(Shedding):
    """Answers in the place of a dependency."""

    def __init__(self) -> None:
        super().__init__(None)
        self.fits: list[bool] = []

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return ("plain", fn(*args, **kwargs))

    async def call_async(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return ("async", await fn(*args, **kwargs))

    def check_function(self, *, asynchronous: bool) -> None:
        self.fits.append(asynchronous)


@pytest.mark.parametrize("state", ["closed", "open"])
@pytest.mark.parametrize("early", [True, False])
def test_a_substitute_answers_whatever_the_state(state: str, early: bool) -> None:
    circuit = Clocked() if state == "closed" else opened()
    substitute, guard = Substitute(), Guard(circuit)
    if early:
        circuit.attach(substitute)
    first, second = guard(double), guard(double_later)
    circuit.attach(substitute)
    assert first(3) == ("plain", 6)  # type: ignore[comparison-overlap]
    assert drive(second(3)) == ("async", 6)
    assert substitute.fits == ([False, True] if early else [])
    assert circuit.view().rejected == {}


def test_shed_query_uses_the_substitute() -> None:
    circuit = opened()
    substitute = Substitute()
    circuit.attach(substitute)
    rejection = circuit.rejection()
    assert rejection is not None
    assert rejection.retry_after_s == 10.0
    shed = GuardRejection("db", BreakerState.CLOSED, rejection.cause, 3.0)
    substitute.rejection = shed
    assert circuit.rejection() is shed


# One attempt as a value


def attempted(function: Callable[[], object], circuit: Clocked, *, asynchronous: bool) -> GuardedAttempt:
    async def call() -> object:
        return function()

    if asynchronous:
        found: GuardedAttempt = drive(attempt_async(circuit, call, (), {}))
        return found
    return attempt(circuit, function, (), {})


def fails() -> None:
    raise OSError("the dependency's")


@pytest.mark.parametrize("asynchronous", [True, False])
def test_attempt_reports_its_outcome(asynchronous: bool) -> None:
    circuit = Clocked()
    assert attempted(lambda: 7, circuit, asynchronous=asynchronous) == GuardedAttempt(
        7, None, Outcome.SUCCESS
    )
    made = attempted(fails, circuit, asynchronous=asynchronous)
    assert isinstance(made.error, OSError)
    assert made.outcome is Outcome.FAILURE
    made = attempted(fails, circuit, asynchronous=asynchronous)
    assert (made.outcome, made.error) == (None, None)
    assert made.rejection is not None
    assert made.rejection.retry_after_s == 10.0


def test_an_attempt_with_an_awaitable_is_open_until_that_ends() -> None:
    circuit = half_open()
    made = attempt(circuit, Slot, (), {})
    assert made.outcome is Outcome.NEUTRAL
    assert circuit.state() is BreakerState.HALF_OPEN
    assert drive(made.value) == 7
    assert circuit.state() is BreakerState.CLOSED


def test_base_exception_passes_an_attempt() -> None:
    circuit = half_open()

    def interrupted() -> None:
        raise KeyboardInterrupt

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(KeyboardInterrupt):
        attempt(circuit, interrupted, (), {})
    cancelling: Coroutine[Any, Any, GuardedAttempt] = attempt_async(circuit, cancelled, (), {})
    with pytest.raises(asyncio.CancelledError):
        drive(cancelling)
    assert circuit.view().probes == 0
    assert circuit.state() is BreakerState.HALF_OPEN
