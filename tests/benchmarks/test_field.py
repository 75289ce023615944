"""The field cases: their callers, services, limits set by hand, and the command."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.testing.simulated_llm import TokenLengths, draw_lengths
from benchmarks import field, harness
from benchmarks.field_cases import registry
from benchmarks.field_cases.call import Call, Kind
from benchmarks.field_cases.case import Bar, Found, Job, medians, spread_of
from benchmarks.field_cases.clients import SDK_RETRIES, Crowd, Holders, RetryingCaller, sdk_wait_s
from benchmarks.field_cases.limiters import OURS, FieldThrottle, FixedLimiter, maker
from benchmarks.field_cases.llm_plant import LlmEnginePlant, traced_lengths
from benchmarks.field_cases.mixed_cases import drawn
from benchmarks.field_cases.plants import batches, servers
from benchmarks.field_cases.scenario_cases import (
    SILENCE_S,
    after_silence,
    begun_in_overload,
    random_plant,
    scenario_of,
)
from benchmarks.field_cases.tally import Tally, total
from benchmarks.field_cases.world import SILENT, MakePlant, Stream, World
from benchmarks.loop.limiters.limiter import BaseLimiter
from benchmarks.loop.limiters.no_limit import NoLimit
from benchmarks.loop.plant import PlantSpec
from benchmarks.loop.request import Request
from benchmarks.loop.scenarios import SCENARIOS

pytestmark = pytest.mark.slow

ONE_PER_S = PlantSpec(batch=1, base_s=0.5, item_s=0.5)
SINGLE = batches(ONE_PER_S)


class RejectAll(BaseLimiter):
    """Rejects every call with one time, and records the instants."""

    def __init__(self, world: World, told_s: float | None) -> None:
        self.world, self.told_s = world, told_s
        self.seen: list[float] = []

    def arrive(self, request: Request) -> None:
        assert isinstance(request, Call)
        self.seen.append(self.world.scheduler.now)
        request.retry_after_s = self.told_s
        self.world.reject(request)

    def ended(self, request: Request, *, ok: bool) -> None:
        raise AssertionError("nobody was admitted")


def world_of(
    make_plant: MakePlant = SINGLE, name: str = "none", until_s: float = 10.0, workers: int = 1
) -> World:
    return World(make_plant, maker(name, fixed=4), Tally(0.0, until_s), workers=workers)


def call_at(world: World, at_s: float, kind: Kind | None = None, priority: int = 0) -> Call:
    call = Call(world.number(), at_s, priority, kind or Kind())
    world.scheduler.at(at_s, lambda _: world.arrive(call))
    return call


def job(case: str, variant: str, *limiters: str, **more: Any) -> Job:
    return Job(case, variant, 1, limiters, **more)


# Callers


@pytest.mark.parametrize(
    ("told_s", "tries", "least_s", "most_s"),
    [
        (7.2, 0, 7.2, 7.92),
        (None, 0, 0.375, 0.5),
        (None, 1, 0.75, 1.0),
        (None, 9, 6.0, 8.0),
        (70.0, 1, 0.75, 1.0),
    ],
)
def test_sdk_follows_retry_after_up_to_a_minute_and_else_backs_off(
    told_s: float | None, tries: int, least_s: float, most_s: float
) -> None:
    rng = random.Random(1)
    call = Call(1, 0.0, 0, Kind())
    call.retry_after_s, call.tries = told_s, tries
    waits = [sdk_wait_s(call, rng) for _ in range(300)]
    assert least_s <= min(waits) < least_s * 1.02
    assert most_s * 0.98 < max(waits) <= most_s


def test_rejected_caller_returns_as_often_as_it_may() -> None:
    world = World(batches(ONE_PER_S), lambda world, _: RejectAll(world, 2.0), Tally(0.0, 30.0))
    caller = RetryingCaller(world, SDK_RETRIES, "returns")
    call_at(world, 1.0).caller = caller
    tally = world.run()
    limiter = world.limiters[0]
    assert isinstance(limiter, RejectAll)
    assert (total(tally.offered), total(tally.attempts), total(tally.rejected)) == (1, 3, 3)
    first, second, third = limiter.seen
    assert first == 1.0
    assert 2.0 <= second - first <= 2.2
    assert 2.0 <= third - second <= 2.2


def test_crowd_calls_again_after_a_pause_until_its_end() -> None:
    world = world_of(servers(3), until_s=50.0)
    crowd = Crowd(world, Kind(draw_work=lambda _: 1.0), 3, pause_s=1.0, until_s=10.0, seed="crowd")
    world.run()
    # each cycle lasts 2 s: an answer of 1 s and a pause of 1 s, so each begins 5 calls in 10 s
    assert (crowd.ended, crowd.failed) == (15, 0)
    assert crowd.served_in_time in (12, 13, 14, 15)


def test_call_of_a_crowd_fails_after_the_last_retry() -> None:
    world = World(batches(ONE_PER_S), lambda world, _: RejectAll(world, 1.0), Tally(0.0, 60.0))
    crowd = Crowd(world, Kind(), 1, pause_s=1.0, until_s=1.0, seed="fails")
    world.run()
    assert (crowd.ended, crowd.failed) == (1, 1)
    assert total(world.tally.attempts) == SDK_RETRIES + 1


def test_idle_streams_free_their_slots_when_the_permit_can_pause() -> None:
    world = world_of(name=OURS, until_s=20.0)
    Holders(world, Kind(), 10, 1.0, "idle")
    call_at(world, 15.0)
    tally = world.run()
    limiter = world.limiters[0]
    assert isinstance(limiter, FieldThrottle)
    view = limiter.throttle.snapshot().concurrency
    assert view is not None
    assert view.in_flight == 0
    assert total(tally.good) == 1


# Streams and counts


def test_stream_has_its_rates_and_its_draws_do_not_depend_on_the_limiter() -> None:
    def sent(name: str) -> list[int]:
        counts = []
        for from_s, until_s in ((0.0, 20.0), (20.0, 40.0)):
            world = World(batches(PlantSpec()), maker(name, fixed=1), Tally(from_s, until_s))
            Stream(world, Kind(), ((0, 10), (20, 100)), "rates")
            counts.append(total(world.run().offered))
        return counts

    slow, fast = sent("none")
    assert 150 < slow < 250
    assert 1850 < fast < 2150
    assert sent("fixed:1") == [slow, fast]


def test_calls_are_counted_within_the_window_by_kind_priority_and_objective() -> None:
    world = World(servers(1), lambda world, _: NoLimit(world), Tally(1.0, 5.0))
    short, long = Kind("short", 0.5), Kind("long", 3.0)
    for at_s, kind, priority in (
        (0.5, short, 0),
        (2.0, short, 1),
        (2.1, long, 2),
        (2.2, short, 0),
        (5.0, short, 0),
    ):
        call_at(world, at_s, kind, priority).cost = 0.4
    tally = world.run()
    assert total(tally.offered) == 3
    assert (total(tally.good, kind="short"), total(tally.good, kind="long")) == (1, 1)
    assert (total(tally.late, priority=0), total(tally.late)) == (1, 1)


def test_calls_are_spread_over_workers_and_settle_where_they_began() -> None:
    world = world_of(batches(PlantSpec()), OURS, workers=4)
    Stream(world, Kind(), ((0, 50), (10, 0)), "spread")
    tally = world.run()
    assert total(tally.good) == total(tally.offered) > 400
    for limiter in world.limiters:
        assert isinstance(limiter, FieldThrottle)
        view = limiter.throttle.snapshot().concurrency
        assert view is not None
        assert view.in_flight == 0
        assert (view.service_rps or 0.0) > 5.0


# Services


def test_servers_work_in_order_side_by_side() -> None:
    world = world_of(servers(2))
    for at_s in (0.0, 0.1, 0.2):
        call_at(world, at_s).cost = 1.0
    assert world.run().latencies_s == pytest.approx([1.0, 1.0, 1.8])


def test_silent_service_answers_when_it_has_its_speed() -> None:
    world = world_of()
    world.speeds((0.0, SILENT), (6.0, 1.0))
    call_at(world, 1.0)
    assert world.run().latencies_s == pytest.approx([6.0])


def llm(*calls: tuple[float, int, int]) -> tuple[World, LlmEnginePlant, list[float]]:
    world = World(LlmEnginePlant, lambda world, _: NoLimit(world), Tally(0.0, 500.0))
    for at_s, prompt, output in calls:
        call_at(world, at_s).work = TokenLengths(prompt, output)
    plant = world.plant
    assert isinstance(plant, LlmEnginePlant)
    return world, plant, world.run().latencies_s


def test_llm_computes_a_prompt_in_chunks_and_then_token_by_token() -> None:
    _, plant, lasted = llm((0.0, 3000, 11))
    prefill_s = 2 * 0.015 + 3000 * 0.00005
    assert lasted == pytest.approx([prefill_s + 10 * 0.0151])
    assert plant.inside == 0


@pytest.mark.parametrize(("first_slo_s", "good"), [(0.2, 2), (0.1, 0), (0.15, 1), (None, 2)])
def test_answer_with_a_late_first_token_is_not_good(first_slo_s: float | None, good: int) -> None:
    world = World(LlmEnginePlant, lambda world, _: NoLimit(world), Tally(0.0, 500.0))
    for prompt in (2000, 1000):  # the first step has 2,048 tokens, so the second prompt needs another one
        call_at(world, 0.0, Kind(slo_s=60.0, first_slo_s=first_slo_s)).work = TokenLengths(prompt, 10)
    tally = world.run()
    assert (total(tally.good), total(tally.late)) == (good, 2 - good)


def test_llm_sequences_share_their_steps() -> None:
    _, _, lasted = llm((0.0, 100, 101), (0.0, 100, 101))
    prefill_s = 0.015 + 100 * 0.00005
    # the second joins after the first step, so it is one step later
    assert lasted[1] - lasted[0] == pytest.approx(0.0151)
    assert lasted[0] == pytest.approx(prefill_s + prefill_s + 0.0001 + 99 * 0.0152, rel=1e-6)


def test_llm_preempts_the_last_sequence_when_the_cache_is_full_and_ends_all() -> None:
    _, plant, lasted = llm(*((0.0, 8000, 1000) for _ in range(6)))
    assert plant.engine.preemptions > 0
    assert len(lasted) == 6
    assert plant.inside == 0
    assert plant.engine.kv_used_ratio == 0.0


def test_drawn_lengths_have_the_means_of_the_trace() -> None:
    rng = random.Random(1)
    drawn_lengths = [draw_lengths(rng) for _ in range(20_000)]
    assert sum(one.prompt for one in drawn_lengths) / 20_000 == pytest.approx(1155, rel=0.05)
    assert sum(one.output for one in drawn_lengths) / 20_000 == pytest.approx(211, rel=0.05)


def test_lengths_come_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n")
    assert traced_lengths(str(path), random.Random(1)) == TokenLengths(374, 44)


# Limits set by hand


class Recorder:
    """A context that records what a limiter does."""

    def __init__(self) -> None:
        self.world = world_of()
        self.scheduler, self.plant, self.slo_s = self.world.scheduler, self.world.plant, 2.0
        self.admitted: list[int] = []
        self.rejected: list[int] = []

    def admit(self, request: Request, replica: int | None = None) -> None:
        self.admitted.append(request.number)

    def reject(self, request: Request) -> None:
        self.rejected.append(request.number)


def test_limit_set_by_hand_queues_by_priority_within_its_bound() -> None:
    context = Recorder()
    limiter = FixedLimiter(context, 1)
    calls = [Call(number, 0.0, priority, Kind()) for number, priority in enumerate((2, 2, 2, 2, 2, 0, 2))]
    for call in calls:
        limiter.arrive(call)
    # one slot, four in the queue: the important one takes the position of the last, the last one none
    assert (context.admitted, context.rejected) == ([0], [4, 6])
    limiter.ended(calls[0], ok=True)
    limiter.settled(0)
    assert context.admitted == [0, 5]


def test_limit_set_by_hand_rejects_what_waited_too_long_and_needs_no_queue() -> None:
    context = Recorder()
    limiter, unqueued = FixedLimiter(context, 1), FixedLimiter(context, 1, queued=False)
    for number in (0, 1):
        limiter.arrive(Call(number, 0.0, 0, Kind()))
    context.scheduler.until(0.51)
    limiter.settled(0)
    assert (context.admitted, context.rejected) == ([0], [1])
    for number in (2, 3):
        unqueued.arrive(Call(number, 0.51, 0, Kind()))
    assert (context.admitted, context.rejected) == ([0, 2], [1, 3])


# Scenarios


def test_overload_begins_at_once() -> None:
    step = begun_in_overload(SCENARIOS["step_5x"])
    assert step.load.pieces == ((0.0, 5.0, 5.0),)
    assert step.duration_s == 45.0
    assert begun_in_overload(SCENARIOS["sawtooth_0.3-3x"]).load.pieces[0] == (0.0, 3.0, 0.3)
    assert begun_in_overload(SCENARIOS["steady_0.5x"]).load == SCENARIOS["steady_0.5x"].load
    assert begun_in_overload(SCENARIOS["stall_8s_0.5x"]).speeds == ((0.0, -1, 0.02), (8.0, -1, 1.0))


def test_silence_comes_before_a_scenario() -> None:
    scenario = after_silence(SCENARIOS["hot_gpu_0.6x-2x"])
    assert scenario.load.pieces == ((0.0, 0.6, 0.6), (8.0, 0.6, 0.6), (38.0, 2.0, 2.0))
    assert scenario.duration_s == 68.0
    assert scenario.warm_s == SILENCE_S + 3.0
    assert [(at_s, index) for at_s, index, _ in scenario.speeds] == [(0.0, -1), (8.0, -1), (8.0, 0)]
    assert scenario.speeds[-1] == (8.0, 0, 0.3)


def test_random_draws_are_always_the_same_and_some_begin_in_overload() -> None:
    assert random_plant(7) == random_plant(7) == scenario_of("plants", "7")
    plants = [random_plant(number) for number in range(120)]
    assert {plant.load.pieces[0][1] for plant in plants} >= {0.3, 8.0}
    assert all(20.0 <= plant.plant.capacity_rps <= 150.001 for plant in plants)
    loads = [[rates for _, rates in drawn(number).kinds] for number in (3, 3, 4)]
    assert loads[0] == loads[1] != loads[2]


# Tables and the command


def test_bar_counts_what_the_table_shows() -> None:
    assert Bar("all", "good", 0.98).is_met(0.9796)
    assert not Bar("all", "good", 0.98).is_met(0.9794)
    assert not Bar("all", "late", 0.01, at_most=True).is_met(0.0106)


def test_medians_are_over_seeds_and_spread_over_variants() -> None:
    found = [(job("users", "a"), Found({"ours": {"good": value}})) for value in (0.9, 0.1, 0.5)]
    assert medians(found) == {"a": {"ours": {"good": 0.5}}}
    assert spread_of([4.0, 1.0]) == pytest.approx((2.0, 1.0, 1.0))


@pytest.mark.parametrize("name", sorted(registry.CASES))
def test_bars_are_for_figures_that_exist(name: str) -> None:
    case = registry.CASES[name]
    if case.summarize is None:
        assert {bar.variant for bar in case.bars} <= set(case.variants)
    else:
        rows = {"a": {"ours": {"good": 1.0, "high": 1.0, "requests": 1.0}}}
        summary = case.summarize(rows)["all"]["ours"]
        assert {bar.figure for bar in case.bars} <= set(summary)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    return lambda *argv: field.main(["--jobs", "1", "--seeds", "1", *argv])


SMALL = ("--case", "users", "--variant", "1 of 100", "--limiters", "fixed")


def test_second_run_finds_the_kept_figures_and_another_limit_does_not(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*SMALL, "--write") == 0
    kept = json.loads((tmp_path / "field.json").read_text())
    assert kept["sha256"] == field.digest(kept["figures"])
    assert command(*SMALL, "--check") == 0
    assert "the figures are those that were kept" in capsys.readouterr().out
    assert command(*SMALL[:-1], "gradient", "--check") == 1
    assert "other figures than those kept: users" in capsys.readouterr().out


def test_best_possible_results_are_kept_and_used(command: Callable[..., int], tmp_path: Path) -> None:
    argv = ("--case", "mixed", "--variant", "0.5x", "--limiters", "fixed", "--write")
    assert command(*argv, "--sweep") == 0
    path = tmp_path / "field_bounds.json"
    bounds = json.loads(path.read_text())
    assert bounds["mixed"]["0.5x"]["1"]["long"] > 50
    before = json.loads((tmp_path / "field.json").read_text())["figures"]["mixed"]["0.5x"]["fixed"]["long"]
    bounds["mixed"]["0.5x"]["1"]["long"] *= 2.0
    path.write_text(json.dumps(bounds))
    assert command(*argv) == 0
    after = json.loads((tmp_path / "field.json").read_text())["figures"]["mixed"]["0.5x"]["fixed"]["long"]
    assert after == pytest.approx(before / 2.0, abs=1e-3)


def test_settings_of_the_command_line_reach_the_throttle(command: Callable[..., int], tmp_path: Path) -> None:
    argv = ("--case", "users", "--variant", "1 of 100", "--limiters", "ours", "--write")
    assert command(*argv) == 0
    free = json.loads((tmp_path / "field.json").read_text())["figures"]["users"]["1 of 100"]["ours"]["good"]
    assert command(*argv, "--set", "inflight_max=1") == 0
    capped = json.loads((tmp_path / "field.json").read_text())["figures"]["users"]["1 of 100"]["ours"]["good"]
    # a batch of one needs 19.4 ms: 52 of 100 requests/s
    assert free > 0.9
    assert 0.45 < capped < 0.55


def test_unknown_case_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        field.arguments(["--case", "nothing"])
    assert "nothing is not one of" in capsys.readouterr().err
