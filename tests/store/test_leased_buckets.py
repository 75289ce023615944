"""One process's share of a fleet's tokens: draws, requests, returns, and how a silent store is found."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.token_bucket import PriorityBuckets
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.store import FleetSettings
from autoglm_throttle.store.fleet import DEADLINE_S, MAX_MEMBERS, TIMER_S, LeasedBuckets
from autoglm_throttle.store.leases import MICRO, PAUSE_S, PREFETCH_BURST, TICK_S
from autoglm_throttle.store.running_time import TICKS
from autoglm_throttle.types import Decision, Demand, Priority, Reason
from tests.store.leased import MID, answer, leases, mid_of, refusal

NONE = [0, 0]


def grant_mid(made: LeasedBuckets, tokens: float, left: float, now: float) -> None:
    assert made.next_request(now, beat=True) is not None
    made.apply_reply(answer((0, 1000), (tokens, left), (0, 100)), now)


def wait(made: LeasedBuckets, since_s: float, until_s: float) -> None:
    """Let one request wait in a loop that is never late."""
    now = since_s
    while now < until_s:
        pause_s = made.add_waiter("me", MID, now)
        now = min(until_s, now + pause_s)
        made.remove_waiter("me", MID, now)


def test_the_rows_are_those_of_buckets() -> None:
    made, _ = leases()
    plain = PriorityBuckets(RateSettings(), 0.0)
    assert [(x.name, x.rate, x.nominal, x.burst) for x in made.all] == [
        (x.name, x.rate, x.nominal, x.burst) for x in plain.all
    ]


def test_nothing_is_spent_before_it_is_leased() -> None:
    made, woken = leases()
    assert not made.is_decidable(MID, 0.0)
    refused = refusal(made.take(MID, 0.0))
    assert (refused.reason, refused.retry_after_s) == (Reason.RATE, PAUSE_S)
    assert made.add_waiter("me", MID, 0.0) == DEADLINE_S / TICKS
    assert woken == [1.0]
    figures = made.next_request(0.0, beat=False)
    assert figures is not None
    assert mid_of(figures) == [500.0, 500.0, 1.0, 1.0, 0.0]
    assert figures[2:5] == figures[12:15] == [0, 0, 0], "nobody wants anything of the other classes"


def test_a_grant_is_spent_without_asking_until_it_is_used_up() -> None:
    made, _ = leases()
    grant_mid(made, 3.0, 0.0, 0.0)
    for left in (2.0, 1.0, 0.0):
        assert made.is_decidable(MID, 0.1)
        assert made.take(MID, 0.1) is made.all[1]
        assert made.all[1].tokens(0.1) == left
    assert not made.is_decidable(MID, 0.1)


def test_an_answer_of_just_after_the_callers_clock_hides_no_tokens() -> None:
    made, _ = leases()
    grant_mid(made, 0.0, 5.0, 0.1)
    assert not made.is_decidable(MID, 0.1 - 1e-6), "the store has five: ask it"


def test_unused_tokens_are_available_to_others() -> None:
    made, _ = leases()
    grant_mid(made, 1.0, 0.0, 0.0)
    paid = made.take(MID, 0.1)
    assert not isinstance(paid, Decision)
    paid.give_back(1.0, 0.1)
    assert made.take(MID, 0.2) is paid


def test_store_remainder_gives_retry_after() -> None:
    made, woken = leases()
    grant_mid(made, 0.0, 0.25, 0.0)
    ready = 0.75 / 500.0
    assert made.is_decidable(MID, ready - 1e-9)
    assert refusal(made.take(MID, 0.0)).retry_after_s == pytest.approx(ready)
    assert not made.is_decidable(MID, ready)
    assert woken == [], "who is known to be refused asks nobody"


def test_rejected_large_cost_blocks_no_small_cost() -> None:
    made, _ = leases()
    large = Demand(Priority.MID, cost=400.0)
    made.add_waiter("large", large, 0.0)
    figures = made.next_request(0.0, beat=False)
    assert figures is not None
    assert mid_of(figures)[2:4] == [400.0, 400.0]
    made.apply_reply(answer(*[(0, 0)] * 1, (0, 50), (0, 0)), 0.0)
    made.remove_waiter("large", large, 0.0)
    assert refusal(made.take(large, 0.02)).retry_after_s == pytest.approx(350 / 500 - 0.02)
    assert not made.is_decidable(MID, PAUSE_S), "there are fifty: let it ask"


def test_after_a_grant_that_fell_short_there_is_a_pause() -> None:
    made, _ = leases()
    made.add_waiter("me", Demand(Priority.MID, cost=9.0), 0.0)
    assert made.next_request(0.0, beat=False) is not None
    made.apply_reply(answer((0, 0), (0, 400), (0, 0)), 0.0)
    assert made.is_decidable(Demand(Priority.MID, cost=9.0), PAUSE_S - 1e-9)
    assert not made.is_decidable(Demand(Priority.MID, cost=9.0), PAUSE_S)


def test_request_sums_needs_and_wants_of_waiters() -> None:
    made, woken = leases()
    for number, cost in enumerate((2.0, 5.0, 1.0)):
        made.add_waiter(number, Demand(Priority.MID, cost=cost), 0.0)
    assert list(made.waiters) == [0, 1, 2]
    assert woken == [1.0], "one alarm for all"
    figures = made.next_request(0.0, beat=False)
    assert figures is not None
    assert mid_of(figures)[2:4] == [8.0, 2.0]
    made.remove_waiter(0, Demand(Priority.MID, cost=2.0), 0.0)
    made.remove_waiter(0, Demand(Priority.MID, cost=2.0), 0.0)
    assert list(made.waiters) == [1, 2]


def test_cold_start_requests_grow_with_arrivals() -> None:
    made, _ = leases()
    grant_mid(made, 20.0, 400.0, 0.0)
    for _ in range(20):
        made.take(MID, 0.01)
    made.add_waiter("me", MID, 0.02)
    figures = made.next_request(0.02, beat=False)
    assert figures is not None
    assert mid_of(figures)[2] == 13.0, "twenty came in this tick, eight may be chance, one waits"


def busy(made: LeasedBuckets, rps: float, until_s: float) -> None:
    """Ask for so much for so long that the mean knows it."""
    steps = int(until_s * rps)
    for number in range(steps):
        now = number / rps
        if not made.is_decidable(MID, now):
            grant_mid(made, 400.0, 100.0, now)
        made.take(MID, now)


def test_tokens_are_drawn_before_the_last_is_spent() -> None:
    made, woken = leases()
    busy(made, 400.0, 3.0)
    spent = Demand(Priority.MID, cost=made.all[1].tokens(3.0) + 1.0)
    made.add_waiter("me", spent, 3.0)  # beyond what lies there: the store is asked for what comes, too
    assert made.next_request(3.0, beat=False) is not None
    made.apply_reply(answer((0, 0), (40.0, 300.0), (0, 0)), 3.0)
    made.remove_waiter("me", spent, 3.0)
    woken.clear()
    now = 3.0 + PAUSE_S
    while made.all[1].tokens(now) > 20.0:
        assert not woken
        made.take(MID, now)
    while not woken:
        assert made.all[1].tokens(now) > 8.0, "at a quarter of what was wanted"
        made.take(MID, now)
    made.take(MID, now)
    assert woken == [1.0], "the alarm rings once"
    pool = made.all[1].tokens(now)
    figures = made.next_request(now, beat=False)
    assert figures is not None
    want, need = mid_of(figures)[2:4]
    assert need == 0.0
    expected = PREFETCH_BURST * 400.0  # this bucket fills in one second
    assert expected * 0.9 <= want + pool <= expected * 1.1


def test_unspent_tokens_are_returned_after_lease_time() -> None:
    made, _ = leases()
    grant_mid(made, 5.0, 0.0, 0.0)
    grant_mid(made, 3.0, 0.0, 0.5)
    for _ in range(2):
        made.take(MID, 0.6)
    assert made.due_s() == 1.0
    assert made.next_request(0.999, beat=False) is None
    figures = made.next_request(1.0, beat=False)
    assert figures is not None
    assert mid_of(figures)[4] == 3.0, "two of the first five were spent; those of the second grant stay"
    assert made.all[1].tokens(1.0) == 3.0
    made.apply_reply(answer(*[(0, 0)] * 3), 1.0)
    assert made.due_s() == 1.5
    made.take(Demand(Priority.MID, cost=3.0), 1.2)
    assert made.due_s() == math.inf


def test_lease_time_is_a_setting() -> None:
    made = LeasedBuckets(RateSettings(), FleetSettings(fleet_lease_s=0.25), 0.0)
    grant_mid(made, 5.0, 0.0, 0.0)
    assert made.due_s() == 0.25


def test_late_refund_is_sent_with_next_call() -> None:
    made, _ = leases()
    grant_mid(made, 1.0, 0.0, 0.0)
    paid = made.take(MID, 0.1)
    assert not isinstance(paid, Decision)
    assert made.next_request(2.0, beat=False) is None
    paid.give_back(1.0, 2.1)
    assert made.due_s() == 1.0
    figures = made.next_request(2.2, beat=True)
    assert figures is not None
    assert mid_of(figures)[4] == 1.0


def test_the_last_call_gives_all_back() -> None:
    made, _ = leases()
    grant_mid(made, 7.5, 0.0, 0.0)
    assert mid_of(made.final_request()) == [500.0, 500.0, 0.0, 0.0, 7.5]
    assert made.all[1].tokens(0.0) == 0.0
    assert mid_of(made.final_request())[4] == 0.0


def test_the_rate_that_is_sent_is_that_of_the_ceiling() -> None:
    made, _ = leases()
    made.rescale((1.0, 0.4, 7.0), 0.0)
    figures = made.next_request(0.0, beat=True)
    assert figures is not None
    assert [figure / MICRO for figure in figures[::5]] == [1000.0, 200.0, 100.0]
    grant = refusal(made.take(MID, 0.0))
    assert (grant.reason, grant.detail) == (Reason.GPU, "gpu:ceiling")
    made.apply_reply(answer((0, 0), (0, 0), (0, 0)), 0.0)
    made.rescale((1.0, 0.0, 1.0), 0.0)
    assert refusal(made.take(MID, 0.0)).retry_after_s == math.inf


def test_cost_above_bucket_size_is_too_large_at_once() -> None:
    made, woken = leases()
    huge = Demand(Priority.LOW, cost=100.5)
    assert made.is_decidable(huge, 0.0)
    assert refusal(made.take(huge, 0.0)).reason is Reason.TOO_LARGE
    assert woken == []


def test_store_silent_for_50_ms_is_unavailable() -> None:
    made, _ = leases(workers=4)
    made.add_waiter("me", MID, 0.0)
    assert made.next_request(0.001, beat=False) is not None
    wait(made, DEADLINE_S / TICKS, DEADLINE_S - 0.01)
    made.add_waiter("me", MID, DEADLINE_S - 0.01)
    assert made.add_waiter("me too", MID, DEADLINE_S - 0.01) == pytest.approx(0.01), "nobody waits 50 ms anew"
    wait(made, DEADLINE_S - 0.0075, DEADLINE_S - TIMER_S - 1e-6)
    assert not made.is_decidable(MID, DEADLINE_S - 1e-6)
    assert made.is_decidable(MID, DEADLINE_S + 1e-6)
    assert made.health.since_s == DEADLINE_S + 1e-6
    assert (made.next_request(1.0, beat=False), made.due_s()) == (None, math.inf)


def test_waiter_timeout_marks_store_unavailable() -> None:
    made, _ = leases()
    made.add_waiter("me", MID, 0.0)
    made.remove_waiter("me", MID, 0.04)
    assert not made.is_decidable(MID, 0.2), "nobody waits, nobody was asked"
    assert made.next_request(0.5, beat=False) is None
    wait(made, 1.0, 1.0 + DEADLINE_S - TIMER_S - 1e-6)
    assert not made.is_decidable(MID, 1.0 + DEADLINE_S / 2), "it waits as long as any other"
    made.remove_waiter("me", MID, 1.0 + DEADLINE_S - TIMER_S + 1e-6)
    assert not made.is_up
    made.remove_waiter("me", MID, 2.0)


def test_stalls_of_the_loop_are_no_silence_of_the_store() -> None:
    made, _ = leases()
    assert made.next_request(0.0, beat=True) is not None
    assert not made.is_decidable(MID, 1.0), "nobody has waited"
    for stalls in range(TICKS - 1):
        made.add_waiter("me", MID, 1.0 + stalls)
        made.add_waiter("me too", MID, 1.0 + stalls)
        assert not made.is_decidable(MID, 2.0 + stalls)
        made.remove_waiter("me too", MID, 2.0 + stalls)
        made.remove_waiter("me", MID, 2.0 + stalls)
        assert not made.is_decidable(MID, 2.0 + stalls)
    made.add_waiter("me", MID, 30.0)
    made.remove_waiter("me", MID, 31.0)
    assert not made.is_up, "in so many turns an answer is read"


def test_answering_store_is_not_lost_by_an_old_request() -> None:
    made, _ = leases()
    made.add_waiter("me", MID, 0.0)
    assert made.next_request(0.0, beat=False) is not None
    made.apply_reply(answer((0, 0), (1, 5), (0, 0)), 0.04)
    made.remove_waiter("me", MID, 0.04)
    made.take(MID, 0.04)
    assert not made.is_decidable(MID, 0.2)
    assert made.is_up


def test_answered_waiter_does_not_mark_store_lost() -> None:
    made, woken = leases()
    made.add_waiter("me", MID, 0.0)
    assert made.next_request(0.0, beat=False) is not None
    made.apply_reply(answer((0, 0), (1, 5), (0, 0)), 0.001)
    assert not made.waiters
    made.remove_waiter("me", MID, 10.0)
    assert made.is_up
    made.take(MID, 10.0)
    made.add_waiter("me", MID, 10.0)
    assert made.add_waiter("me too", MID, 10.0) == pytest.approx(DEADLINE_S), (
        "another question, another deadline"
    )
    assert len(woken) == 2


def test_marking_store_lost_wakes_the_sender() -> None:
    for give_up in (
        LeasedBuckets.is_decidable,
        lambda made, demand, now: made.remove_waiter("me", demand, now),
    ):
        made, woken = leases()
        made.add_waiter("me", MID, 0.0)
        assert made.next_request(0.0, beat=False) is not None
        wait(made, 0.0025, DEADLINE_S - 2 * TIMER_S)
        woken.clear()
        give_up(made, MID, DEADLINE_S + TIMER_S)
        assert made.health.since_s == DEADLINE_S + TIMER_S
        give_up(made, MID, 2.0)
        assert woken == [1.0]


def test_waiter_is_answered_despite_meanwhile_refund() -> None:
    made, _ = leases()
    grant_mid(made, 1.0, 300.0, 0.0)
    paid = made.take(MID, 0.0)
    assert not isinstance(paid, Decision)
    made.add_waiter("me", MID, 0.1)
    paid.give_back(1.0, 0.1)
    figures = made.next_request(0.1, beat=False)
    assert figures is not None
    assert mid_of(figures)[2:] == [0.0, 0.0, 0.0], "nothing is wanted, but somebody waits for the word"


STEPS = st.tuples(st.sampled_from(["wait", "leave", "ask", "answer", "covers"]), st.integers(0, 3))


@given(st.lists(st.tuples(STEPS, st.sampled_from([0.0, 0.001, 0.03, 0.2])), max_size=30))
def test_only_a_question_without_an_answer_is_silence(steps: list[tuple[tuple[str, int], float]]) -> None:
    made, _ = leases()
    now, since_s = 0.0, math.inf
    unanswered: set[int | str] = set()
    for (step, who), later in steps:
        now += later
        if step == "wait":
            made.add_waiter(who, MID, now)
            unanswered.add(who)
        elif step == "leave":
            made.remove_waiter(who, MID, now)
            unanswered.discard(who)
        elif step == "ask" and made.next_request(now, beat=True) is not None:
            unanswered.add("call")
        elif step == "answer" and "call" in unanswered:
            made.apply_reply(answer((0, 0), (0, 400), (0, 0)), now)
            unanswered.clear()
        elif step == "covers":
            made.is_decidable(MID, now)
        if not made.is_up:
            assert now >= since_s + DEADLINE_S - TIMER_S
            return
        since_s = min(since_s, now) if unanswered else math.inf


@pytest.mark.parametrize(("said", "members"), [(0, 1), (7, 7), (10**12, MAX_MEMBERS)])
def test_a_count_of_members_is_held_within_reason(said: int, members: int) -> None:
    made, _ = leases()
    assert made.members == 1
    made.apply_reply(answer(*[(0, 0)] * 3, members=said), 0.0)
    assert made.members == made.processes == members


@pytest.mark.parametrize(
    "reply", [[], [1, 2], [1, 2, 0, 0, 0, 0, 0, -1], [1, 2, 0, 0, 0, 0, 0, b"7"], [1, 2, *NONE * 4]]
)
def test_a_reply_of_another_shape_changes_nothing(reply: list[int]) -> None:
    made, _ = leases()
    with pytest.raises(ValueError, match="script answered"):
        made.apply_reply(reply, 0.0)
    assert (made.members, made.all[1].tokens(0.0)) == (1, 0.0)


def test_arrivals_of_long_ago_are_forgotten() -> None:
    made, woken = leases()
    busy(made, 400.0, 1.0)
    woken.clear()
    for number in range(3):
        made.take(MID, 1000.0 + number * TICK_S)
        assert woken == []


def test_wake_without_a_thread_does_nothing() -> None:
    LeasedBuckets(RateSettings(), FleetSettings(), 0.0).wake()
