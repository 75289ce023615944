"""Answers that are kept: bounded, never older than allowed, never younger than they are."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.stale import CacheEntry, StaleCache


def test_an_answer_is_of_use_until_it_is_too_old() -> None:
    cache: StaleCache[str] = StaleCache(4)
    cache.put("a", "one", 10.0)
    assert cache.get("a", 70.0, 60.0) == CacheEntry("one", 10.0)
    assert cache.get("b", 10.0, 60.0) is None
    assert cache.get("a", 70.5, 60.0) is None


def test_an_answer_that_was_too_old_is_forgotten() -> None:
    cache: StaleCache[str] = StaleCache(4)
    cache.put("a", "one", 0.0)
    assert cache.get("a", 61.0, 60.0) is None
    assert len(cache) == 0


def test_giving_an_answer_out_does_not_renew_it() -> None:
    cache: StaleCache[str] = StaleCache(4)
    cache.put("a", "one", 0.0)
    assert all(cache.get("a", float(now), 3.0) for now in range(4))
    assert cache.get("a", 4.0, 3.0) is None


def test_a_new_answer_takes_the_place_of_the_old_one() -> None:
    cache: StaleCache[str] = StaleCache(4)
    cache.put("a", "one", 0.0)
    cache.put("a", "two", 50.0)
    entry = cache.get("a", 100.0, 60.0)
    assert entry is not None
    assert (entry.value, entry.age_s(100.0), len(cache)) == ("two", 50.0, 1)


def test_the_one_used_longest_ago_goes_first() -> None:
    cache: StaleCache[int] = StaleCache(2)
    cache.put("a", 1, 0.0)
    cache.put("b", 2, 0.0)
    cache.get("a", 1.0, 9.0)
    cache.put("c", 3, 2.0)
    assert [cache.get(key, 2.0, 9.0) is not None for key in "abc"] == [True, False, True]
    cache.put("a", 4, 3.0)
    cache.put("d", 5, 3.0)
    assert [cache.get(key, 3.0, 9.0) is not None for key in "acd"] == [True, False, True]


def test_a_clock_that_steps_back_makes_nothing_too_old() -> None:
    cache: StaleCache[str] = StaleCache(1)
    cache.put("a", "one", 100.0)
    entry = cache.get("a", 10.0, 1.0)
    assert entry is not None
    assert entry.age_s(10.0) == 0.0


def test_none_is_an_answer() -> None:
    cache: StaleCache[None] = StaleCache(1)
    cache.put("a", None, 0.0)
    assert cache.get("a", 0.0, 1.0) == CacheEntry(None, 0.0)


def test_cache_of_size_zero_is_invalid() -> None:
    with pytest.raises(ValueError, match="entries must be at least 1, is 0"):
        StaleCache(0)


def test_repr_shows_fill_and_age() -> None:
    cache: StaleCache[str] = StaleCache(1024)
    assert repr(cache) == "<StaleCache 0/1024>"
    cache.put("a", "one", 2.0)
    cache.put("b", "two", 20.0)
    cache.get("b", 50.0, 60.0)
    assert repr(cache) == "<StaleCache 2/1024, oldest 48 s>"


DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["put", "get"]), st.sampled_from("abcde"), st.sampled_from([0.0, 0.5, 1.0, 4.0])
    ),
    max_size=60,
)


@given(st.integers(1, 4), DEEDS)
def test_cache_equals_a_list_of_operations(entries: int, deeds: list[tuple[str, str, float]]) -> None:
    cache: StaleCache[int] = StaleCache(entries)
    kept: OrderedDict[str, tuple[int, float]] = OrderedDict()
    oldest: dict[int, float] = {}
    now = 0.0
    for number, (verb, key, step_s) in enumerate(deeds):
        now += step_s
        if verb == "put":
            cache.put(key, number, now)
            kept.pop(key, None)
            kept[key] = (number, now)
            if len(kept) > entries:
                del kept[next(iter(kept))]
        else:
            entry = cache.get(key, now, 3.0)
            expected = kept.pop(key, None)
            if expected is not None and now - expected[1] <= 3.0:
                kept[key] = expected
                assert entry == CacheEntry(*expected)
                age_s = entry.age_s(now)
                assert oldest.get(expected[0], 0.0) <= age_s <= 3.0
                oldest[expected[0]] = age_s
            else:
                assert entry is None
        assert len(cache) == len(kept) <= entries
