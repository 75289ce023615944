"""The simulated GPU: no request is lost, the capacity holds, and polling changes no result."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.testing.simulated import BatchSpec, Done, Item, LlmSpec, SimulatedGpu, SimulatedGpuSpec
from autoglm_throttle.types import GpuProvider

GIB = 1 << 30
SPECS = {
    "batch": SimulatedGpuSpec(
        work=BatchSpec(max_batch=4, base_s=0.01, capacity_rps=50.0), request_bytes=2 * GIB
    ),
    "llm": SimulatedGpuSpec(work=LlmSpec(max_running=3, kv_tokens=400)),
}
specs = st.sampled_from(sorted(SPECS))
gaps = st.floats(min_value=0.0, max_value=0.3)
works = st.lists(st.tuples(gaps, st.integers(0, 250), st.integers(1, 40)), min_size=1, max_size=60)
faults = st.lists(
    st.tuples(st.floats(0.0, 6.0), st.sampled_from(["stall", "slow", "lose", "recover", "fake_busy"])),
    max_size=4,
)
FAULTS: dict[str, Callable[[SimulatedGpu, float], None]] = {
    "stall": lambda sim, now: sim.stall(0.7, now),
    "slow": lambda sim, now: sim.slow(3.0, now),
    "lose": lambda sim, now: sim.lose(now),
    "recover": lambda sim, now: sim.recover(now),
    "fake_busy": lambda sim, _now: sim.fake_busy(on=True),
}


def play(
    spec: SimulatedGpuSpec,
    work: list[tuple[float, int, int]],
    trouble: list[tuple[float, str]],
    step_s: float,
) -> list[Done]:
    """Everything that ended within 60 s, looking every ``step_s`` seconds as well."""
    sim = SimulatedGpu(spec, clock=lambda: 0.0)
    at_s = 0.0
    events: list[tuple[float, int, Callable[[float], None]]] = []
    for number, (gap_s, context, tokens) in enumerate(work):
        at_s += gap_s
        item = Item(number, context, tokens)
        events.append((at_s, number, partial(sim.submit, item)))
    for number, (when_s, fault) in enumerate(trouble):
        events.append((when_s, -number - 1, partial(FAULTS[fault], sim)))
    looks = int(60.0 / step_s)
    events += [(look * step_s, 10_000 + look, lambda _now: None) for look in range(looks + 1)]
    told: list[Done] = []
    for now, _, act in sorted(events, key=lambda event: event[:2]):
        act(now)
        told += sim.advance(now)
        sample = sim.sample(now)
        assert sample.utilization_pct is None or 0.0 <= sample.utilization_pct <= 100.0
        state = sim.state(now)
        assert state["submitted"] == state["done"] + state["failed"] + state["resident"]
    told += sim.advance(1e6)
    return told


@given(specs, works, faults)
def test_outcomes_do_not_depend_on_the_polling_interval(
    name: str, work: list[tuple[float, int, int]], trouble: list[tuple[float, str]]
) -> None:
    rarely = play(SPECS[name], work, trouble, 7.0)
    often = play(SPECS[name], work, trouble, 0.31)
    assert often == rarely
    assert sorted(done.id for done in rarely) == list(range(len(work)))
    assert [done.done_s for done in rarely] == sorted(done.done_s for done in rarely)


@given(st.lists(st.integers(1, 100), min_size=2, max_size=60))
def test_running_sequences_end_in_order_of_tokens(tokens: list[int]) -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=LlmSpec()))
    for number, wanted in enumerate(tokens):
        sim.submit(Item(number, 0, wanted), 0.0)
    # The first step starts before the other items are submitted.
    ended = [tokens[done.id] + (done.id > 0) for done in sim.advance(60.0)]
    assert len(ended) == len(tokens)
    assert ended == sorted(ended)


@given(st.lists(gaps, min_size=5, max_size=80), st.integers(1, 8))
def test_completions_in_any_window_stay_below_the_capacity(spaces: list[float], max_batch: int) -> None:
    work = BatchSpec(max_batch=max_batch, base_s=0.004, capacity_rps=80.0)
    told = play(SimulatedGpuSpec(work=work), [(gap_s, 0, 1) for gap_s in spaces], [], 30.0)
    ends = sorted({done.done_s for done in told})
    for first, begin_s in enumerate(ends):
        for end_s in ends[first + 1 :]:
            done = sum(begin_s < one.done_s <= end_s for one in told)
            assert done <= work.capacity_rps * (end_s - begin_s) * (1 + 1e-9) + 1e-6


def test_a_full_batch_runs_at_the_stated_capacity() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=BatchSpec(max_batch=16, base_s=0.01, capacity_rps=100.0)))
    for number in range(17):
        sim.submit(Item(number), 0.0)
    assert sim.next_event() == pytest.approx(0.01 + 0.009375)
    told = sim.advance(0.5)
    assert [done.id for done in told] == list(range(17))
    assert told[0].done_s == pytest.approx(0.019375)
    assert told[16].done_s == pytest.approx(0.019375 + 0.16)


def test_llm_step_generates_one_token_per_sequence() -> None:
    spec = LlmSpec(step_s=0.01, per_seq_s=0.001, prefill_tps=1000.0, max_running=2, kv_tokens=1000)
    sim = SimulatedGpu(SimulatedGpuSpec(work=spec))
    sim.submit(Item(1, 100, 3), 0.0)
    assert sim.advance(0.11) == []
    assert sim.generated(1, 0.112) == 1
    assert sim.generated(2, 0.112) == 0
    sim.submit(Item(2, 50, 1), 0.115)
    # The step that runs ends at 0.111 + 0.011; then both share one step of 10 + 2 + 50 ms.
    told = sim.advance(10.0)
    assert [done.id for done in told] == [1, 2]
    assert [done.done_s for done in told] == pytest.approx([0.122 + 0.062] * 2)


def test_a_sequence_waits_until_its_tokens_fit() -> None:
    spec = LlmSpec(step_s=0.01, per_seq_s=0.001, prefill_tps=1e9, max_running=8, kv_tokens=100)
    sim = SimulatedGpu(SimulatedGpuSpec(work=spec))
    sim.submit(Item(1, 60, 10), 0.0)
    sim.submit(Item(2, 25, 10), 0.0)
    sim.submit(Item(3, 95, 10), 0.0)
    state = sim.state(0.05)
    assert (state["kv_used"], state["queued"], state["failed"]) == (70, 1, 1)
    told = sim.advance(10.0)
    assert [(done.id, done.failed) for done in told] == [(3, "too_large"), (1, ""), (2, "")]
    assert told[2].done_s == pytest.approx(2 * told[1].done_s)


def test_utilization_is_the_busy_share_of_the_last_second() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=BatchSpec(max_batch=1, base_s=0.1, capacity_rps=5.0)))
    sim.submit(Item(1), 10.0)
    shares = [sim.sample(now).utilization_pct for now in (10.1, 10.2, 10.7, 11.0, 11.1, 11.3)]
    assert shares == [pytest.approx(share) for share in (10.0, 20.0, 20.0, 20.0, 10.0, 0.0)]


def test_power_and_memory_follow_the_work() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=BatchSpec(max_batch=2, base_s=1.0, capacity_rps=1.0)))
    idle = sim.sample(0.0)
    assert (idle.power_w, idle.memory_used_bytes, idle.power_limit_w) == (70.0, 2 * GIB, 700.0)
    sim.submit(Item(1), 0.0)
    sim.submit(Item(2), 0.0)
    busy = sim.sample(1.0)
    assert busy.power_w == pytest.approx(70.0 + 630.0 / 2)
    assert busy.memory_used_bytes == 2 * GIB + GIB // 2


def test_the_published_memory_of_a_model_server() -> None:
    """1.8 GB with one request in flight, 25.6 GB with 32: the line through a model server's figures."""
    spec = SimulatedGpuSpec(
        work=BatchSpec(max_batch=32), memory_idle_bytes=1_030_000_000, request_bytes=768_000_000
    )
    sim = SimulatedGpu(spec)
    seen = []
    for number in range(32):
        sim.submit(Item(number), 0.0)
        seen.append(sim.sample(0.0).memory_used_bytes)
    assert [seen[0], seen[31]] == pytest.approx([1.8e9, 25.6e9], rel=0.01)


def test_sequence_above_the_total_memory_fails_all() -> None:
    spec = LlmSpec(kv_tokens=1_000_000, max_running=8)
    sim = SimulatedGpu(SimulatedGpuSpec(work=spec, memory_total_bytes=3 * GIB, restart_s=5.0))
    sim.submit(Item(0, 4000, 100), 0.0)
    sim.submit(Item(1, 5000, 100), 0.0)
    told = sim.advance(1.0)
    assert [(done.id, done.failed) for done in told] == [(0, "memory"), (1, "memory")]
    assert told[0].done_s == pytest.approx(0.012 + 0.0002 + 4000 / 20_000)
    assert sim.sample(1.0).health == "lost"
    assert sim.sample(6.0).memory_used_bytes == 2 * GIB


def test_out_of_memory_fails_all_and_loses_the_device() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(memory_total_bytes=3 * GIB, request_bytes=GIB // 2, restart_s=5.0))
    for number in range(3):
        sim.submit(Item(number), 0.0)
    assert [(done.id, done.failed) for done in sim.advance(0.0)] == [
        (0, "memory"),
        (1, "memory"),
        (2, "memory"),
    ]
    assert sim.sample(4.9).health == "lost"
    assert sim.sample(4.9).utilization_pct is None
    sim.submit(Item(3), 4.9)
    assert sim.advance(4.9) == [Done(3, 4.9, "lost")]
    sim.submit(Item(4), 5.0)
    assert sim.advance(6.0)[0].failed == ""
    assert sim.sample(6.0).health == "ok"


def test_stall_holds_all_requests_and_shows_busy() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=BatchSpec(max_batch=1, base_s=0.1, capacity_rps=5.0)))
    sim.stall(2.0, 0.0)
    sim.submit(Item(1), 0.5)
    assert sim.next_event() == 2.0
    assert [done.done_s for done in sim.advance(5.0)] == [pytest.approx(2.2)]
    sim.submit(Item(2), 10.0)
    sim.stall(1.0, 10.1)
    sim.stall(0.5, 10.2)
    assert [done.done_s for done in sim.advance(20.0)] == [pytest.approx(11.2)]
    sim.submit(Item(3), 30.0)
    sim.stall(5.0, 30.1)
    assert sim.sample(33.0).utilization_pct == pytest.approx(100.0)


def test_slow_device_is_slow_from_the_next_batch_on() -> None:
    sim = SimulatedGpu(SimulatedGpuSpec(work=BatchSpec(max_batch=1, base_s=0.1, capacity_rps=5.0)))
    sim.submit(Item(1), 0.0)
    sim.slow(3.0, 0.1)
    sim.submit(Item(2), 0.1)
    assert [done.done_s for done in sim.advance(5.0)] == [pytest.approx(0.2), pytest.approx(0.8)]
    with pytest.raises(ValueError, match="factor"):
        sim.slow(0.0, 5.0)


def test_fake_busy_shows_much_and_draws_little_at_normal_speed() -> None:
    sim = SimulatedGpu()
    sim.fake_busy(on=True)
    sample = sim.sample(0.0)
    assert sample.utilization_pct == 98.0
    assert sample.power_w == pytest.approx(133.0)


def test_a_lost_device_fails_everything_until_it_recovers() -> None:
    sim = SimulatedGpu()
    sim.submit(Item(1), 0.0)
    sim.lose(0.01)
    assert sim.next_event() == 0.01
    assert sim.advance(0.01) == [Done(1, 0.01, "lost")]
    assert sim.next_event() is None
    sim.slow(2.0, 0.01)
    sim.recover(1e5)
    assert sim.sample(1e5).utilization_pct == 0.0
    sim.submit(Item(2), 1e5)
    assert [done.done_s for done in sim.advance(1e6)] == pytest.approx([1e5 + 0.019375])


def test_recovery_ends_a_stall_for_queued_requests() -> None:
    sim = SimulatedGpu()
    sim.stall(100.0, 0.0)
    sim.submit(Item(1), 0.0)
    sim.recover(1.0)
    assert sim.advance(2.0)[0].done_s == pytest.approx(1.019375)


def test_time_never_goes_back() -> None:
    sim = SimulatedGpu()
    sim.submit(Item(1), 1.0)
    sim.submit(Item(2), 0.5)
    assert sim.advance(0.0) == []
    assert [done.done_s for done in sim.advance(9.0)] == [pytest.approx(1.019375), pytest.approx(1.03875)]
    sim.submit(Item(3), 2.0)
    assert [done.done_s for done in sim.advance(20.0)] == [pytest.approx(9.019375)]


def test_it_is_a_provider_that_reads_by_its_own_clock() -> None:
    sim = SimulatedGpu(clock=lambda: 7.0)
    assert isinstance(sim, GpuProvider)
    (sample,) = sim.read()
    assert (sample.taken_at_s, sample.utilization_pct, sample.source) == (7.0, 0.0, "simulated")
    sim.close()
    sim.reset_after_fork()
    assert sim.read() == (sample,)


def test_faster_device_gives_the_same_results_sooner() -> None:
    slow = SimulatedGpu(SimulatedGpuSpec(work=LlmSpec()))
    fast = SimulatedGpu(SimulatedGpuSpec(work=LlmSpec().faster(10.0)))
    for number in range(5):
        slow.submit(Item(number, 100, 50), number * 1.0)
        fast.submit(Item(number, 100, 50), number * 0.1)
    ends = [done.done_s for done in slow.advance(1e3)]
    assert [10.0 * done.done_s for done in fast.advance(1e3)] == pytest.approx(ends)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BatchSpec(max_batch=0),
        lambda: BatchSpec(base_s=math.nan),
        lambda: BatchSpec(base_s=1.0, capacity_rps=100.0),
        lambda: LlmSpec(kv_tokens=0),
        lambda: SimulatedGpuSpec(memory_idle_bytes=90 * GIB),
        lambda: SimulatedGpuSpec(idle_w=800.0),
        lambda: SimulatedGpuSpec(restart_s=-1.0),
    ],
)
def test_impossible_device_specs_are_rejected(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"\w+ must"):
        make()
