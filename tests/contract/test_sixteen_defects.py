"""Sixteen defects of the usual sliding window: each rule fails on the naive form, and holds for ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import NoScriptError, ResponseError

from tests.contract import naive
from tests.contract.limiters import Limiter, Naive, Ours, Reply
from tests.contract.script_store import SECOND, START, ScriptStore

TEN = [(10, 60)]
Rule = Callable[[Limiter], None]


def allowed(replies: list[Reply]) -> int:
    return sum(reply.allowed for reply in replies)


def units_of_one_instant_all_count(limiter: Limiter) -> None:
    assert allowed([limiter.hit(TEN, START) for _ in range(50)]) == 10


def instants_a_nanosecond_apart_all_count(limiter: Limiter) -> None:
    assert allowed([limiter.hit(TEN, START + nanosecond / 1000) for nanosecond in range(50)]) == 10


def instants_a_microsecond_apart_all_count(limiter: Limiter) -> None:
    assert allowed([limiter.hit(TEN, START + microsecond) for microsecond in range(50)]) == 10


def a_sender_whose_clock_is_ahead_takes_no_more(limiter: Limiter) -> None:
    second = [(10, 1)]
    for _ in range(10):
        limiter.hit(second, START)
    assert allowed([limiter.hit(second, START, ahead_us=2 * SECOND) for _ in range(10)]) == 0


def a_key_lives_as_long_as_its_units_count(limiter: Limiter) -> None:
    limiter.hit([(10, 5)], START)
    (key,) = limiter.standing()
    assert limiter.client.pttl(key) > 4000


def a_user_costs_no_more_than_900_bytes(limiter: Limiter) -> None:
    hundred = [(100, 60)]
    for second in range(100):
        limiter.hit(hundred, START + second * SECOND // 2)
    (key,) = limiter.standing()
    assert limiter.client.memory_usage(key, samples=0) <= 1.1 * 900, "builds differ by their allocators"


def a_request_spends_under_all_its_limits_or_under_none(limiter: Limiter) -> None:
    both = [(10, 60), (1, 3600)]
    assert allowed([limiter.hit(both, START) for _ in range(5)]) == 1
    assert allowed([limiter.hit(both[:1], START) for _ in range(10)]) == 9


def a_refusal_says_when_to_come_back(limiter: Limiter) -> None:
    for second in range(10):
        limiter.hit(TEN, START + second * SECOND)
    assert limiter.hit(TEN, START + 10 * SECOND) == Reply(False, 50 * SECOND)


def refused_requests_spend_nothing(limiter: Limiter) -> None:
    for second in range(60):
        limiter.hit(TEN, START + second * SECOND)
    assert limiter.hit(TEN, START + 61 * SECOND).allowed


def a_cost_above_what_is_left_is_refused(limiter: Limiter) -> None:
    assert limiter.hit(TEN, START, cost=6).allowed
    assert not limiter.hit(TEN, START + 1, cost=6).allowed


def a_cost_above_the_limit_never_fits(limiter: Limiter) -> None:
    assert limiter.hit(TEN, START, cost=11) == Reply(False, -1)


def a_limit_that_was_lowered_for_a_while_forgets_nothing(limiter: Limiter) -> None:
    for second in range(10):
        limiter.hit(TEN, START + second * SECOND)
    assert not limiter.hit([(2, 60)], START + 11 * SECOND).allowed
    assert not limiter.hit(TEN, START + 12 * SECOND).allowed
    assert limiter.hit([(11, 60)], START + 13 * SECOND).allowed


def something_else_under_a_key_is_one_callers_trouble(limiter: Limiter) -> None:
    limiter.client.hset(limiter.key("b", TEN[0]), "field", "value")
    assert [reply.allowed for reply in limiter.hit_many("abc", TEN[0], START)] == [True, False, True]


def a_clock_that_goes_back_an_hour_locks_nobody_out(limiter: Limiter) -> None:
    for _ in range(10):
        limiter.hit(TEN, START)
    assert limiter.hit(TEN, START - 3600 * SECOND).allowed


def no_key_stays_for_ever(limiter: Limiter) -> None:
    limiter.begin(TEN, START)
    assert [limiter.client.pttl(key) > 0 for key in limiter.standing()] == [True]


def a_server_that_forgot_the_script_is_no_trouble(limiter: Limiter) -> None:
    limiter.client.script_flush()
    assert limiter.hit(TEN, START).allowed


DEFECTS: list[tuple[Rule, str, int]] = [
    (units_of_one_instant_all_count, naive.LIVES, 1),
    (instants_a_nanosecond_apart_all_count, naive.LIVES, 1000),
    (instants_a_microsecond_apart_all_count, naive.AS_TEXT, 1),
    (a_sender_whose_clock_is_ahead_takes_no_more, naive.TOLD_APART, 1),
    (a_key_lives_as_long_as_its_units_count, naive.SCRIPT, 1),
    (a_user_costs_no_more_than_900_bytes, naive.LIVES, 1),
    (a_request_spends_under_all_its_limits_or_under_none, naive.TOLD_APART, 1),
    (a_refusal_says_when_to_come_back, naive.LIVES, 1),
    (refused_requests_spend_nothing, naive.ADDS_FIRST, 1),
    (a_cost_above_what_is_left_is_refused, naive.TESTS_BEFORE_COST, 1),
    (a_cost_above_the_limit_never_fits, naive.TESTS_BEFORE_COST, 1),
    (a_limit_that_was_lowered_for_a_while_forgets_nothing, naive.TRIMS, 1),
    (something_else_under_a_key_is_one_callers_trouble, naive.BATCH, 1),
    (a_clock_that_goes_back_an_hour_locks_nobody_out, naive.TOLD_APART, 1),
    (no_key_stays_for_ever, naive.WITHOUT_EXPIRE, 1),
    (a_server_that_forgot_the_script_is_no_trouble, naive.LIVES, 1),
]


HOW: dict[Rule, type[Exception]] = {
    something_else_under_a_key_is_one_callers_trouble: ResponseError,
    a_server_that_forgot_the_script_is_no_trouble: NoScriptError,
}
"""The naive form breaks these with an error, the others with a wrong answer."""


@pytest.mark.parametrize(("rule", "script", "per_us"), DEFECTS, ids=[rule.__name__ for rule, _, _ in DEFECTS])
def test_naive_form_breaks_each_promise(store: ScriptStore, rule: Rule, script: str, per_us: int) -> None:
    with pytest.raises(HOW.get(rule, AssertionError)):
        rule(Naive(store, script, per_us))
    rule(Ours(store))


def test_there_are_sixteen() -> None:
    assert len({rule for rule, _, _ in DEFECTS}) == 16
