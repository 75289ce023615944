"""Throughput over windows long enough for rare responses, against its baseline."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.verdict.throughput import Throughput, ThroughputTracker
from autoglm_throttle.types import GpuSample, GpuView, ServiceStats
from tests.gpu.cases.replay_case import row, view


def engine(now: float, **fields: Any) -> GpuSample:
    return row(9, now, **{"kind": "engine", "source": "vllm", **fields})


class Service:
    """Update our own counts once a second."""

    def __init__(self) -> None:
        self.progress = ThroughputTracker()
        self.now = 500.0
        self.done = 0.0

    def run(self, seconds: int, per_s: float, in_flight: int = 10, **more: Any) -> Throughput:
        rows = more.pop("rows", lambda now: ())
        for _ in range(seconds):
            self.now += 1.0
            self.done += per_s
            work = ServiceStats(in_flight=in_flight, chunks_total=int(self.done + 1e-6), **more)
            report = (row(0, self.now), *rows(self.now))
            movement = self.progress.update(view(report), work, self.now)
        return movement


def test_the_first_look_knows_no_rate_and_a_second_one_does() -> None:
    service = Service()
    assert service.run(1, 5.0).per_s is None
    assert service.run(1, 5.0).per_s == 5.0


def test_completions_and_streamed_parts_are_both_progress() -> None:
    progress = ThroughputTracker()
    empty = view((row(0, 0.0),))
    progress.update(empty, ServiceStats(completed_total=1, chunks_total=10), 0.0)
    assert progress.update(empty, ServiceStats(completed_total=3, chunks_total=30), 2.0).per_s == 11.0


def test_rare_answers_are_progress_all_the_time() -> None:
    service = Service()
    service.run(10, 0.25)
    assert all((service.run(1, 0.25).per_s or 0.0) > 0.0 for _ in range(40))


@pytest.mark.parametrize(("p95_s", "window_s"), [(None, 10.0), (0.5, 10.0), (25.0, 25.0), (900.0, 60.0)])
def test_the_window_is_as_long_as_answers_take(p95_s: float | None, window_s: float) -> None:
    service = Service()
    service.run(90, 1.0, p95_s=p95_s)
    assert service.run(1, 0.0, p95_s=p95_s).window_s == window_s
    last = service.run(int(window_s) - 2, 0.0, p95_s=p95_s).per_s
    assert last is not None
    assert last > 0.0
    assert service.run(2, 0.0, p95_s=p95_s).per_s == 0.0


def test_silence_counts_from_last_response_or_first_request() -> None:
    service = Service()
    service.run(20, 1.0)
    assert service.run(7, 0.0).silent_s == 7.0
    still = service.run(5, 0.0, in_flight=0)
    assert (still.silent_s, still.no_request_s) == (0.0, 5.0)
    began = service.run(1, 0.0)
    assert (began.silent_s, began.no_request_s) == (0.0, 0.0)
    assert service.run(3, 0.0).silent_s == 3.0


def test_a_counter_that_starts_anew_is_no_progress_backwards() -> None:
    service = Service()
    service.run(20, 10.0)
    service.done = 0.0
    seen = [service.run(1, 0.0) for _ in range(12)]
    assert [movement.per_s for movement in seen[:3]] == [
        pytest.approx(9.0),
        pytest.approx(8.0),
        pytest.approx(7.0),
    ]
    assert (seen[-1].per_s, seen[-1].silent_s) == (0.0, 12.0)


def test_no_more_is_remembered_than_the_longest_window_needs() -> None:
    progress = ThroughputTracker()
    for tick in range(2000):
        progress.update(view((row(0, 0.0),)), ServiceStats(completed_total=tick), tick / 5)
    assert len(progress._measurements) <= 122


# --- engines


def test_engines_take_precedence_over_our_own_count() -> None:
    service = Service()
    rows = lambda now: (engine(now, tokens_per_s=300.0), engine(now, tokens_per_s=200.0))  # noqa: E731
    service.run(5, 1.0)
    assert service.run(1, 1.0, rows=rows).per_s is None, "another unit: begun anew"
    assert service.run(20, 0.0, rows=rows).per_s == pytest.approx(500.0)
    assert service.run(1, 0.0, rows=rows).silent_s == 0.0
    hung = service.run(15, 0.0, rows=lambda now: (engine(now, tokens_per_s=0.0),))
    assert (hung.per_s, hung.silent_s) == (0.0, 15.0)


@pytest.mark.parametrize(
    "report",
    [
        {"tokens_per_s": None},
        {"tokens_per_s": 5.0, "health": "lost"},
        {"tokens_per_s": 5.0, "kind": "gpu"},
        {"tokens_per_s": 5.0, "age_s": 4.0},
    ],
    ids=["no tokens", "lost", "a card", "long ago"],
)
def test_engine_without_figures_leaves_own_counts(report: dict[str, Any]) -> None:
    service = Service()
    listener = lambda now: (engine(now, queued=1), engine(now, **report))  # noqa: E731
    assert service.run(20, 3.0, rows=listener).per_s == 3.0


def test_engine_with_slow_source_is_used() -> None:
    service = Service()
    listener = lambda now: (engine(now), engine(now, tokens_per_s=70.0, age_s=20.0, period_s=10.0))  # noqa: E731
    assert service.run(20, 3.0, rows=listener).per_s == pytest.approx(70.0)


def test_engines_excluded_by_view_are_not_used() -> None:
    progress = ThroughputTracker()
    for tick in range(5):
        now = 10.0 + tick
        seen: GpuView = view((engine(now, tokens_per_s=9.0),), engines=0)
        movement = progress.update(seen, ServiceStats(completed_total=2 * tick), now)
    assert movement.per_s == 2.0


def test_level_is_of_the_engine_if_known() -> None:
    service = Service()
    calm = lambda now: (engine(now, tokens_per_s=500.0, running=8),)  # noqa: E731
    service.run(60, 0.0, rows=calm)
    assert service.run(1, 0.0, rows=calm).share == pytest.approx(1.0)
    lone = lambda now: (engine(now, tokens_per_s=60.0, running=1),)  # noqa: E731
    shares = [service.run(1, 0.0, rows=lone).share for _ in range(40)]
    assert all(share is None or share > 0.9 for share in shares), "other loads of the engine are not compared"


# --- the usual


def test_the_usual_speaks_after_half_a_minute_of_learning() -> None:
    service = Service()
    shares = [service.run(1, 20.0).share for _ in range(60)]
    first = next(at for at, share in enumerate(shares) if share is not None)
    assert 38 <= first <= 42, "ten seconds of window and thirty of learning"
    assert shares[-1] == pytest.approx(1.0)


def test_a_collapse_is_seen_within_the_window_and_held() -> None:
    service = Service()
    service.run(120, 100.0)
    fallen = service.run(12, 33.0).share
    assert fallen is not None
    assert fallen < 0.4
    later = service.run(500, 33.0).share
    assert later is not None
    assert later < 0.4, "the fault must not become the usual"


def test_collapse_of_ten_minutes_becomes_the_baseline() -> None:
    service = Service()
    service.run(120, 100.0)
    service.run(630, 33.0)
    assert service.run(60, 33.0).share == pytest.approx(1.0)


def test_two_collapses_are_not_one_long_one() -> None:
    service = Service()
    service.run(120, 100.0)
    for _ in range(3):
        fallen = service.run(400, 33.0).share
        assert fallen is not None
        assert fallen < 0.5
        service.run(60, 100.0)


def test_a_slow_change_is_learned() -> None:
    service = Service()
    service.run(120, 100.0)
    for per_s in range(99, 30, -1):
        share = service.run(10, float(per_s)).share
        assert share is not None
        assert share > 0.5


def test_other_loads_are_not_compared() -> None:
    service = Service()
    service.run(120, 100.0, in_flight=20)
    shares = [service.run(1, 20.0, in_flight=4).share for _ in range(35)]
    assert all(share is None or share > 0.5 for share in shares)
    assert service.run(30, 20.0, in_flight=4).share == pytest.approx(1.0)
    back = service.run(30, 100.0, in_flight=20).share
    assert back == pytest.approx(1.0, rel=0.01), "each load keeps its own"


def test_a_changing_load_is_not_compared() -> None:
    service = Service()
    service.run(120, 100.0)
    shares = [service.run(1, 20.0, in_flight=n).share for n in range(10, 200, 10)]
    assert shares[3:] == [None] * len(shares[3:])


def test_few_responses_are_compared_over_longer_window() -> None:
    rare = Service()
    assert rare.run(300, 0.5).share == pytest.approx(1.0)
    report = [rare.run(1, 0.0).share for _ in range(90)]
    assert all(share is None or share >= 0.5 for share in report), "thirty a minute: chance halves them"
    few = Service()
    few.run(200, 2.0)
    silent = [few.run(1, 0.0).share for _ in range(20)]
    assert [share is None or share > 0.5 for share in silent[:11]] == [True] * 11, "25 s are needed"
    last = silent[-1]
    assert last is not None
    assert last < 0.5


def test_window_longer_than_steady_load_is_not_compared() -> None:
    service = Service()
    service.run(200, 2.0)
    service.run(15, 30.0, in_flight=100)
    shares = [service.run(1, 0.0).share for _ in range(12)]
    assert shares == [None] * 12, "25 s hold two loads"


@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 90.0), st.integers(0, 400), st.integers(0, 60), st.booleans()), max_size=60
    )
)
def test_whatever_happens_the_figures_stay_in_their_ranges(
    steps: list[tuple[float, int, int, bool]],
) -> None:
    progress, now, done = ThroughputTracker(), 0.0, 0
    for passed_s, more, in_flight, report in itertools.chain(steps, steps):
        now, done = now + passed_s, done + more
        rows = (row(0, now), *((engine(now, tokens_per_s=more),) if report else ()))
        movement = progress.update(view(rows), ServiceStats(in_flight=in_flight, completed_total=done), now)
        assert movement.per_s is None or movement.per_s >= 0.0
        assert 0.0 <= movement.silent_s <= now
        assert 0.0 <= movement.no_request_s <= now
        assert movement.share is None or movement.share >= 0.0
        assert in_flight == 0 or movement.no_request_s == 0.0


# --- units


def streams(
    progress: ThroughputTracker, seconds: int, answers_per_s: float, parts_per_s: float, at_s: float
) -> list[Any]:
    """Return the shares of a service with both; counters and time start at ``at_s``."""
    shares = []
    for _ in range(seconds):
        at_s += 1.0
        DONE["answers"] += answers_per_s
        DONE["parts"] += parts_per_s
        work = ServiceStats(
            in_flight=10, completed_total=int(DONE["answers"] + 1e-6), chunks_total=int(DONE["parts"] + 1e-6)
        )
        shares.append(progress.update(view((row(0, at_s),)), work, at_s).share)
    return shares


DONE = {"answers": 0.0, "parts": 0.0}


@pytest.mark.parametrize("answers_per_s", [5.0, 0.5], ids=["often", "seldom"])
def test_whole_answers_instead_of_streamed_ones_are_no_collapse(answers_per_s: float) -> None:
    progress = ThroughputTracker()
    streams(progress, 200, answers_per_s, 200.0, 0.0)
    for parts_per_s in (60.0, 0.0):
        shares = streams(progress, 100, answers_per_s, parts_per_s, 200.0 if parts_per_s else 300.0)
        assert all(share is None or share >= 0.5 for share in shares)


def test_rare_responses_without_chunks_are_not_streams() -> None:
    progress = ThroughputTracker()
    streams(progress, 200, 0.2, 200.0, 0.0)
    between = streams(progress, 9, 0.2, 0.0, 200.0)
    assert len(between) == 9, "parts of the window are streamed still"
    shares = streams(progress, 60, 0.2, 0.0, 209.0)
    assert all(share is None or share >= 0.5 for share in shares[1:])


def test_stream_collapse_is_found_with_rare_responses() -> None:
    for answers_per_s in (0.05, 5.0):
        progress = ThroughputTracker()
        streams(progress, 200, answers_per_s, 200.0, 0.0)
        share = streams(progress, 60, answers_per_s / 4, 50.0, 200.0)[-1]
        assert share is not None
        assert share < 0.5


def test_fewer_tokens_with_equal_responses_is_no_collapse() -> None:
    service = Service()
    long = lambda now: (engine(now, tokens_per_s=9000.0, running=8),)  # noqa: E731
    short = lambda now: (engine(now, tokens_per_s=600.0, running=8),)  # noqa: E731
    service.run(120, 5.0, rows=long)
    shares = [service.run(1, 5.0, rows=short).share for _ in range(60)]
    assert all(share is not None and share > 0.9 for share in shares)
    fewer = service.run(60, 1.0, rows=short).share
    assert fewer is not None
    assert fewer < 0.5


def test_fewer_whole_answers_may_be_heavier_ones() -> None:
    progress = ThroughputTracker()
    streams(progress, 200, 8.0, 0.0, 0.0)
    shares = streams(progress, 100, 2.0, 0.0, 200.0)
    assert all(share is None or share >= 0.5 for share in shares)


def test_tokens_counted_at_the_end_are_not_compared() -> None:
    service = Service()
    lumps = itertools.cycle([4000.0, 0.0, 0.0, 0.0])
    rows = lambda now: (engine(now, tokens_per_s=next(lumps), running=8),)  # noqa: E731
    service.run(120, 0.0, rows=rows)
    still = lambda now: (engine(now, tokens_per_s=0.0, running=8),)  # noqa: E731
    assert {service.run(1, 0.0, rows=still).share for _ in range(20)} == {None}


def test_response_chunk_or_token_is_progress() -> None:
    assert Service().run(20, 0.0).progressed_s is None
    answered = Service()
    answered.run(1, 0.0)
    assert answered.run(5, 1.0).progressed_s == answered.now
    assert answered.run(5, 0.0).progressed_s == answered.now - 5.0
    before = Service()
    before.done = 7.0
    assert before.run(1, 0.0).progressed_s == before.now
    report = Service()
    rows = lambda now: (engine(now, tokens_per_s=9.0),)  # noqa: E731
    assert report.run(2, 0.0, rows=rows).progressed_s == report.now


def test_own_chunks_are_progress_beside_engine_without_tokens() -> None:
    service = Service()
    rows = lambda now: (engine(now, tokens_per_s=0.0, running=1),)  # noqa: E731
    service.run(20, 0.0, rows=rows)
    assert service.run(20, 1.0, rows=rows).silent_s == 0.0
