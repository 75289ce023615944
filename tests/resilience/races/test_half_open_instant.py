"""At the end of the open period exactly one of all concurrent calls is the probe."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.lowlevel
import pytest

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerCause, BreakerState, GuardPermit, GuardRejected, Outcome
from tests.loops import run
from tests.resilience.tripping import Clocked, fail, half_open

pytestmark = pytest.mark.untraced

ROUNDS = 100
TASK_ROUNDS = 3
TASKS = 1000
THREADS = 64


class Dependency:
    """Counts the admitted calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.lock = threading.Lock()

    async def call(self) -> None:
        self.calls += 1
        await anyio.lowlevel.checkpoint()

    def call_at_once(self) -> None:
        with self.lock:
            self.calls += 1


def trip_again(circuit: Clocked) -> None:
    """Closed by the trial of the round before; open, and the time over."""
    assert circuit.state() is BreakerState.CLOSED
    fail(circuit)
    circuit.clock.advance(10.0)


async def request(call: Callable[[], object], rejected: list[int]) -> None:
    try:
        await call()  # type: ignore[misc]
    except GuardRejected:
        rejected[0] += 1


def test_one_of_a_thousand_tasks_in_each_round() -> None:
    """Tasks run in one order, whatever the round; `benchmarks.breaker` has a hundred."""
    circuit, dependency = half_open(), Dependency()
    guarded = Guard(circuit)(dependency.call)

    async def main() -> None:
        for number in range(1, TASK_ROUNDS + 1):
            rejected = [0]
            await asyncio.gather(*(request(guarded, rejected) for _ in range(TASKS)))
            assert (dependency.calls, rejected[0]) == (number, TASKS - 1)
            trip_again(circuit)

    asyncio.run(main())
    assert sum(circuit.view().rejected.values()) == TASK_ROUNDS * (TASKS - 1)


def test_one_of_a_thousand_trio_tasks() -> None:
    circuit, dependency = half_open(), Dependency()
    guarded = Guard(circuit)(dependency.call)

    async def main() -> None:
        for number in range(1, 6):
            rejected = [0]
            async with anyio.create_task_group() as tasks:
                for _ in range(TASKS):
                    tasks.start_soon(request, guarded, rejected)
            assert (dependency.calls, rejected[0]) == (number, TASKS - 1)
            trip_again(circuit)

    run("trio", main)


class Callers:
    """Threads that all ask at one instant, round after round; the trial of a round ends when all have asked.

    Args:
        circuit: closed.
    """

    def __init__(self, circuit: Clocked) -> None:
        self.circuit = circuit
        self.trials: list[GuardPermit] = []
        self.rounds: list[int] = []
        """How many trials each round had."""
        self.barrier = threading.Barrier(THREADS)

    def rush(self) -> None:
        for _ in range(ROUNDS):
            if self.barrier.wait(60) == 0:
                trip_again(self.circuit)
            self.barrier.wait(60)
            answer = Guard(self.circuit).allow()
            if isinstance(answer, GuardPermit):
                self.trials.append(answer)
            if self.barrier.wait(60) == 0:
                self.end()
            self.barrier.wait(60)

    def end(self) -> None:
        self.rounds.append(len(self.trials))
        self.circuit.record(self.trials.pop(), Outcome.SUCCESS)
        self.trials.clear()


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Threads that are interrupted as often as can be."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.slow
@pytest.mark.usefixtures("_hasty")
def test_one_of_sixty_four_threads_in_each_of_a_hundred_rounds() -> None:
    callers = Callers(Clocked())
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(callers.rush) for _ in range(THREADS)]:
            done.result()
    assert callers.rounds == [1] * ROUNDS
    assert callers.circuit.view().rejected == {BreakerCause.TRIAL: ROUNDS * (THREADS - 1)}


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("most", [1, 3])
def test_concurrent_thread_ends_never_exceed_probe_slots(most: int) -> None:
    circuit, dependency = half_open(BreakerSettings(failures=1, half_open_max=most)), Dependency()
    guarded = Guard(circuit)(dependency.call_at_once)
    barrier = threading.Barrier(THREADS)
    at_trials: list[int] = []

    def rush() -> None:
        barrier.wait(60)
        for _ in range(20):
            try:
                guarded()
            except GuardRejected:
                at_trials.append(circuit.view().probes)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(rush) for _ in range(THREADS)]:
            done.result()
    assert circuit.state() is BreakerState.CLOSED
    assert all(trials <= most for trials in at_trials)
    assert dependency.calls == THREADS * 20 - len(at_trials)
