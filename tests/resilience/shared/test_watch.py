"""What is heard of a breaker: only what is newer, handed over by one at a time."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.model import Cause, State
from autoglm_throttle.resilience.shared.outbox import Opening, Verb
from autoglm_throttle.resilience.shared.watch import Watch
from autoglm_throttle.resilience.store import Remote
from tests.resilience.shared.fleets import Diary

OPEN = Remote(5, State.OPEN, wait_s=2.0, rounds=1, cause=Cause.FAILURES)


def fresh() -> Watch:
    return Watch("a", lambda remote: None)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30))
def test_versions_only_rise_and_the_newest_is_handed_over(heard: list[tuple[int, bool]]) -> None:
    watch, handed, newest = fresh(), [0], 0
    for version, pauses in heard:
        remote = Remote(version, State.CLOSED)
        begins = watch.hear(remote, 0.0)
        assert begins == (version > newest and not watch_is_busy(handed, newest))
        newest = max(newest, version)
        while not pauses and (news := watch.news(0.0)) is not None:
            handed.append(news.version)
    while (news := watch.news(0.0)) is not None:
        handed.append(news.version)
    assert handed == sorted(set(handed))
    assert handed[-1] == newest == watch.version


def watch_is_busy(handed: list[int], newest: int) -> bool:
    """Who began to hand over something has not yet handed over the newest."""
    return handed[-1] != newest


def test_who_hands_over_is_told_of_what_came_meanwhile() -> None:
    watch = fresh()
    assert watch.hear(OPEN, 0.0)
    assert not watch.hear(replace(OPEN, version=6), 0.0), "somebody is at it"
    assert not watch.hear(replace(OPEN, version=7, state=State.CLOSED), 0.0)
    assert watch.news(0.0) == replace(OPEN, version=7, state=State.CLOSED)
    assert watch.handing
    assert watch.news(0.0) is None
    assert not watch.handing


def test_what_is_noted_is_known_and_no_news() -> None:
    watch = fresh()
    assert watch.note(OPEN, 0.0)
    assert not watch.hear(OPEN, 0.0)
    assert watch.news(0.0) is None
    assert watch.version == 5


def test_an_open_period_goes_on() -> None:
    watch = fresh()
    assert watch.latest(0.0) is None
    watch.note(OPEN, 10.0)
    assert watch.latest(10.5) == replace(OPEN, wait_s=1.5)
    assert watch.latest(99.0) == replace(OPEN, wait_s=0.0)


@pytest.mark.parametrize(
    ("state", "again"),
    [
        (State.OPEN, Opening("a", 12.0, 1, Cause.FAILURES, 5)),
        (State.FORCED_OPEN, Verb("a", State.FORCED_OPEN, 5, again=True)),
        (State.DISABLED, Verb("a", State.DISABLED, 5, again=True)),
        (State.HALF_OPEN, None),
        (State.CLOSED, None),
    ],
)
def test_what_the_store_has_forgotten_and_is_told_again(state: State, again: object) -> None:
    watch = fresh()
    assert watch.forgotten(0.0) is None
    watch.note(replace(OPEN, state=state), 10.0)
    assert watch.forgotten(10.0) == again


def test_an_open_period_that_is_over_is_not_told_again() -> None:
    watch = fresh()
    watch.note(OPEN, 10.0)
    assert watch.forgotten(12.0) is None


def test_a_breaker_is_not_kept_alive() -> None:
    diary = Diary()
    watch = Watch("a", diary.changed)
    assert watch.changed is not None
    watch.changed(OPEN)
    assert diary.states == [OPEN]
    del diary
    gc.collect()
    assert watch.changed is None


def test_a_method_of_what_cannot_be_held_weakly_is_held() -> None:
    class Slotted:
        __slots__ = ()

        def changed(self, remote: Remote) -> None:
            """Take it."""

    watch = Watch("a", Slotted().changed)
    gc.collect()
    assert watch.changed is not None


def test_a_child_knows_nothing() -> None:
    watch = fresh()
    watch.hear(OPEN, 0.0)
    watch.met = True
    watch.reset_after_fork()
    assert (watch.version, watch.met, watch.handing, watch.remote) == (0, False, False, None)
    assert watch.news(0.0) is None
