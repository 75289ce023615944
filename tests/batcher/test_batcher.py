"""The batcher in virtual time: which items run together, when, and what each caller gets."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from autoglm_throttle import Priority
from autoglm_throttle.batcher import (
    AdaptiveBatcher,
    BatchContractError,
    QueueFull,
    TooLate,
)
from tests.batcher.engine import RUN_S, VIRTUAL_START_S, Engine, Make, Run, outcome, warmed


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
