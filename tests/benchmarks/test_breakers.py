"""The measurements of breakers distinguish correct breakers from faulty ones."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.breakers import cost, races, side_by_side
from benchmarks.breakers.candidates import FAILURES_AT_MOST, Broken, Candidate, Coroutine, Function, Ours
from benchmarks.breakers.opening import openings
from benchmarks.breakers.scale import QUICK
from tests.store.server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

LONG_S = 60.0


class Rejected(Exception):
    """Exception of a rejected call."""


class Leaky(Candidate):
    """Opens after some failures, and admits all calls at half-open."""

    name = package = "leaky"
    rejection = Rejected
    blocks = False

    def __init__(self, open_s: float) -> None:
        super().__init__(open_s)
        self.failures = 0
        self.until_s = 0.0

    def coroutine(self, fn: Coroutine) -> Coroutine:
        async def guarded() -> int:
            self.count_admitted()
            try:
                return await fn()
            except Broken:
                self.fail()
                raise

        return guarded

    def function(self, fn: Function) -> Function:
        def guarded() -> int:
            self.count_admitted()
            try:
                return fn()
            except Broken:
                self.fail()
                raise

        return guarded

    def count_admitted(self) -> None:
        if time.monotonic() < self.until_s:
            raise Rejected

    def fail(self) -> None:
        self.failures += 1
        if self.failures == 5:
            self.until_s = time.monotonic() + self.open_s


class Never(Leaky):
    """Does not open."""

    def fail(self) -> None:
        """Nothing comes of it."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as one:
        yield one


def test_ours_lets_one_through_and_a_leaky_one_lets_all() -> None:
    one, of = {"least": 1, "most": 1, "of": 2}, 2
    assert races.tasks(Ours, of) == one
    assert races.threads(Ours, of) == one
    assert races.tasks(Leaky, 1) == {"least": 1000, "most": 1000, "of": 1}
    assert races.threads(Leaky, 1) == {"least": 64, "most": 64, "of": 1}


def test_breaker_that_does_not_open_is_not_measured() -> None:
    async def fail() -> int:
        raise Broken

    def fail_sync() -> int:
        raise Broken

    never = Never(LONG_S)
    with pytest.raises(RuntimeError, match="leaky does not open"):
        asyncio.run(never.trip(never.coroutine(fail)))
    with pytest.raises(RuntimeError, match="leaky does not open"):
        never.trip_sync(never.function(fail_sync))
    assert FAILURES_AT_MOST > 10


@pytest.mark.parametrize("form", ["coroutine", "block"])
async def test_ours_passes_values_on(form: str) -> None:
    assert await getattr(Ours(LONG_S), form)(cost.succeed)() == 1
    assert Ours(LONG_S).function(cost.succeed_sync)() == 1


async def test_our_breaker_rejects_and_states_its_wait() -> None:
    ours = Ours(LONG_S)
    guarded = ours.coroutine(cost.fail)
    await ours.trip(guarded)
    with pytest.raises(ours.rejection) as rejected:
        await guarded()
    open_s = ours.open_time_left(rejected.value)
    assert isinstance(open_s, float)
    assert 0.0 < open_s <= LONG_S


def test_costs_exceed_the_bare_call_and_cover_each_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "CANDIDATES", (Ours, Leaky))
    found = cost.costs(replace(QUICK, rounds=2, calls=50))
    assert found.keys() == set(cost.FORMS)
    assert found["coroutine"]["rows"].keys() == {Ours.name, Leaky.name, *cost.VARIANTS}
    assert found["block"]["rows"].keys() == found["told"]["rows"].keys() == {Ours.name}
    for part in found.values():
        assert part["bare_ns"] > 0.0
        assert part["rows"][Ours.name]["ours_over_it"] == 1.0


def test_a_row_is_taken_beyond_the_bare_one_of_its_round() -> None:
    seen = {
        "block bare": [1e-9, 3e-9, 2e-9],
        "block autoglm_throttle": [3e-9, 5e-9, 4e-9],
        "block it": [5e-9, 11e-9, 10e-9],
    }
    figures = cost.row_figures(seen, "block", "it")
    assert figures["ns"] == pytest.approx(8.0)
    assert figures["ours_over_it"] == pytest.approx(0.25)


def test_the_spread_of_a_control() -> None:
    assert cost.spread([1.0] * 10) == 1.0
    assert cost.spread([1.0, 2.0] * 10) == pytest.approx(2.0)


def test_threads_side_by_side_take_as_long_as_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "CANDIDATES", (Ours,))
    monkeypatch.setattr(side_by_side, "CALL_S", 0.02)
    found = side_by_side.threads(QUICK)
    assert found[Ours.name] >= 0.02


def test_processes_share_a_probe_and_openings(server: RedisServer) -> None:
    assert races.processes(server, 1) == {"least": 1, "most": 1, "of": 1}
    found = asyncio.run(openings(server, replace(QUICK, openings=1, cold=1)))
    assert found["cold"]["of"] == 1
    for kind in ("idle", "busy"):
        assert found[kind]["max_ms"] > 0.0
