"""Runs: clients that retry, devices with work of other processes, the oracle, limiters of other designs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.loop.clients import Plan, plan
from benchmarks.loop.limiters import registry
from benchmarks.loop.limiters.limiter import BaseLimiter, LimiterContext
from benchmarks.loop.limiters.shares import Aimd, Gradient, SharesLimiter
from benchmarks.loop.offered_load import Load
from benchmarks.loop.plant import DeviceReading, PlantSpec
from benchmarks.loop.request import Request
from benchmarks.loop.run import Run
from benchmarks.loop.run_counts import RunCounts
from benchmarks.loop.scenarios import SCENARIOS, Scenario
from benchmarks.loop.scheduler import EventScheduler

pytestmark = pytest.mark.slow


class RejectAll(BaseLimiter):
    """Rejects every request, and records the times."""

    def __init__(self, context: LimiterContext) -> None:
        self.context = context
        self.seen: list[tuple[float, int]] = []
        self.readings: list[DeviceReading] = []

    def arrive(self, request: Request) -> None:
        self.seen.append((self.context.scheduler.now, request.tries))
        self.context.reject(request)

    def ended(self, request: Request, *, ok: bool) -> None:
        raise AssertionError("nobody was let in")

    def sample(self, readings: Sequence[DeviceReading]) -> None:
        self.readings += readings


def small(**changes: object) -> Scenario:
    given: dict[str, object] = {"name": "small", "family": "test", "load": Load(((0.0, 1.0, 1.0),), 10.0)}
    return Scenario(**{**given, "warm_s": 0.0, **changes})  # type: ignore[arg-type]


def one(*at_s: float, waits: tuple[float, ...] = ()) -> Plan:
    return Plan(list(at_s), [0] * len(at_s), [1.0] * len(at_s), [waits] * len(at_s))


def counts_of(name: str, scenario: Scenario, seed: int = 1) -> RunCounts:
    return Run(
        scenario, plan(scenario, seed), lambda context: registry.make(name, context, scenario, {})
    ).go()


def test_rejected_client_backs_off_and_gives_up() -> None:
    run = Run(small(retries=3), one(1.0, waits=(1.0, 1.5, 0.5)), RejectAll)
    counted = run.go()
    limiter = run.limiter
    assert isinstance(limiter, RejectAll)
    assert limiter.seen == [(1.0, 0), (1.25, 1), (2.0, 2), (2.5, 3)]
    assert (counted.offered, counted.rejected) == ([1, 0, 0], [4, 0, 0])


def test_a_client_without_an_answer_repeats_at_its_deadline() -> None:
    slow = PlantSpec(batch=1, base_s=0.5, item_s=2.5)
    run = Run(
        small(retries=1, plant=slow),
        one(1.0, waits=(1.0,)),
        lambda context: registry.make("none", context, small(), {}),
    )
    counted = run.go()
    # answered at 4 and 7, both after their deadlines at 3 and 5
    assert (counted.offered, counted.good, counted.rejected) == ([1, 0, 0], [0, 0, 0], [0, 0, 0])
    assert counted.high_s == [3.0, 4.0]


def test_response_counts_once_despite_repetitions() -> None:
    slow = PlantSpec(batch=1, base_s=0.4, item_s=0.4)
    waits = one(1.0, 1.0, 1.0, waits=(1.0,))
    run = Run(
        small(retries=1, plant=slow), waits, lambda context: registry.make("none", context, small(), {})
    )
    counted = run.go()
    # served at 1.8, 2.6 and too late at 3.4; the third's repetition, sent at 3, is served at 4.2
    assert counted.good == [3, 0, 0]
    assert sum(counted.good_by_bin) == 3
    assert counted.good_by_bin[int(3.0 / counted.bin_s)] == 1


def test_load_of_others_on_a_gpu_is_shown() -> None:
    run = Run(small(taken=((2.0, 4.5, 0, 98.0),)), one(), RejectAll)
    run.go()
    assert isinstance(run.limiter, RejectAll)
    assert [reading.utilization_pct for reading in run.limiter.readings] == [
        0.0,
        98.0,
        98.0,
        98.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]


@pytest.mark.parametrize("name", ["step_2x", "step_5x", "oom_tight_3x", "cap_half_0.9x"])
def test_the_oracle_serves_nearly_all_that_can_be_served(name: str) -> None:
    scenario = SCENARIOS[name]
    drawn = plan(scenario, 1)
    could = 0.0
    for second in range(3, int(scenario.duration_s)):
        requested = sum(second <= at_s < second + 1 for at_s in drawn.at_s)
        slow = name == "cap_half_0.9x" and 25 <= second < 50
        could += min(requested, 50.0 if slow else 100.0)
    counted = counts_of("oracle", scenario)
    assert 0.97 * could <= sum(counted.good) <= 1.03 * could
    assert counted.kills == 0
    high = sum(
        at_s >= 3.0 and priority == 0 for at_s, priority in zip(drawn.at_s, drawn.priority, strict=True)
    )
    assert counted.good[0] >= 0.98 * high


def test_without_a_limit_overload_leaves_next_to_nothing() -> None:
    best = sum(counts_of("oracle", SCENARIOS["step_5x"]).good)
    assert sum(counts_of("none", SCENARIOS["step_5x"]).good) < 0.2 * best
    assert counts_of("none", SCENARIOS["oom_3x"]).kills >= 5


def test_codel_serves_high_first_and_fails_with_a_wrong_limit() -> None:
    best, codel = counts_of("oracle", SCENARIOS["step_5x"]), counts_of("codel", SCENARIOS["step_5x"])
    assert sum(codel.good) > 0.98 * sum(best.good)
    assert codel.good[0] > 0.98 * best.good[0]
    assert counts_of("codel", SCENARIOS["oom_tight_3x"]).kills >= 5


def test_shares_reject_the_low_class_first() -> None:
    counted = counts_of("gradient", SCENARIOS["step_2x"])
    high, _, low = (bad / requested for bad, requested in zip(counted.rejected, counted.offered, strict=True))
    assert high < 0.02
    assert low > 0.4


def test_aimd_grows_by_one_and_falls_by_a_tenth() -> None:
    limit = Aimd(slo_s=2.0)
    limit.update(0.1, 20, ok=True)
    assert limit.value == 21.0
    limit.update(0.1, 5, ok=True)
    assert limit.value == 21.0
    for _ in range(200):
        limit.update(0.1, 200, ok=True)
    assert limit.value == 200.0
    limit.update(2.1, 200, ok=True)
    assert limit.value == 180.0
    limit.update(0.1, 200, ok=False)
    assert limit.value == 162.0


def test_the_gradient_falls_when_latency_rises() -> None:
    scheduler = EventScheduler()
    limit = Gradient(scheduler)
    for second in range(60):
        scheduler.until(float(second))
        for _ in range(20):
            limit.update(0.1, 200, ok=True)
    grown = limit.value
    assert 20.0 < grown <= 200.0
    for second in range(60, 64):
        scheduler.until(float(second))
        for _ in range(20):
            limit.update(1.0, 200, ok=True)
    assert limit.value < grown


def test_a_class_may_use_its_share_although_the_limit_is_reached() -> None:
    run = Run(small(plant=PlantSpec(base_s=50.0)), one(), lambda context: SharesLimiter(context, Aimd(2.0)))
    limiter = run.limiter
    for priority, count in ((2, 20), (0, 12), (0, 1), (2, 1)):
        for _ in range(count):
            limiter.arrive(Request(0, 0.0, priority, 1.0))
    assert run.plant.inside == 32
    assert run.counts.rejected == [1, 0, 1]


def test_unknown_limiter_is_named() -> None:
    with pytest.raises(ValueError, match="no limiter is called sluice; there are oracle, none"):
        registry.make("sluice", Run(small(), one(), RejectAll), small(), {})


def test_there_is_no_oracle_for_continuous_batches() -> None:
    with pytest.raises(TypeError, match="batch statically"):
        counts_of("oracle", SCENARIOS["llm_2x"])
