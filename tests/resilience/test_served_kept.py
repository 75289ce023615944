"""Cached answers of a feature: selection, keys, ages and copies."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.calls import GuardedAttempt
from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.fallback import UNSET, Fallback
from autoglm_throttle.resilience.stale import ResultCache
from autoglm_throttle.settings.groups.breaker import BreakerSettings, DegradationSettings
from autoglm_throttle.types import Criticality, DegradationLevel, GuardRejected, Outcome
from tests.resilience.degrading import Bench, Dependency, Failed, face

__all__ = ["face"]


def test_cached_result_replaces_a_failure_until_too_old(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True), rules=BreakerSettings(failures=100)), Dependency(face)
    dependency(bench.served, "a")
    dependency.error = Failed("x")
    for age_s in (0.0, 30.0, 60.0):
        bench.now = 100.0 + age_s
        assert dependency(bench.served, "a") == [1]
    bench.now = 160.5
    with pytest.raises(Failed):
        dependency(bench.served, "a")
    assert bench.counted() == {("stale", "error"): 3}


def test_a_feature_has_its_own_limit(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True, max_stale_s=5.0)), Dependency(face)
    dependency(bench.served)
    dependency.error = Failed("x")
    bench.now += 5.5
    with pytest.raises(Failed):
        dependency(bench.served)


def test_fallback_value_is_not_cached(face: str) -> None:
    fallback = Fallback(stale=True, static="static")
    bench, dependency = Bench(fallback, rules=BreakerSettings(failures=100)), Dependency(face)
    dependency.error = Failed("x")
    assert dependency(bench.served) == "static"
    assert dependency(bench.served) == "static"
    assert bench.counted() == {("static", "error"): 2}


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (Outcome.SUCCESS, True),
        (Outcome.SLOW, True),
        (Outcome.NEUTRAL, False),
        (Outcome.FAILURE, False),
    ],
)
def test_only_success_is_cached_however_slow(face: str, outcome: Outcome, kept: bool) -> None:
    classifier = OutcomeClassifier(classify=lambda seen: outcome if isinstance(seen, list) else None)
    bench, dependency = Bench(Fallback(stale=True), classifier=classifier), Dependency(face)
    assert dependency(bench.served) == [1]
    dependency.error = Failed("x")
    if kept:
        assert dependency(bench.served) == [1]
    else:
        with pytest.raises(Failed):
            dependency(bench.served)


def test_cached_value_is_safe_from_callers(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True), rules=BreakerSettings(failures=100)), Dependency(face)
    dependency(bench.served).append("the first caller's")
    dependency.error = Failed("x")
    dependency(bench.served).append("the second caller's")
    assert dependency(bench.served) == [1]


def test_shared_values_are_not_copied(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True, shared_value=True)), Dependency(face)
    value = dependency(bench.served)
    dependency.error = Failed("x")
    assert dependency(bench.served) is value


def test_uncopyable_value_is_not_cached(face: str, caplog: pytest.LogCaptureFixture) -> None:
    bench, dependency = Bench(Fallback(stale=True)), Dependency(face)
    dependency.value = threading.Lock
    assert type(dependency(bench.served)) is type(threading.Lock())
    dependency.error = Failed("x")
    with pytest.raises(Failed):
        dependency(bench.served)
    assert len(caplog.messages) == 1
    assert "pass shared_value=True" in caplog.messages[0]


def test_calls_with_unhashable_arguments_are_not_cached(face: str, caplog: pytest.LogCaptureFixture) -> None:
    bench, dependency = Bench(Fallback(stale=True)), Dependency(face)
    assert dependency(bench.served, ["unhashable"]) == [1]
    assert dependency(bench.served, of={"unhashable": 1}) == [2]
    bench.at(DegradationLevel.STATIC)
    assert dependency(bench.served, ["unhashable"]) == [3]
    assert len(caplog.messages) == 1
    assert "pass key=" in caplog.messages[0]
    dependency.error = Failed("x")
    with pytest.raises(Failed):
        dependency(bench.served, ["unhashable"])


def test_key_selects_the_relevant_arguments(face: str) -> None:
    fallback = Fallback(stale=True, key=lambda user, trace=None: user)
    bench, dependency = Bench(fallback, rules=BreakerSettings(failures=100)), Dependency(face)
    dependency(bench.served, "a", trace=["unhashable"])
    dependency.error = Failed("x")
    assert dependency(bench.served, "a", trace=["other"]) == [1]
    with pytest.raises(Failed):
        dependency(bench.served, "b")


def test_a_key_of_none_keeps_nothing(face: str, caplog: pytest.LogCaptureFixture) -> None:
    bench, dependency = Bench(Fallback(stale=True, key=lambda user: None)), Dependency(face)
    dependency(bench.served, "a")
    dependency.error = Failed("x")
    with pytest.raises(Failed):
        dependency(bench.served, "a")
    assert caplog.messages == []


@pytest.mark.parametrize("key", [lambda: 1, lambda *_: 1 / 0, lambda *_: []])
def test_a_key_that_cannot_be_made_stops_no_call(
    face: str, key: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    bench, dependency = Bench(Fallback(stale=True, key=key)), Dependency(face)
    assert dependency(bench.served, "a") == [1]
    assert len(caplog.messages) == 1


def test_the_cache_is_bounded(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True), rules=BreakerSettings(failures=100)), Dependency(face)
    for number in range(9):
        dependency(bench.served, number)
    dependency.error = Failed("x")
    with pytest.raises(Failed):
        dependency(bench.served, 0)
    assert dependency(bench.served, 1) == [2]


def test_half_open_probe_renews_the_cache(face: str) -> None:
    bench = Bench(Fallback(stale=True), rules=BreakerSettings(failures=1, open_s=10.0))
    dependency = Dependency(face)
    dependency(bench.served)
    dependency.error = Failed("x")
    assert dependency(bench.served) == [1]
    dependency.error = None
    bench.now += 5.0
    assert dependency(bench.served) == [1]
    assert dependency.calls == 2
    bench.now += 5.0
    assert dependency(bench.served) == [3]
    dependency.error = Failed("x")
    assert dependency(bench.served) == [3]
    assert bench.counted() == {("stale", "error"): 2, ("stale", "failures"): 1}


def test_shed_feature_is_answered_by_an_earlier_result(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True), Criticality.NON_CORE), Dependency(face)
    dependency(bench.served, "a")
    bench.at(DegradationLevel.STATIC)
    assert dependency(bench.served, "a") == [1]
    with pytest.raises(GuardRejected):
        dependency(bench.served, "b")


# The shelf by itself.


def shelved(fallback: Fallback | None = None) -> ResultCache:
    """A shelf with a clock that stands still."""
    log = RateLimitedLogger("related", lambda: 0.0)
    return ResultCache(
        fallback or Fallback(stale=True), DegradationSettings(cache_entries=8), 60.0, lambda: 0.0, log
    )


def answered(value: object) -> GuardedAttempt:
    """A call that has succeeded."""
    return GuardedAttempt(value, outcome=Outcome.SUCCESS)


class Repository:
    """Has a method."""

    def find(self, number: int) -> int:
        """Find something."""
        return number


def test_different_calls_have_different_keys() -> None:
    stored = shelved()
    first, second = Repository(), Repository()
    calls: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = [
        (len, (1,), {}),
        (max, (1,), {}),
        (len, (True,), {}),
        (len, (1.0,), {}),
        (len, (1, 2), {}),
        (len, (), {"a": 1}),
        (len, (), {"a": True}),
        (len, (), {"b": 1}),
        (len, (("a", 1),), {}),
        (len, ((("a", 1),),), {}),
        (len, (), {}),
        (first.find, (1,), {}),
        (second.find, (1,), {}),
        (functools.partial(max, 1), (), {}),
        (functools.partial(max, 1), (), {}),
    ]
    assert len({stored.key(*call) for call in calls}) == len(calls)


def test_the_same_call_has_the_same_key() -> None:
    stored = shelved()
    assert stored.key(len, (1,), {"a": 1, "b": 2}) == stored.key(len, (1,), {"b": 2, "a": 1})
    repository = Repository()
    assert stored.key(repository.find, (1,), {}) == stored.key(repository.find, (1,), {})


def test_keyword_types_belong_to_the_key_in_any_order() -> None:
    stored = shelved(Fallback(stale=True))
    assert stored.key(len, (), {"a": 1, "b": True}) != stored.key(len, (), {"b": 1, "a": True})
    assert stored.key(len, (), {"a": 1, "b": True}) == stored.key(len, (), {"b": True, "a": 1})


ALIKE = st.recursive(
    st.sampled_from([1, 1.0, True]),
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=4,
)


def quoted(value: object) -> object:
    """A value so that only the same of the same types is equal to it."""
    if isinstance(value, tuple):
        return ("tuple", *map(quoted, value))
    if isinstance(value, frozenset):
        return ("set", *sorted((quoted(item) for item in value), key=repr))
    return repr(value)


@given(st.lists(ALIKE, max_size=2), st.lists(ALIKE, max_size=2))
def test_key_depends_on_values_and_types(one: list[Any], two: list[Any]) -> None:
    stored = shelved(Fallback(stale=True))
    named = [dict(zip("ab", values, strict=False)) for values in (one, two)]
    same = quoted(tuple(one)) == quoted(tuple(two))
    assert (stored.key(len, tuple(one), {}) == stored.key(len, tuple(two), {})) is same
    assert (stored.key(len, (), named[0]) == stored.key(len, (), dict(reversed(named[1].items())))) is same


def test_equal_value_of_another_type_is_another_key(face: str) -> None:
    bench, dependency = Bench(Fallback(stale=True), rules=BreakerSettings(failures=100)), Dependency(face)
    dependency(bench.served, (1, 2))
    dependency(bench.served, a=1, b=True)
    dependency.error = Failed("x")
    assert dependency(bench.served, (1, 2)) == [1]
    assert dependency(bench.served, b=True, a=1) == [2]
    with pytest.raises(Failed):
        dependency(bench.served, (True, 2.0))
    with pytest.raises(Failed):
        dependency(bench.served, b=1, a=True)


def test_two_functions_of_one_guard_do_not_mix_up_their_answers() -> None:
    stored = shelved(Fallback(stale=True, key=lambda user: user))
    assert stored.key(len, ("a",), {}) != stored.key(max, ("a",), {})


def test_lookup_during_a_change_misses_and_result_is_stored() -> None:
    """A key whose comparison uses the cache itself."""
    stored = shelved()
    requested: list[object] = []

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            requested.append(stored.has("x"))
            stored.store("y", answered(2))
            return True

    stored.store("x", answered(1))
    stored.store(Key(), answered(3))
    assert stored.get_copy(Key()) == 3
    assert requested
    assert not any(requested)
    assert stored.get_copy("y") == 2


VALUES = st.recursive(
    st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=8
)


@given(st.lists(st.tuples(st.sampled_from("abc"), VALUES, st.booleans()), max_size=20))
def test_each_caller_gets_an_unmodified_copy(
    calls: list[tuple[str, Any, bool]],
) -> None:
    bench, dependency = Bench(Fallback(stale=True), rules=BreakerSettings(failures=1000)), Dependency("sync")
    last: dict[str, Any] = {}
    for key, value, fails in calls:
        dependency.error = Failed("x") if fails else None
        dependency.value = functools.partial(copy.deepcopy, value)
        try:
            answer = dependency(bench.served, key)
        except Failed:
            assert fails
            assert key not in last
            continue
        if not fails:
            last[key] = copy.deepcopy(value)
        assert answer == last[key]
        if isinstance(answer, list):
            answer.append("mine")
    assert UNSET not in last.values()
