"""The load generators of the shared limits count every decision exactly once."""

import asyncio
import itertools
import math

import pytest

from benchmarks.shared.drive import Tally, arrivals, closed, open_loop, quantile

pytestmark = pytest.mark.slow

USERS = [f"{number}" for number in range(5)]


async def test_concurrent_tasks_decide_and_count_each_reply_once() -> None:
    inside = most = calls = 0

    async def hit(user: str, units: int = 1) -> bool:
        nonlocal inside, most, calls
        inside += 1
        calls += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return user != "3"

    tally = await closed(hit, itertools.cycle(USERS), 7, 0.02)
    assert most == 7
    assert tally.decisions == calls == len(tally.waits_s)
    assert tally.rejected == sum(number % 5 == 3 for number in range(calls))
    assert tally.seconds >= 0.02
    assert tally.per_s == pytest.approx(calls / tally.seconds)
    assert not tally.errors


async def test_immediate_errors_delay_nothing_and_are_no_decisions() -> None:
    numbers = itertools.count()

    async def hit(user: str, units: int = 1) -> bool:
        if next(numbers) % 2:
            raise ConnectionError
        await asyncio.sleep(0)
        return True

    tally = await asyncio.wait_for(closed(hit, itertools.cycle(USERS), 3, 0.01), 60.0)
    assert tally.errors["ConnectionError"] > 0
    assert tally.decisions + tally.errors["ConnectionError"] == next(numbers)


def test_arrivals_match_their_rate_and_repeat() -> None:
    due = arrivals(1000.0, 4.0, 1)
    assert due == arrivals(1000.0, 4.0, 1) != arrivals(1000.0, 4.0, 2)
    assert due == sorted(due)
    assert 0.0 < due[0] < due[-1] < 4.0
    assert len(due) == pytest.approx(4000, abs=5 * math.sqrt(4000))


async def test_late_arrival_is_measured_from_its_due_instant() -> None:
    numbers = itertools.count()

    async def hit(user: str, units: int = 1) -> bool:
        if next(numbers) == 0:
            then = asyncio.get_running_loop().time() + 0.05
            while asyncio.get_running_loop().time() < then:
                pass
        return True

    tally = await open_loop(hit, itertools.cycle(USERS), [0.0, 0.01, 0.02, 0.2])
    assert tally.decisions == len(tally.lags_s) == 4
    assert max(tally.waits_s) >= 0.05
    assert sorted(tally.lags_s)[-2:] >= [0.02, 0.03]
    assert tally.seconds >= 0.2


async def test_an_arrival_that_fails_is_an_error_of_its_kind() -> None:
    async def hit(user: str, units: int = 1) -> bool:
        raise KeyError

    tally = await open_loop(hit, itertools.cycle(USERS), [0.0, 0.0])
    assert (tally.errors, tally.decisions) == ({"KeyError": 2}, 0)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 2.0), (0.99, 4.0), (0.0, 1.0), (0.25, 1.0), (0.26, 2.0)]
)
def test_a_quantile_is_a_value_that_there_was(share: float, expected: float) -> None:
    assert quantile([3.0, 1.0, 4.0, 2.0], share) == expected


def test_a_quantile_of_nothing_is_no_number() -> None:
    assert math.isnan(quantile([], 0.5))
    assert Tally().decisions == 0
