"""Goodput of the adaptive micro-batcher over the best fixed batch size in hindsight, and its cost per item.

Run: ``python -m benchmarks.batcher [--write]``, about ten minutes. The real `AdaptiveBatcher` runs in virtual
time; the engine takes ``a * items + b`` seconds with a noise of 5 %. The fixed sizes have the same queue,
drop rule and model of durations. The cost is the CPU time of this process, less that of a bare future.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from autoglm_throttle import Priority
from autoglm_throttle.batcher import AdaptiveBatcher, QueueFull, TooLate
from autoglm_throttle.control.batch_size import BatchSize
from autoglm_throttle.traffic.inproc.loop import VirtualLoop
from benchmarks import harness
from benchmarks.shared.bars import Bar

ENGINES = {
    "cheap item": (0.002, 0.020, 0.2),
    "expensive item": (0.010, 0.010, 0.5),
    "fixed part": (0.001, 0.050, 0.3),
    "tight": (0.005, 0.100, 0.4),
}
"""Seconds of an item, of a batch, and the objective. Under ``tight`` a full batch takes 0.65 of it."""
SHAPES = ("steady", "step", "bursts", "overload")
SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
LARGEST = 32
SECONDS = 30.0
NOISE = 0.05
CLASSES = (1, 3, 6)
"""Items of each priority: high, mid, low."""
GOODPUT, WINDOWS, COST_US = 0.95, 0.95, 20.0
ITEMS = 5000


class FixedSize(BatchSize):
    """A batch size that does not adapt; the model of durations does."""

    def __init__(self, slo_s: float, wait_s: float, size: int) -> None:
        super().__init__(slo_s, LARGEST, wait_s)
        self.target = float(size)

    def _bound(self, now: float) -> None:
        pass

    def _adapt(self, now: float, growth: float, *, is_memory_full: bool) -> None:
        pass


def rate_share(shape: str, at_s: float) -> float:
    """Return the arrivals at a moment, over the capacity of full batches."""
    if shape == "step":
        return (0.3, 1.6, 0.6)[min(2, int(3 * at_s / SECONDS))]
    if shape == "bursts":
        return 0.2 if at_s % 4 < 2 else 1.5
    return {"steady": 0.7, "overload": 1.5}[shape]


def arrivals(shape: str, capacity: float, dice: random.Random) -> Iterator[float]:
    """Yield the times of a Poisson process whose rate follows the shape."""
    at_s = 0.0
    while (at_s := at_s + dice.expovariate(capacity * rate_share(shape, at_s))) < SECONDS:
        yield at_s


def simulate(engine: tuple[float, float, float], shape: str, seed: int, size: int | None) -> dict[str, float]:
    """Run one batcher; returns its goodput, and the share of seconds whose p95 met the objective."""
    item_s, batch_s, slo_s = engine
    loop = VirtualLoop()
    noise = random.Random(seed)

    async def run(items: list[int]) -> list[int]:
        await asyncio.sleep((item_s * len(items) + batch_s) * noise.lognormvariate(0.0, NOISE))
        return items

    batcher = AdaptiveBatcher[int, int](run, slo_s=slo_s, max_cost=LARGEST, clock=loop.clock)
    if size is not None:
        batcher._size = FixedSize(slo_s, batcher._wait_s, size)
    ended: list[tuple[float, float]] = []

    async def ask(priority: Priority) -> None:
        began_s = loop.time()
        try:
            await batcher.submit(0, priority)
        except (QueueFull, TooLate):
            return
        ended.append((loop.time(), loop.time() - began_s))

    async def main() -> None:
        dice = random.Random(seed + 1000)
        tasks = []
        began_s = loop.time()
        for at_s in arrivals(shape, LARGEST / (item_s * LARGEST + batch_s), dice):
            await asyncio.sleep(began_s + at_s - loop.time())
            tasks.append(asyncio.create_task(ask(Priority(dice.choices(range(3), CLASSES)[0]))))
        await asyncio.gather(*tasks)
        await batcher.aclose()

    loop.limit(10 * SECONDS, "the run")
    loop.run_until_complete(main())
    loop.close()
    seconds: dict[int, list[float]] = {}
    for end_s, latency_s in ended:
        seconds.setdefault(int(end_s), []).append(latency_s)
    met = [sorted(one)[math.ceil(0.95 * len(one)) - 1] <= slo_s for one in seconds.values()]
    return {
        "goodput_per_s": sum(latency_s <= slo_s for _, latency_s in ended) / SECONDS,
        "windows_met": sum(met) / len(met),
        "target": batcher.view().target,
    }


def row(engine: str, shape: str, seed: int) -> dict[str, float]:
    """Compare the adaptive size with the best of the fixed ones."""
    fixed = {size: simulate(ENGINES[engine], shape, seed, size)["goodput_per_s"] for size in SIZES}
    best = max(fixed, key=lambda size: fixed[size])
    adaptive = simulate(ENGINES[engine], shape, seed, None)
    return {
        **adaptive,
        "best_size": best,
        "best_per_s": fixed[best],
        "size_1_per_s": fixed[1],
        "ratio": adaptive["goodput_per_s"] / fixed[best],
    }


async def own_cost_us() -> tuple[float, float]:
    """Return the CPU time of an item in a batcher, and of a bare future that is completed with others, us."""

    async def run(items: list[int]) -> list[int]:
        return items

    waiting: list[tuple[asyncio.Future[int], int]] = []

    def complete() -> None:
        while waiting:
            future, item = waiting.pop()
            future.set_result(item)

    async def bare(item: int) -> int:
        loop = asyncio.get_running_loop()
        if not waiting:
            loop.call_soon(complete)
        future = loop.create_future()
        waiting.append((future, item))
        return int(await future)

    batcher = AdaptiveBatcher[int, int](run, slo_s=60.0, max_queue=ITEMS)
    began_s = time.process_time()
    await asyncio.gather(*map(batcher.submit, range(ITEMS)))
    batched_s, began_s = time.process_time() - began_s, time.process_time()
    await asyncio.gather(*map(bare, range(ITEMS)))
    bare_s = time.process_time() - began_s
    await batcher.aclose()
    return 1e6 * batched_s / ITEMS, 1e6 * bare_s / ITEMS


def measure(seeds: int, rounds: int) -> dict[str, Any]:
    """Measure all rows, and the cost."""
    found: dict[str, Any] = {}
    for engine in ENGINES:
        for shape in SHAPES:
            rows = [row(engine, shape, seed) for seed in range(seeds)]
            found[f"{engine}, {shape}"] = {
                name: statistics.median(one[name] for one in rows) for name in rows[0]
            }
            print(engine, shape, found[f"{engine}, {shape}"], flush=True)
    costs = [asyncio.run(own_cost_us()) for _ in range(rounds)]
    own = {
        "batched_us": statistics.median(one for one, _ in costs),
        "bare_us": statistics.median(bare for _, bare in costs),
        "own_us": statistics.median(one - bare for one, bare in costs),
    }
    return {"rows": found, "cost": own}


def bars(found: dict[str, Any]) -> Iterator[Bar]:
    """Compute the bars."""
    for name, figures in found["rows"].items():
        yield Bar(f"{name}: goodput over the best fixed size", figures["ratio"], GOODPUT, at_most=False)
        yield Bar(
            f"{name}: seconds whose p95 met the objective", figures["windows_met"], WINDOWS, at_most=False
        )
    yield Bar("own cost of an item, us", found["cost"]["own_us"], COST_US)


def part(found: dict[str, Any]) -> str:
    """Render the rows and the cost."""
    rows = "".join(
        f"| {name} | {row['ratio']:.3f} | {row['best_size']:.0f} "
        f"| {row['size_1_per_s'] / row['best_per_s']:.2f} | {100 * row['windows_met']:.0f}% |\n"
        for name, row in found["rows"].items()
    )
    return (
        "| engine, load | goodput over the best fixed size | that size | size 1 over it "
        f"| seconds whose p95 met the objective |\n|---|---|---|---|---|\n{rows}\n"
        f"An item costs {found['cost']['own_us']:.0f} us of CPU time more than a bare future.\n"
        f"`benchmarks/batcher.py`: {harness.line(found)}.\n"
    )


def main() -> int:
    """Measure, print and keep the record; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=15, help="of the cost")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    found = measure(options.seeds, options.rounds)
    evaluated = list(bars(found))
    print("\n".join(map(str, evaluated)))
    result = {**harness.machine(), **found, "bars": [bar.record() for bar in evaluated]}
    print(json.dumps(result))
    if options.write:
        harness.keep("batcher", result)
    return 1 if any(bar.verdict == "MISSED" for bar in evaluated) else 0


if __name__ == "__main__":
    sys.exit(main())
