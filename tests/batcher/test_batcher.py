"""The batcher in virtual time: which items run together, when, and what each caller gets."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from autoglm_throttle import Demand, Permit, Priority, Settings, Throttle
from autoglm_throttle.batcher import (
    AdaptiveBatcher,
    BatchContractError,
    BatcherClosed,
    QueueFull,
    TooLate,
)
from autoglm_throttle.observe import prometheus
from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.traffic.inproc.loop import VirtualLoop

RUN_S = 0.1
VIRTUAL_START_S = ManualClock()()


UNDERFED = {"utilization_pct": 99.0, "power_w": 150.0, "power_limit_w": 700.0, "sm_active_ratio": 0.1}
"""Readings of a device that is busy by its utilization alone."""


class Engine:
    """A model that doubles numbers, in virtual time; an exception among the items is returned as a result."""

    def __init__(self, run_s: float = RUN_S) -> None:
        self.batches: list[tuple[float, list[Any]]] = []
        self.run_s = run_s
        self.error: Exception | None = None

    async def __call__(self, items: list[Any]) -> list[Any]:
        began_s = asyncio.get_running_loop().time() - VIRTUAL_START_S
        self.batches.append((round(began_s, 4), items))
        await asyncio.sleep(self.run_s)
        if self.error is not None:
            raise self.error
        return [item if isinstance(item, Exception) else 2 * item for item in items]

    @property
    def items(self) -> list[list[Any]]:
        return [items for _, items in self.batches]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    loop.limit(1000.0, "the test")
    yield loop
    loop.close()


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run(loop: VirtualLoop) -> Run:
    return loop.run_until_complete


@pytest.fixture
def make(loop: VirtualLoop) -> Callable[..., AdaptiveBatcher[Any, Any]]:
    return functools.partial(AdaptiveBatcher, slo_s=10.0, clock=loop.clock)


Make = Callable[..., AdaptiveBatcher[Any, Any]]


async def outcome(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - any of them is an outcome
        return error


def test_items_of_one_iteration_run_together(run: Run, make: Make) -> None:
    engine = Engine()
    batcher = make(engine)

    async def main() -> list[Any]:
        await batcher.submit(0)  # before any batch has run the target is 1
        await batcher.submit(0)
        await batcher.submit(0)
        await batcher.submit(0)
        return list(await asyncio.gather(batcher.submit(1), batcher.submit(2)))

    assert run(main()) == [2, 4]
    assert engine.items == [[0], [0], [0], [0], [1, 2]]


def test_first_item_after_a_pause_waits_for_no_other(run: Run, make: Make) -> None:
    engine = Engine()
    batcher = make(engine)

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(5.0)
            await batcher.submit(1)

    run(main())
    starts = [began_s for began_s, _ in engine.batches]
    assert starts == [5.0, 10.1, 15.2]


async def warmed(batcher: AdaptiveBatcher[Any, Any]) -> None:
    """Raise the target to eight."""
    for count in (1, 1, 1, 2, 4, 8):
        await asyncio.gather(*(batcher.submit(0) for _ in range(count)))


async def stream(batcher: AdaptiveBatcher[Any, Any], count: int, **last: float) -> None:
    """Submit an item every 4 ms, the last one with these arguments."""
    tasks = []
    for number in range(count):
        arguments = last if number == count - 1 else {}
        tasks.append(asyncio.create_task(batcher.submit(number, **arguments)))  # type: ignore[arg-type]
        await asyncio.sleep(0.004)
    await asyncio.gather(*tasks)


def test_item_waits_for_others_that_are_expected(run: Run, make: Make) -> None:
    engine = Engine(run_s=0.001)
    batcher = make(engine)

    async def main() -> None:
        await warmed(batcher)
        await stream(batcher, 60)

    run(main())
    # The longest wait is 10 ms, so the items of 0, 4 and 8 ms run together.
    assert [len(items) for items in engine.items[-6:-1]] == [3] * 5


def test_batch_starts_early_for_a_near_deadline(run: Run, make: Make) -> None:
    engine = Engine(run_s=0.001)
    batcher = make(engine)

    async def main() -> float:
        await warmed(batcher)
        began_s = asyncio.get_running_loop().time() - VIRTUAL_START_S
        await stream(batcher, 61, deadline_s=0.003)
        return began_s

    began_s = run(main())
    assert engine.batches[-1] == (round(began_s + 60 * 0.004 + 0.002, 4), [60])


def test_result_goes_to_its_own_caller(run: Run, make: Make) -> None:
    batcher = make(Engine())
    dice = random.Random(7)

    async def ask(number: int) -> None:
        await asyncio.sleep(dice.random())
        assert await batcher.submit(number, Priority(number % 3)) == 2 * number

    async def main() -> None:
        await asyncio.gather(*map(ask, range(200)))

    run(main())
    assert batcher.view().items == 200


def test_exception_among_the_results_goes_to_one_caller(run: Run, make: Make) -> None:
    batcher = make(Engine())

    async def main() -> list[Any]:
        return await asyncio.gather(*(outcome(batcher.submit(one)) for one in (1, KeyError("two"), 3)))

    first, second, third = run(main())
    assert (first, third) == (2, 6)
    assert repr(second) == "KeyError('two')"


def test_exception_of_a_batch_goes_to_each_caller(run: Run, make: Make) -> None:
    engine = Engine()
    engine.error = RuntimeError("the device is lost")
    batcher = make(engine)

    async def main() -> list[Any]:
        await outcome(batcher.submit(0))
        return await asyncio.gather(*(outcome(batcher.submit(one)) for one in (1, 2)))

    errors = run(main())
    assert [repr(error) for error in errors] == 2 * [repr(engine.error)]
    assert errors[0] is not errors[1]
    assert (batcher.view().failed, batcher.view().items) == (3, 0)


def test_lack_of_memory_halves_the_batches(run: Run, make: Make) -> None:
    engine = Engine()
    batcher = make(engine)

    async def main() -> tuple[float, float]:
        await warmed(batcher)
        before = batcher.view().target
        engine.error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        await outcome(batcher.submit(1))
        return before, batcher.view().target

    before, after = run(main())
    assert after == before / 2


@pytest.mark.parametrize("results", [[], [1, 2, 3]])
def test_wrong_number_of_results_fails_each_caller(run: Run, make: Make, results: list[int]) -> None:
    async def broken(_: list[int]) -> list[int]:
        return results

    batcher = make(broken)

    async def main() -> None:
        await batcher.submit(1)

    with pytest.raises(BatchContractError, match=f"{len(results)} results for 1 items"):
        run(main())


def test_cancelled_item_never_runs(run: Run, make: Make) -> None:
    engine = Engine()
    batcher = make(engine)

    async def main() -> None:
        first = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.01)
        second, third = asyncio.create_task(batcher.submit(2)), asyncio.create_task(batcher.submit(3))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.wait([first, second, third])
        assert second.cancelled()

    run(main())
    assert engine.items == [[1], [3]]


def test_cancelled_item_of_a_running_batch_leaves_the_others(run: Run, make: Make) -> None:
    batcher = make(Engine())

    async def main() -> Any:
        await warmed(batcher)
        first, second = asyncio.create_task(batcher.submit(1)), asyncio.create_task(batcher.submit(2))
        await asyncio.sleep(0.05)
        first.cancel()
        return await second

    assert run(main()) == 4


def test_full_queue_rejects_the_newest_of_the_least_important(run: Run, make: Make) -> None:
    engine = Engine()
    batcher = make(engine, max_queue=2)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(outcome(batcher.submit(0)))]
        await asyncio.sleep(0.01)
        for number, priority in enumerate((Priority.LOW, Priority.LOW, Priority.HIGH, Priority.LOW), start=1):
            tasks.append(asyncio.create_task(outcome(batcher.submit(number, priority))))
            await asyncio.sleep(0.001)
        return await asyncio.gather(*tasks)

    served, low, evicted, high, rejected = run(main())
    assert (served, low, high) == (0, 2, 6)
    assert isinstance(evicted, QueueFull)
    assert isinstance(rejected, QueueFull)
    assert rejected.retry_after_s == 10.0  # nothing has been measured: the objective
    assert batcher.view().full == 2


def test_retry_after_is_the_predicted_time_of_the_queue(run: Run, make: Make) -> None:
    batcher = make(Engine(), max_queue=16)

    async def main() -> Any:
        await warmed(batcher)
        running = [asyncio.create_task(outcome(batcher.submit(0))) for _ in range(8)]
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(outcome(batcher.submit(0))) for _ in range(17)]
        results = await asyncio.gather(*running, *waiting)
        return results[-1]

    rejected = run(main())
    assert isinstance(rejected, QueueFull)
    # Sixteen items are one batch of the target, 16.
    assert rejected.retry_after_s == pytest.approx(RUN_S)


def test_item_that_would_end_late_is_dropped(run: Run, make: Make) -> None:
    engine = Engine()
    batcher = make(engine)

    async def main() -> Any:
        await warmed(batcher)
        running = asyncio.create_task(batcher.submit(0))
        await asyncio.sleep(0.01)
        late = await outcome(batcher.submit(1, deadline_s=0.15))
        await running
        return late

    assert isinstance(run(main()), TooLate)
    assert engine.items[-1] == [0]
    assert batcher.view().late == 1


def test_batches_run_side_by_side_up_to_the_limit(run: Run, make: Make) -> None:
    engine = Engine()
    batcher = make(engine, concurrency=2, max_cost=1.0)

    async def main() -> None:
        await asyncio.gather(*map(batcher.submit, range(4)))

    run(main())
    assert engine.batches == [(0.0, [0]), (0.0, [1]), (0.1, [2]), (0.1, [3])]


def test_item_above_the_largest_cost_runs_alone(run: Run, make: Make) -> None:
    engine = Engine()
    batcher = make(engine)

    async def main() -> None:
        await warmed(batcher)
        await asyncio.gather(batcher.submit(1), batcher.submit(2, cost=99.0), batcher.submit(3))

    run(main())
    assert engine.items[-3:] == [[1], [2], [3]]


def test_close_runs_what_waits(run: Run, make: Make) -> None:
    batcher = make(Engine(), max_cost=2.0)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(outcome(batcher.submit(number))) for number in range(9)]
        await asyncio.sleep(0.0)
        await batcher.aclose()
        await batcher.aclose()
        with pytest.raises(BatcherClosed):
            await batcher.submit(1)
        return await asyncio.gather(*tasks)

    assert run(main()) == [0, 2, 4, 6, 8, 10, 12, 14, 16]


def test_close_cancels_what_does_not_end_in_time(run: Run, make: Make) -> None:
    batcher = make(Engine(), max_cost=1.0)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(outcome(batcher.submit(number))) for number in range(3)]
        await asyncio.sleep(0.0)
        await batcher.aclose(drain_s=0.15)
        return await asyncio.gather(*tasks)

    first, second, third = run(main())
    assert first == 0
    assert str(second) == "the batch of this item was cancelled"
    assert str(third) == "the batcher was closed before this item ran"


def test_close_of_an_unused_batcher_does_nothing(run: Run, make: Make) -> None:
    run(make(Engine()).aclose())


def test_a_new_event_loop_begins_without_the_items_of_the_old_one() -> None:
    async def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    batcher = AdaptiveBatcher[int, int](double, slo_s=1.0)

    async def abandoned() -> None:
        task = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.0)
        assert not task.done()

    for _ in range(2):
        asyncio.run(abandoned())
        assert asyncio.run(outcome(batcher.submit(2))) == 4


def test_two_running_event_loops_are_an_error(loop: VirtualLoop, run: Run, make: Make) -> None:
    batcher = make(Engine())
    pending = loop.create_task(batcher.submit(1))
    run(asyncio.sleep(0.01))
    with pytest.raises(RuntimeError, match="one event loop"):
        asyncio.run(batcher.submit(2))
    assert run(pending) == 2  # type: ignore[arg-type]


def test_sync_function_runs_in_a_thread_of_its_own() -> None:
    import threading

    names: set[str] = set()

    def double(items: list[int]) -> list[int]:
        names.add(threading.current_thread().name)
        return [2 * item for item in items]

    async def main() -> list[int]:
        batcher = AdaptiveBatcher[int, int](double, slo_s=5.0)
        results = await asyncio.gather(*map(batcher.submit, range(50)))
        await batcher.aclose()
        return results

    assert asyncio.run(main()) == list(range(0, 100, 2))
    assert names == {"autoglm-throttle-batcher_0"}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"slo_s": 0.0}, "slo_s must be above 0"),
        ({"slo_s": float("nan")}, "slo_s must be finite"),
        ({"max_cost": 0.5}, "max_cost must be at least 1"),
        ({"max_wait_s": -1.0}, "max_wait_s must be at least 0"),
        ({"max_queue": 0, "concurrency": 0}, "max_queue must be at least 1; concurrency must be at least 1"),
    ],
)
def test_wrong_arguments_are_all_named(wrong: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        AdaptiveBatcher(Engine(), **{"slo_s": 1.0, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["cost", "deadline_s"])
def test_wrong_cost_or_deadline_is_an_error(run: Run, make: Make, name: str, wrong: float) -> None:
    with pytest.raises(ValueError, match="cost and deadline_s must be above 0"):
        run(make(Engine()).submit(1, **{name: wrong}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("memory_ratio", "device", "grows"),
    [
        (0.5, {}, 1.05),
        (0.9, {}, 1.0),  # near the target of 0.92
        (0.95, {}, 0.7),
        (0.5, UNDERFED, 1.1),
    ],
)
def test_telemetry_bounds_the_growth(
    loop: VirtualLoop, run: Run, make: Make, memory_ratio: float, device: dict[str, float], grows: float
) -> None:
    gpu = FakeGpu(clock=loop.clock)
    gpu.memory_used_bytes = int(memory_ratio * 80e9)
    gpu.memory_total_bytes = int(80e9)
    for name, value in device.items():
        setattr(gpu, name, value)
    throttle = Throttle(Settings(), gpu=gpu, sampling="manual", clock=loop.clock)
    for _ in range(5):
        loop.clock.advance(1.0)
        permit = throttle.try_admit(Demand(Priority.MID))  # a verdict needs progress
        assert isinstance(permit, Permit)
        permit.settle()
        throttle.tick()
    batcher = make(Engine(), max_cost=1000.0, throttle=throttle)

    async def main() -> float:
        batcher._size.target, batcher._size._has_missed, batcher._size.p95_s = 100.0, True, 0.1
        for _ in range(20):
            await asyncio.gather(*(batcher.submit(0) for _ in range(int(batcher.view().target))))
            if batcher.view().target != 100.0:
                break
        return batcher.view().target

    assert run(main()) == pytest.approx(100.0 * grows)


def test_throttle_exports_its_batchers(run: Run, make: Make) -> None:
    throttle = Throttle(Settings(gpu="none"), sampling="manual")
    batcher = make(Engine(), throttle=throttle, name="embed")
    with pytest.raises(ValueError, match="a batcher of the name 'embed' already"):
        make(Engine(), throttle=throttle, name="embed")
    run(batcher.submit(1))
    assert throttle.snapshot().batchers == (batcher.view(),)
    values = {metric.name: metric.samples for metric in prometheus.SnapshotCollector(throttle).collect()}
    (items,) = values["autoglm_throttle_batcher_items"]
    assert (items.labels, items.value) == ({"batcher": "embed"}, 1.0)
    del batcher
    gc.collect()
    assert throttle.snapshot().batchers == ()
    make(Engine(), throttle=throttle, name="embed")
