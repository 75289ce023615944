"""The simulated LLM engine: every request ends once, blocks are conserved, and work never stands still."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.testing.simulated_llm import (
    EngineEvent,
    LlmEngine,
    LlmEngineSpec,
    TokenLengths,
    draw_lengths,
)

# Steps of 1 s, so that times are countable, and a cache that fills up.
SMALL = LlmEngineSpec(
    step_s=1.0,
    sequence_s=0.25,
    prompt_token_s=0.125,
    block_size=4,
    num_gpu_blocks=12,
    max_num_seqs=3,
    max_num_batched_tokens=16,
    max_model_len=40,
)

lengths = st.builds(TokenLengths, st.integers(1, 20), st.integers(1, 20))
submissions = st.tuples(lengths, st.integers(-2, 2))
# A request, or -1: a step, or the number of a request that its client leaves.
operations = st.lists(st.one_of(submissions, st.just(-1), st.integers(0, 30)), max_size=80)
specs = st.builds(
    replace,
    st.just(SMALL),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    max_num_queued_reqs=st.sampled_from([None, 4]),
    block_size=st.sampled_from([4, 5]),
)


class EngineRun:
    """An engine driven by a list of operations, and all that it did."""

    def __init__(self, spec: LlmEngineSpec) -> None:
        self.engine = LlmEngine(spec)
        self.spec = spec
        self.now = 0.0
        self.ends: Counter[int] = Counter()
        self.aborted: list[int] = []
        self.rejected: list[int] = []
        self.firsts: Counter[int] = Counter()
        self.submitted: list[TokenLengths] = []
        self.events: list[tuple[float, EngineEvent]] = []

    def run(self, todo: list[tuple[TokenLengths, int] | int]) -> EngineRun:
        for one in todo:
            if isinstance(one, tuple):
                self.submit(*one)
            elif one < 0:
                self.step()
            elif self.engine.abort(one):
                self.aborted.append(one)
            self.check()
        while self.step():
            self.check()
        return self

    def submit(self, wanted: TokenLengths, priority: int) -> None:
        number = len(self.submitted)
        self.submitted.append(wanted)
        if not self.engine.submit(number, wanted, priority):
            self.rejected.append(number)

    def step(self) -> bool:
        pending = self.engine.running + self.engine.waiting
        ends_s = self.engine.begin(self.now)
        assert (ends_s is not None) == (pending > 0), "an engine with work stands still"
        if ends_s is None:
            return False
        assert ends_s > self.now
        assert self.engine.free_blocks >= 0
        self.now = ends_s
        for event in self.engine.finish():
            (self.firsts if event.kind == "first_token" else self.ends)[event.id] += 1
            self.events.append((self.now, event))
        return True

    def check(self) -> None:
        engine, spec = self.engine, self.spec
        assert engine.running <= spec.max_num_seqs
        used = spec.num_gpu_blocks - engine.free_blocks
        assert engine.running <= used <= spec.num_gpu_blocks
        assert (used == 0) == (engine.running == 0)
        if spec.max_num_queued_reqs is not None:
            assert engine.running + engine.waiting <= spec.max_num_queued_reqs


@given(specs, operations)
def test_every_request_ends_exactly_once(
    spec: LlmEngineSpec, todo: list[tuple[TokenLengths, int] | int]
) -> None:
    run = EngineRun(spec).run(todo)
    ended = [*run.ends.elements(), *run.aborted, *run.rejected]
    assert sorted(ended) == list(range(len(run.submitted)))
    engine = run.engine
    counted = (engine.finished, engine.aborted, engine.rejected)
    assert counted == (len(run.ends), len(run.aborted), len(run.rejected))
    assert engine.kv_used_ratio == 0.0


@given(specs, st.lists(st.one_of(submissions, st.just(-1)), max_size=60))
def test_tokens_are_generated_once_despite_preemptions(
    spec: LlmEngineSpec, todo: list[tuple[TokenLengths, int] | int]
) -> None:
    run = EngineRun(spec).run(todo)
    finished = [run.submitted[number] for number in run.ends]
    assert run.engine.prompt_tokens == sum(one.prompt for one in finished)
    assert run.engine.generation_tokens == sum(one.output for one in finished)
    assert run.firsts == run.ends


@given(specs, operations)
def test_equal_operations_have_equal_events(
    spec: LlmEngineSpec, todo: list[tuple[TokenLengths, int] | int]
) -> None:
    assert EngineRun(spec).run(todo).events == EngineRun(spec).run(todo).events


def run_all(spec: LlmEngineSpec, *todo: tuple[int, int, int]) -> EngineRun:
    """Run requests of (prompt, output, priority) that are all submitted at 0 s."""
    return EngineRun(spec).run([(TokenLengths(prompt, output), rank) for prompt, output, rank in todo])


def times(run: EngineRun, kind: str) -> dict[int, float]:
    return {event.id: at_s for at_s, event in run.events if event.kind == kind}


def test_step_lasts_as_long_as_its_tokens_cost() -> None:
    run = run_all(SMALL, (8, 3, 0))
    prefill_s, decode_s = 1.0 + 8 * 0.125, 1.0 + 0.25
    assert times(run, "first_token") == {0: prefill_s}
    assert times(run, "finished") == {0: prefill_s + 2 * decode_s}


def test_long_prompt_is_computed_in_parts_beside_decoding() -> None:
    run = run_all(SMALL, (1, 10, 0), (20, 1, 0))
    # 16 tokens in the first step, and the other 5 of the second prompt beside one decoding sequence.
    first_s = 1.0 + 16 * 0.125
    assert times(run, "first_token") == {0: first_s, 1: first_s + 1.0 + 0.25 + 5 * 0.125}


def test_full_cache_preempts_the_last_request_and_keeps_its_tokens() -> None:
    run = run_all(SMALL, (20, 20, 0), (20, 20, 0))
    assert run.engine.preemptions == 1
    finished = times(run, "finished")
    assert finished[0] < finished[1]
    assert run.engine.generation_tokens == 40


def test_request_joins_only_beside_the_growth_of_others() -> None:
    engine = LlmEngine(SMALL)
    engine.submit(1, TokenLengths(16, 5))
    engine.begin(0.0)
    engine.finish()
    engine.submit(2, TokenLengths(32, 5))  # 8 blocks, as many as are free before the first one grows
    engine.begin(10.0)
    assert (engine.running, engine.waiting, engine.free_blocks) == (1, 1, 7)


def test_priority_policy_starts_urgent_requests_first() -> None:
    todo = ((8, 2, 0), (8, 2, 0), (8, 2, 0), (8, 2, 5), (8, 2, -5))
    ranked = times(run_all(replace(SMALL, scheduling_policy="priority"), *todo), "first_token")
    assert ranked[4] == min(ranked.values())
    assert ranked[3] == max(ranked.values())
    in_order = times(run_all(SMALL, *todo), "first_token")
    assert in_order[4] == max(in_order.values())


def test_priority_policy_preempts_the_least_urgent() -> None:
    spec = replace(SMALL, scheduling_policy="priority")
    run = run_all(spec, (20, 20, 1), (20, 20, 0))
    assert run.engine.preemptions == 1
    assert times(run, "finished")[1] < times(run, "finished")[0]


def test_queue_limit_counts_waiting_and_running() -> None:
    run = run_all(replace(SMALL, max_num_queued_reqs=2), (1, 1, 0), (1, 1, 0), (1, 1, 0))
    assert run.rejected == [2]


def test_abort_frees_the_blocks_within_a_step() -> None:
    engine = LlmEngine(SMALL)
    engine.submit(1, TokenLengths(7, 5))
    now = engine.begin(0.0)
    assert now is not None
    engine.finish()
    engine.begin(now)
    assert engine.free_blocks == 10
    assert engine.abort(1)
    assert engine.free_blocks == 12
    assert engine.finish() == []
    assert not engine.abort(1)


def test_slower_engine_takes_longer_from_the_next_step_on() -> None:
    engine = LlmEngine(SMALL)
    engine.submit(1, TokenLengths(8, 2))
    assert engine.begin(0.0) == 2.0
    engine.speed = 0.5
    assert engine.begin(1.0) == 2.0, "the step that runs is not changed"
    engine.finish()
    assert engine.begin(2.0) == 2.0 + 2.5


@pytest.mark.parametrize("wanted", [TokenLengths(0, 1), TokenLengths(1, 0), TokenLengths(40, 1)])
def test_lengths_out_of_range_are_named(wanted: TokenLengths) -> None:
    with pytest.raises(ValueError, match="40 at most together"):
        LlmEngine(SMALL).submit(1, wanted)


def test_id_in_use_is_an_error() -> None:
    engine = LlmEngine(SMALL)
    engine.submit(1, TokenLengths(1, 1))
    with pytest.raises(ValueError, match="request 1 is in the engine"):
        engine.submit(1, TokenLengths(1, 1))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"step_s": 0.0}, "step_s"),
        ({"prompt_token_s": float("nan")}, "prompt_token_s"),
        ({"num_gpu_blocks": -1}, "num_gpu_blocks"),
        ({"max_num_queued_reqs": 0}, "max_num_queued_reqs"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens"),
        ({"max_model_len": 49}, "max_model_len"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy"),
    ],
)
def test_bad_spec_is_an_error_with_its_name(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        replace(SMALL, **changes)


def test_faster_engine_divides_every_duration() -> None:
    slow, fast = run_all(SMALL, (8, 3, 0)), run_all(SMALL.faster(10.0), (8, 3, 0))
    assert times(fast, "finished")[0] == pytest.approx(times(slow, "finished")[0] / 10.0)


def test_drawn_lengths_have_the_means_of_the_trace() -> None:
    rng = random.Random(1)
    drawn = [draw_lengths(rng) for _ in range(5000)]
    assert sum(one.prompt for one in drawn) / 5000 == pytest.approx(1155, rel=0.1)
    assert sum(one.output for one in drawn) / 5000 == pytest.approx(211, rel=0.1)
