"""Whatever becomes of a trial, the next is made: at once, or when the lease is over; also under traffic."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, GuardPermit, GuardRejected, Outcome
from tests.resilience.doubling import Slot
from tests.resilience.tripping import Clocked, fail, half_open

LEASE_S = 30.0


class Never(Slot):
    def __await__(self) -> Any:
        yield


async def hangs() -> None:
    await Never()


def block(circuit: GuardState) -> object:
    guard = Guard(circuit)
    guard.__enter__()
    return guard


def async_block(circuit: GuardState) -> object:
    async def call() -> None:
        async with Guard(circuit):
            await Never()

    return begun(call())


def coroutine(circuit: GuardState) -> object:
    return begun(Guard(circuit)(hangs)())


def awaitable(circuit: GuardState) -> object:
    return begun(Guard(circuit)(Never)())


def generator(circuit: GuardState) -> object:
    @Guard(circuit)
    def stream() -> Iterator[int]:
        yield 1

    reading = stream()
    next(reading)
    return reading


def async_generator(circuit: GuardState) -> object:
    @Guard(circuit)
    async def stream() -> AsyncIterator[int]:
        await Never()
        yield 1

    return begun(stream().__anext__())


def by_hand(circuit: GuardState) -> object:
    return Guard(circuit).allow()


def begun(waiting: Any) -> object:
    """Run it to its first wait."""
    waiting.send(None)
    return waiting


HOLDERS: list[Callable[[GuardState], object]] = [
    *(block, async_block, coroutine, awaitable, generator, async_generator, by_hand)
]

LEAVES_NO_TRACE = {"block", "by_hand"}
"""Nothing runs when these are dropped: their place comes free with the lease."""


@pytest.mark.parametrize("holds", HOLDERS)
def test_hung_probe_costs_one_lease(holds: Callable[[GuardState], object]) -> None:
    circuit = half_open()
    held = holds(circuit)
    assert circuit.view().probes == 1
    for _ in range(29):  # traffic all the while, which prolongs nothing
        circuit.clock.advance(1.0)
        for _ in range(20):
            with pytest.raises(GuardRejected):
                Guard(circuit).__enter__()
    circuit.clock.advance(1.0)
    with Guard(circuit):
        pass
    assert circuit.state() is BreakerState.CLOSED
    del held
    assert circuit.state() is BreakerState.CLOSED


@pytest.mark.parametrize("holds", HOLDERS)
def test_dropped_probe_frees_its_slot_at_once(holds: Callable[[GuardState], object]) -> None:
    circuit = half_open()
    held = holds(circuit)
    del held
    assert circuit.view().probes == (1 if holds.__name__ in LEAVES_NO_TRACE else 0)
    circuit.clock.advance(LEASE_S if holds.__name__ in LEAVES_NO_TRACE else 0.0)
    with Guard(circuit):
        pass
    assert circuit.state() is BreakerState.CLOSED


def test_a_classifier_that_raises_wedges_nothing() -> None:
    def classify(_: object) -> Outcome:
        raise RuntimeError("the user's own")

    circuit = half_open(classifier=OutcomeClassifier(classify=classify))
    guarded = Guard(circuit)(lambda: 7)
    for _ in range(100):
        assert guarded() == 7
        assert circuit.view().probes == 0
    assert circuit.state() is BreakerState.HALF_OPEN


def test_late_result_of_a_hung_probe_is_counted() -> None:
    circuit = half_open()
    late = circuit.allow()
    circuit.clock.advance(LEASE_S)
    assert isinstance(late, GuardPermit)
    circuit.record(late, Outcome.SUCCESS)
    assert circuit.state() is BreakerState.CLOSED


def test_calls_run_side_by_side() -> None:
    together = threading.Barrier(8)
    for rules in (BreakerSettings(), BreakerSettings(slow_call_s=60.0), BreakerSettings(max_in_flight=8)):
        guarded = Guard(Clocked(rules))(lambda: together.wait(60))
        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(lambda _, call=guarded: call(), range(8))) == list(range(8))


def test_probes_run_concurrently() -> None:
    together = threading.Barrier(4)
    circuit = half_open(BreakerSettings(failures=1, half_open_max=4))
    guarded = Guard(circuit)(lambda: together.wait(60))
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda _: guarded(), range(4))) == list(range(4))
    assert circuit.state() is BreakerState.CLOSED


@pytest.mark.untraced
def test_random_failures_in_threads_leave_a_working_breaker() -> None:
    circuit = Clocked(BreakerSettings(failures=2, half_open_max=2, open_s=0.5, trial_lease_s=1.0))

    def traffic(seed: int) -> None:
        for number in range(300):
            try:
                guard = Guard(circuit).__enter__()
            except GuardRejected:
                circuit.clock.advance(0.01)
                continue
            draw = (seed * 7919 + number * 104729) % 10
            if draw < 4:
                guard.__exit__(OSError, OSError(), None)
            elif draw < 8:
                guard.__exit__(None, None, None)  # the others hang for ever

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(traffic, seed) for seed in range(16)]:
            done.result()
    circuit.clock.advance(0.5 + 1.0)
    for _ in range(2):
        with Guard(circuit):
            pass
    assert circuit.state() is BreakerState.CLOSED
    fail(circuit, 2)
    assert circuit.state() is BreakerState.OPEN
