"""One guarded act through each of the faces, without an event loop: nothing here really waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from autoglm_throttle.resilience.calls import attempt, attempt_async
from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import Outcome, SlowCallMode, TripRule

Act = Callable[[], object]


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("it waits for something")


def block(circuit: GuardState, act: Act) -> object:
    with Guard(circuit):
        return act()


def async_block(circuit: GuardState, act: Act) -> object:
    async def call() -> object:
        async with Guard(circuit):
            return act()

    return drive(call())


def function(circuit: GuardState, act: Act) -> object:
    @Guard(circuit)
    def call() -> object:
        return act()

    return call()


def coroutine(circuit: GuardState, act: Act) -> object:
    @Guard(circuit)
    async def call() -> object:
        return act()

    return drive(call())


def awaitable(circuit: GuardState, act: Act) -> object:
    async def inner() -> object:
        return act()

    @Guard(circuit)
    def call() -> Coroutine[Any, Any, object]:
        return inner()

    return drive(call())


def generator(circuit: GuardState, act: Act) -> object:
    @Guard(circuit)
    def stream() -> Iterator[object]:
        yield "first"
        yield act()

    return list(stream())[-1]


def async_generator(circuit: GuardState, act: Act) -> object:
    @Guard(circuit)
    async def stream() -> AsyncIterator[object]:
        yield "first"
        yield act()

    async def call() -> object:
        return [item async for item in stream()][-1]

    return drive(call())


def tried(circuit: GuardState, act: Act) -> object:
    attempted = attempt(circuit, act, (), {})
    if attempted.error is not None:
        raise attempted.error
    return attempted.value


def async_tried(circuit: GuardState, act: Act) -> object:
    async def call() -> object:
        return act()

    attempted = drive(attempt_async(circuit, call, (), {}))
    if attempted.error is not None:
        raise attempted.error
    return attempted.value


FACES: dict[str, Callable[[GuardState, Act], object]] = {
    face.__name__: face
    for face in (
        *(block, async_block, function, coroutine, awaitable, generator, async_generator),
        *(tried, async_tried),
    )
}

STREAMS = ("generator", "async_generator")
"""They have no returned value, and slowness of their own."""

BLOCKS = ("block", "async_block")
"""They have no returned value."""


def notifying(classifier: OutcomeClassifier | None = None, slow_call_s: float | None = None) -> GuardState:
    """Build a closed circuit with one recorded failure, so that the next outcome is visible."""
    rules = BreakerSettings(
        failures=3,
        trip=frozenset({TripRule.CONSECUTIVE, TripRule.SLOW_RATE}),
        slow_is=SlowCallMode.SEPARATE,
        slow_call_s=slow_call_s,
    )
    circuit = GuardState("told", rules, clock=ManualClock(), classifier=classifier)
    entered = circuit.breaker.core.allow(circuit.clock())
    circuit.breaker.core.record(entered, Outcome.FAILURE, circuit.clock())  # type: ignore[arg-type]
    return circuit


def notified(circuit: GuardState) -> Outcome:
    """The outcome of the one call since `telling`."""
    view = circuit.view()
    if view.window_slow:
        return Outcome.SLOW
    by_streak = {0: Outcome.SUCCESS, 1: Outcome.NEUTRAL, 2: Outcome.FAILURE}
    assert view.calls == 2
    return by_streak[view.streak]
