"""The batcher at its end, in other event loops, and in threads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from autoglm_throttle.batcher import (
    AdaptiveBatcher,
    BatcherClosed,
)
from autoglm_throttle.traffic.inproc.loop import VirtualLoop
from tests.batcher.engine import Engine, Make, Run, outcome


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
