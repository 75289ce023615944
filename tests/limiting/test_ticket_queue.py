"""The order of the queue: users in turn, none starved, nothing kept of those who left."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.queue import COUNTERS_MAX, STALE_TURNS_MAX, TicketQueue
from autoglm_throttle.limiting.ticket import Ticket, TicketState
from autoglm_throttle.limiting.work_class import WorkClass
from autoglm_throttle.types import Decision, Demand, Fairness, Priority
from tests.limiting.measured_limiters import fill, limiter

KIND = WorkClass("")

arrivals = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 5), st.sampled_from("aaasr")), max_size=80
)
"""User, cost, and what happens: a ticket arrives, the next one is served, one is removed."""


def ticket(user: str, cost: int = 1, now: float = 0.0) -> Ticket:
    return Ticket(Demand(Priority.MID, user=user, cost=cost), now, 9.0, 2, KIND)


def join(tested: TicketQueue, user: str, cost: int = 1, now: float = 0.0) -> Ticket:
    joined = ticket(user, cost, now)
    tested.append(joined)
    return joined


def serve(tested: TicketQueue) -> Ticket:
    served = tested.next()
    assert served is not None
    tested.serve(served)
    return served


def test_users_are_served_in_turn() -> None:
    tested = TicketQueue(fair=True)
    heavy = [join(tested, "heavy", now=float(number)) for number in range(4)]
    light = join(tested, "light", now=9.0)
    assert [serve(tested) for _ in range(5)] == [heavy[0], light, *heavy[1:]]
    assert tested.next() is None
    assert len(tested.tickets) == 0


def test_without_fairness_the_oldest_comes_first() -> None:
    tested = TicketQueue(fair=False)
    order = [join(tested, user, now=float(number)) for number, user in enumerate("aaab")]
    assert tested.count_before("b") == tested.count_before("new") == 4
    assert [serve(tested) for _ in range(4)] == order
    assert tested.next() is None


def test_a_cost_counts_as_so_many_turns() -> None:
    tested = TicketQueue(fair=True)
    for number in range(3):
        join(tested, "dear", 3, float(number))
    for number in range(6):
        join(tested, "cheap", 1, number + 0.5)
    assert "".join(serve(tested).demand.user[0] for _ in range(8)) == "dcccdccc"


def test_who_was_away_saves_up_no_turns() -> None:
    tested = TicketQueue(fair=True)
    join(tested, "late")
    serve(tested)
    for number in range(20):
        join(tested, "busy", now=float(number))
    for _ in range(10):
        serve(tested)
    for _ in range(5):
        join(tested, "late", now=30.0)
    users = Counter(serve(tested).demand.user for _ in range(6))
    assert users == {"busy": 3, "late": 3}


@given(costs=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=10, max_size=60))
def test_two_backlogged_users_differ_by_at_most_one_cost_each(costs: list[tuple[int, int]]) -> None:
    """The bound of the virtual token counter, while both have tickets."""
    tested = TicketQueue(fair=True)
    for number, (one, other) in enumerate(costs):
        join(tested, "a", one, float(number))
        join(tested, "b", other, float(number))
    served, left = Counter[str](), Counter({"a": len(costs), "b": len(costs)})
    most = {"a": max(one for one, _ in costs), "b": max(other for _, other in costs)}
    while left["a"] and left["b"]:
        demand = serve(tested).demand
        served[demand.user] += int(demand.cost)
        left[demand.user] -= 1
        assert abs(served["a"] - served["b"]) <= max(most.values())


@given(steps=arrivals, fair=st.booleans())
def test_whatever_joins_and_leaves_the_queue_agrees_with_a_plain_model(
    steps: list[tuple[str, int, str]], fair: bool
) -> None:
    tested, model = TicketQueue(fair=fair), OrderedDict[Ticket, None]()
    for number, (user, cost, what) in enumerate(steps):
        if what == "a":
            model[join(tested, user, cost, float(number))] = None
        elif what == "s":
            chosen = tested.next()
            assert (chosen is None) is (not model)
            if chosen is not None:
                first = next(one for one in model if not fair or one.demand.user == chosen.demand.user)
                assert chosen is first, "in order of arrival within a user"
                tested.serve(chosen)
                del model[chosen]
        elif model:
            leaving = list(model)[cost % len(model)]
            tested.remove(leaving)
            del model[leaving]
        assert list(tested.tickets) == list(model)
        queued = Counter(one.demand.user for one in model)
        for asking in "abcde":
            before = sum(min(count, queued[asking] + 1) for count in queued.values())
            assert tested.count_before(asking) == (before if fair else len(model))


def test_so_many_are_served_before_a_newcomer_as_were_counted() -> None:
    """With equal costs, and users who have been served alike."""
    for others in ({"a": 5}, {"a": 5, "b": 2}, {"a": 3, "b": 3, "new": 2}):
        tested = TicketQueue(fair=True)
        for user, number in others.items():
            for index in range(number):
                join(tested, user, now=float(index))
        counted = tested.count_before("new")
        mine, before = join(tested, "new", now=99.0), 0
        while serve(tested) is not mine:
            before += 1
        assert counted - (others.get("new", 0) > 0) * 2 <= before <= counted


def test_users_who_leave_before_their_turn_fill_no_heap() -> None:
    tested = TicketQueue(fair=True)
    stays = join(tested, "stays")
    for number in range(5000):
        tested.remove(join(tested, f"user {number % 7}", now=float(number)))
    assert len(tested._turns) <= 2 * 2 + STALE_TURNS_MAX + 1
    assert serve(tested) is stays


def test_counters_of_users_are_bounded() -> None:
    tested = TicketQueue(fair=True)
    waits = join(tested, "waits", now=-1.0)
    tested.serve(waits)
    join(tested, "waits", now=1e9)
    for number in range(3 * COUNTERS_MAX):
        one = join(tested, f"user {number}", 1 + number % 3, float(number))
        tested.serve(one)
        assert len(tested._served) <= COUNTERS_MAX
    assert serve(tested).demand.user == "waits"


@pytest.mark.parametrize(("fairness", "before"), [(Fairness.USER, 1), (Fairness.FIFO, 6)])
def test_a_heavy_user_leaves_places_to_others(fairness: Fairness, before: int) -> None:
    tested = fill(limiter(inflight_start=1, inflight_floor=1, fairness=fairness))
    for _ in range(6):
        tested.enqueue(Demand(Priority.MID, user="heavy"), tested.work_classes[""], 0.0)
    assert tested.queues.count_ahead(Priority.MID, "light") == before
    assert tested.queues.count_ahead(Priority.MID, "heavy") == 6
    assert tested.queues.count_ahead(Priority.LOW, "light") == 6 + 0
    assert tested.queues.count_ahead(Priority.HIGH, "light") == 0


def test_full_queue_gives_up_the_newest_ticket_of_most() -> None:
    tested = TicketQueue(fair=True)
    (_, second), _ = [join(tested, "a") for _ in range(2)], join(tested, "b")
    assert tested.displaced_by("a") is None
    assert tested.displaced_by("b") is None, "nearly equal users do not replace each other"
    assert tested.displaced_by("c") is second
    assert TicketQueue(fair=True).displaced_by("c") is None


def test_queue_by_arrival_gives_up_no_ticket() -> None:
    tested = TicketQueue(fair=False)
    for _ in range(3):
        join(tested, "a")
    assert tested.displaced_by("b") is None


def test_user_with_fewer_tickets_enters_a_full_queue() -> None:
    tested = limiter(queue_max=3, fairness=Fairness.USER)
    fill(tested, 0.0)
    kind = tested.work_classes[""]
    heavy = [tested.enqueue(Demand(Priority.MID, user="a"), kind, 0.0) for _ in range(4)]
    assert [type(one) for one in heavy] == [Ticket, Ticket, Ticket, Decision]
    light = tested.enqueue(Demand(Priority.MID, user="b"), kind, 0.0)
    assert isinstance(light, Ticket)
    (displaced,) = tested.pop_ready(0.0)
    assert displaced is heavy[2]
    assert displaced.state is TicketState.EXPIRED
    assert tested.rejection(displaced, 0.0).detail == "queue:full"
    assert tested.waiting == 3
    assert isinstance(tested.enqueue(Demand(Priority.MID, user="b"), kind, 0.0), Decision)
