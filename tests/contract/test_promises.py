"""What callers may rely on in both forms: the instant to come back, the limit of any window, a refund."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.store.protocol import VALUES, Answer
from autoglm_throttle.types import UserLimit
from tests.contract.script_store import SECOND, START, ScriptStore, limit
from tests.contract.test_script_is_the_reference import Player
from tests.contract.traces import PLANS, Hit, Step, limits_of, traces

FORMS = (pytest.param(True, id="list"), pytest.param(False, id="buckets"))
WINDOW_US = 60 * SECOND


def ok(answer: Answer) -> bool:
    return not any(answer[::VALUES])


@given(
    trace=traces,
    plan=st.integers(0, len(PLANS) - 1),
    sizes=st.tuples(*[st.integers(1, 40)] * 3),
    units=st.integers(1, 10),
)
def test_rejection_ends_exactly_at_its_instant(
    store: ScriptStore, trace: Sequence[Step], plan: int, sizes: tuple[int, ...], units: int
) -> None:
    player = Player(store)
    for step in trace:
        player.play(step)
    ask = store.ask(limits_of(Hit(plan, sizes, "a", units)), units, "a", f"user-{plan}")
    for _ in range(100):
        (answer,) = store.call([ask], player.clock)
        if not ok(answer):
            break
    waits = answer[::VALUES]
    if -1 in waits:
        assert units > min(sizes[: len(waits)])
        return
    wait = max(waits)
    assert wait > 0
    (still,) = store.call([ask], player.clock + wait - 1)
    assert not ok(still)
    assert max(still[::VALUES]) == 1
    (free,) = store.call([ask], player.clock + wait)
    assert ok(free)


def arrivals(load: float, most: int, windows: int) -> list[int]:
    """Instants of a Poisson stream of so many times the limit."""
    source = random.Random(f"{load}")
    instants, at = [], 0.0
    while at < windows * WINDOW_US:
        at += source.expovariate(load * most / WINDOW_US)
        instants.append(START + int(at))
    return instants


def bursts(most: int, windows: int) -> list[int]:
    """A limit's worth in one millisecond, at random instants."""
    source = random.Random(7)
    starts = sorted(source.randrange(windows * WINDOW_US) for _ in range(3 * windows))
    return [START + start + source.randrange(1000) for start in starts for _ in range(most)]


MOST, WINDOWS = 60, 8
STREAMS = {
    "1x": arrivals(1, MOST, WINDOWS),
    "2x": arrivals(2, MOST, WINDOWS),
    "10x": arrivals(10, MOST, WINDOWS),
    "bursts": sorted(bursts(MOST, WINDOWS)),
}


def fullest(instants: Sequence[int]) -> int:
    """Most instants that lie in one window, wherever it begins."""
    return max(place + 1 - bisect_right(instants, at - WINDOW_US) for place, at in enumerate(instants))


@pytest.mark.parametrize("stream", ["1x", "2x", pytest.param("10x", marks=pytest.mark.slow), "bursts"])
def test_no_window_holds_more_than_the_limit(store: ScriptStore, stream: str) -> None:
    store.fresh()
    asks = [store.ask((limit(MOST, exact=exact),)) for exact in (True, False)]
    admitted: tuple[list[int], list[int]] = ([], [])
    for at in STREAMS[stream]:
        for answer, instants in zip(store.call(asks, at), admitted, strict=True):
            if answer[0] == 0:
                instants.append(at)
    exact, compact = admitted
    assert fullest(exact) == MOST
    assert fullest(compact) == MOST
    assert 0.978 * len(exact) <= len(compact) <= 1.01 * len(exact)


@pytest.mark.parametrize("exact", FORMS)
@given(
    spent=st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 5)), max_size=20),
    units=st.integers(1, 20),
    pause=st.integers(0, 61 * SECOND),
    later=st.lists(st.tuples(st.integers(0, 5 * SECOND), st.integers(0, 20)), min_size=1, max_size=15),
)
def test_refunded_units_were_never_charged(
    store: ScriptStore,
    exact: bool,
    spent: list[tuple[int, int]],
    units: int,
    pause: int,
    later: list[tuple[int, int]],
) -> None:
    limits: tuple[UserLimit, ...] = (limit(40, exact=exact), limit(60, 3600, exact=exact))
    stories = []
    for whether in (True, False):
        store.fresh()
        clock = START
        for pace, cost in spent:
            clock += pace
            store.hit(limits, clock, cost)
        if whether:
            ask = store.ask(limits, units)
            (answer,) = store.call([ask], clock)
            back = [store.wire.build_refund(ask, answer)] if ok(answer) else []
            store.call(back, clock + pause)
        clock += pause
        story = []
        for pace, cost in later:
            clock += pace
            story.append(store.hit(limits, clock, cost))
        stories.append(story)
    assert stories[0] == stories[1]


@pytest.mark.parametrize("exact", FORMS)
def test_512_at_once_on_a_cold_key_get_exactly_the_limit(store: ScriptStore, exact: bool) -> None:
    store.fresh()
    ask = store.ask((limit(100, exact=exact),))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: store.call_now([ask])[1][0], range(512)))
    left = sorted(answer[1] for answer in answers if answer[0] == 0)
    assert left == list(range(100))


@pytest.mark.parametrize("exact", FORMS)
def test_units_above_a_lowered_limit_are_waited_for(store: ScriptStore, exact: bool) -> None:
    store.fresh()
    limits, more = (limit(40, exact=exact),), (limit(60, exact=exact),)
    store.call([store.ask(more, 5)], START)
    store.call([store.ask(more, 50)], START + SECOND)
    now = START + 2 * SECOND
    refused = store.hit(limits, now)
    assert refused[1] == 0
    assert not ok(store.hit(limits, now + refused[0] - 1))
    assert store.hit(limits, now + refused[0])[:2] == [0, 39]
