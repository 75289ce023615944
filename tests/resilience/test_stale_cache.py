"""Answers that are kept: bounded, never older than allowed, never younger than they are."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.fallback import UNSET, Unset
from autoglm_throttle.resilience.stale import StaleCache

T = TypeVar("T")


class At(Generic[T]):
    """A cache at the times that a test sets."""

    def __init__(self, entries: int, max_age_s: float) -> None:
        self.now = 0.0
        self.cache: StaleCache[T] = StaleCache(entries, max_age_s, lambda: self.now)

    def put(self, key: str, value: T, now: float) -> None:
        self.now = now
        self.cache.put(key, value)

    def get(self, key: str, now: float) -> T | Unset:
        self.now = now
        return self.cache.get(key)


def test_an_answer_is_of_use_until_it_is_too_old() -> None:
    at = At[str](4, 60.0)
    at.put("a", "one", 10.0)
    assert at.get("a", 70.0) == "one"
    assert at.get("b", 10.0) is UNSET
    assert at.get("a", 70.5) is UNSET


def test_an_answer_that_was_too_old_is_forgotten() -> None:
    at = At[str](4, 60.0)
    at.put("a", "one", 0.0)
    assert at.get("a", 61.0) is UNSET
    assert len(at.cache) == 0


def test_giving_an_answer_out_does_not_renew_it() -> None:
    at = At[str](4, 3.0)
    at.put("a", "one", 0.0)
    assert all(at.get("a", float(now)) == "one" for now in range(4))
    assert at.get("a", 4.0) is UNSET


def test_a_new_answer_takes_the_place_of_the_old_one() -> None:
    at = At[str](4, 60.0)
    at.put("a", "one", 0.0)
    at.put("a", "two", 50.0)
    assert (at.get("a", 110.0), len(at.cache)) == ("two", 1)
    assert at.get("a", 110.5) is UNSET


def test_better_value_is_not_replaced() -> None:
    at = At[int](4, 60.0)
    for value in (2, 1, 3):
        at.cache.put("a", value, lambda stored, value=value: stored < value)  # type: ignore[misc]  # bound now
    assert at.get("a", 0.0) == 3
    at.cache.remove("a")
    at.cache.remove("b")
    assert at.get("a", 0.0) is UNSET


def test_the_one_used_longest_ago_goes_first() -> None:
    at = At[int](2, 9.0)
    at.put("a", 1, 0.0)
    at.put("b", 2, 0.0)
    at.get("a", 1.0)
    at.put("c", 3, 2.0)
    assert [at.get(key, 2.0) for key in "abc"] == [1, UNSET, 3]
    at.put("a", 4, 3.0)
    at.put("d", 5, 3.0)
    assert [at.get(key, 3.0) for key in "acd"] == [4, UNSET, 5]


def test_a_clock_that_steps_back_makes_nothing_too_old() -> None:
    at = At[str](1, 1.0)
    at.put("a", "one", 100.0)
    assert at.get("a", 10.0) == "one"


def test_none_is_an_answer() -> None:
    at = At[None](1, 1.0)
    at.put("a", None, 0.0)
    assert at.get("a", 0.0) is None


DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["put", "get"]), st.sampled_from("abcde"), st.sampled_from([0.0, 0.5, 1.0, 4.0])
    ),
    max_size=60,
)


@given(st.integers(1, 4), DEEDS)
def test_cache_equals_a_list_of_operations(entries: int, deeds: list[tuple[str, str, float]]) -> None:
    at = At[int](entries, 3.0)
    kept: OrderedDict[str, tuple[int, float]] = OrderedDict()
    now = 0.0
    for number, (verb, key, step_s) in enumerate(deeds):
        now += step_s
        if verb == "put":
            at.put(key, number, now)
            kept.pop(key, None)
            kept[key] = (number, now)
            if len(kept) > entries:
                del kept[next(iter(kept))]
        else:
            value = at.get(key, now)
            expected = kept.pop(key, None)
            if expected is not None and now - expected[1] <= 3.0:
                kept[key] = expected
                assert value == expected[0]
            else:
                assert value is UNSET
        assert len(at.cache) == len(kept) <= entries
