"""The cap of the requests in flight by the key-value cache of an engine."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.cache_cap import CACHE_TARGET, CacheCap


def test_cap_is_the_number_of_sequences_that_fill_the_target() -> None:
    tested = CacheCap()
    assert tested.requests == math.inf
    tested.learn(0.5, 10)
    assert tested.requests == pytest.approx(CACHE_TARGET * 20)


def test_full_cache_holds_fewer_than_run_now() -> None:
    tested = CacheCap()
    tested.learn(1.0, 40)
    assert tested.requests == pytest.approx(CACHE_TARGET * 40)


def test_many_sequences_weigh_more_than_few() -> None:
    tested = CacheCap()
    tested.learn(0.5, 100)
    known = tested.requests
    tested.learn(0.05, 1)
    assert tested.requests == pytest.approx(known, rel=0.15), "one long prompt is no proof"


@pytest.mark.parametrize("sample", [(0.0, 4), (0.3, 0), (0.0, 0)])
def test_idle_engine_shows_nothing(sample: tuple[float, int]) -> None:
    tested = CacheCap()
    tested.learn(0.5, 10)
    known = tested.requests
    tested.learn(*sample)
    assert tested.requests == known


@pytest.mark.parametrize("sample", [(None, 4), (0.5, None), (None, None)])
def test_without_samples_there_is_no_cap(sample: tuple[float | None, int | None]) -> None:
    tested = CacheCap()
    tested.learn(0.5, 10)
    tested.learn(*sample)
    assert tested.requests == math.inf
    tested.learn(0.25, 10)
    assert tested.requests == pytest.approx(CACHE_TARGET * 40), "the old samples are forgotten"


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 1000)), max_size=30))
def test_cap_is_never_below_one(samples: list[tuple[float, int]]) -> None:
    tested = CacheCap()
    for sample in samples:
        tested.learn(*sample)
    assert tested.requests >= 1.0
