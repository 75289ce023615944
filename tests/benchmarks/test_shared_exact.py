"""The worst window counts certain admissions, and the attack detects a double limit."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.types import UserLimit
from benchmarks.shared import drive
from benchmarks.shared.exact import Admission, attack, burst, worst
from benchmarks.shared.ours import NoAnswer

pytestmark = pytest.mark.slow


def test_only_calls_inside_a_window_count() -> None:
    inside = [Admission(1.0, 1.1, 2), Admission(1.5, 1.9, 3), Admission(1.9, 2.0, 4)]
    assert worst(inside, 1.0) == 9
    assert worst([*inside, Admission(1.9, 2.1, 50)], 1.0) == 53 + 4
    assert worst([Admission(1.0, 1.1, 2), Admission(1.95, 2.05, 4)], 1.0) == 4
    assert worst([], 1.0) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(1, 5)), max_size=20))
def test_worst_window_is_the_largest_starting_with_a_request(
    drawn: list[tuple[int, int, int]],
) -> None:
    admissions = [Admission(sent, sent + wait, units) for sent, wait, units in drawn]
    every = (
        sum(one.units for one in admissions if one.sent_s >= begin and one.answered_s <= begin + 10)
        for begin in range(51)
    )
    assert worst(admissions, 10) == max(every)


class Times:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        sleep = asyncio.sleep

        async def later(seconds: float) -> None:
            self.now += seconds
            await sleep(0)

        monkeypatch.setattr(drive, "clock", lambda: self.now)
        monkeypatch.setattr(asyncio, "sleep", later)


LIMIT = UserLimit("user-2s", 100, 2)


async def test_the_attack_gets_twice_the_limit_of_a_fixed_window(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(monkeypatch)
    spent: dict[tuple[str, int], int] = {}

    async def fixed(user: str, units: int = 1) -> bool:
        window = (user, int(times.now // 2))
        if spent.get(window, 0) + units > 100:
            return False
        spent[window] = spent.get(window, 0) + units
        return True

    assert await attack(fixed, "u", LIMIT) == pytest.approx(1.99)


async def test_the_attack_gets_the_limit_of_an_exact_window(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(monkeypatch)
    logs: dict[str, list[float]] = {}

    async def moving(user: str, units: int = 1) -> bool:
        log = logs.setdefault(user, [])
        if sum(spent > times.now - 2.0 for spent in log) + units > 100:
            return False
        log.extend([times.now] * units)
        return True

    assert await attack(moving, "u", LIMIT) == 1.0


async def test_users_are_counted_by_their_admissions() -> None:
    pending = [True] * 3

    async def hit(user: str, units: int = 1) -> bool:
        return bool(pending and pending.pop())

    assert await burst(hit, "u") == {"admitted": 3, "unanswered": 0}


async def test_unanswered_is_not_rejected() -> None:
    async def hit(user: str, units: int = 1) -> bool:
        raise NoAnswer

    assert await burst(hit, "u") == {"admitted": 0, "unanswered": 512}
