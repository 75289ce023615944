"""Local user limits during an outage: by the last known remaining units, and by share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.store.protocol import StoreErrorKind, WindowEntry
from autoglm_throttle.types import Decision, Demand, UserLimit
from tests.limiting.windows import SlidingWindow
from tests.store.scripted_store import denied, granted
from tests.store.shared_user_limits import ALICE, BOB, MINUTE, Question, Shared, answer_of


def test_user_starts_outage_with_share_of_remaining() -> None:
    shared = Shared(MINUTE, processes=2)
    shared.hit(ALICE, 0.0, granted(4))
    shared.lose(1.0)
    assert [shared.known(ALICE, 1.0).allowed for _ in range(3)] == [True, True, False]
    assert [shared.known(BOB, 1.0).allowed for _ in range(6)] == [True] * 5 + [False]


def test_rejected_user_starts_outage_with_nothing() -> None:
    shared = Shared(MINUTE)
    shared.hit(ALICE, 0.0, denied(30_000_000))
    shared.lose(2.0)
    assert not shared.known(ALICE, 2.0).allowed


def test_an_address_begins_an_outage_with_its_share_as_well() -> None:
    shared = Shared(MINUTE)
    shared.hit(Demand(user="u", address="v"), 0.0, [*granted(9), *granted(1)])
    shared.lose(1.0)
    assert shared.known(Demand(user="w", address="v"), 1.0).allowed
    assert shared.known(Demand(user="x", address="v"), 1.0).policy == "address-60s"


def test_a_change_of_the_number_of_processes_changes_the_share() -> None:
    shared = Shared(MINUTE)
    shared.lose(0.0)
    assert shared.known(ALICE, 0.0).limit == 10
    shared.processes = 5
    assert shared.known(ALICE, 0.1).limit == 2
    assert shared.windows.view().processes == 5


def test_local_spending_survives_change_of_process_count() -> None:
    shared = Shared(MINUTE, processes=2)
    shared.lose(0.0)
    assert [shared.known(ALICE, 0.0).allowed for _ in range(6)] == [True] * 5 + [False]
    shared.processes = 5
    assert not shared.known(ALICE, 0.1).allowed
    assert [shared.known(BOB, 0.1).allowed for _ in range(3)] == [True] * 2 + [False]
    shared.processes = 1
    assert [shared.known(ALICE, 0.2).allowed for _ in range(6)] == [True] * 5 + [False]
    assert shared.known(BOB, 0.2).remaining == 7


def test_local_spending_reduces_a_changed_share() -> None:
    shared = Shared(MINUTE, processes=2)
    shared.hit(ALICE, 0.0, granted(8))
    shared.lose(0.0)
    assert [shared.known(ALICE, 0.0).remaining for _ in range(3)] == [3, 2, 1]
    shared.processes = 1
    assert shared.known(ALICE, 0.1).remaining == 4
    shared.processes = 4
    assert shared.known(ALICE, 0.2).remaining == 0


def test_a_late_reply_gives_its_user_no_second_limit() -> None:
    """The account that it opened here goes by what the store has counted since."""
    shared = Shared(UserLimit("user-60s", 100, 60))
    shared.hit(ALICE, 0.0, granted(99))
    assert shared.hit(ALICE, 1.0, StoreErrorKind.TIMEOUT).allowed
    shared.hit(ALICE, 2.0, granted(5))
    shared.lose(10.0)
    assert sum(shared.known(ALICE, 10.0).allowed for _ in range(200)) == 4


def test_nor_does_one_of_the_window_before() -> None:
    """Units that the store had counted before it leave its window, and others are spent: both are known."""
    shared = Shared(UserLimit("user-60s", 100, 60))
    shared.hit(ALICE, 0.0, granted(50))
    assert shared.hit(ALICE, 1.0, StoreErrorKind.TIMEOUT).allowed
    shared.hit(ALICE, 60.5, granted(50))
    shared.lose(60.7)
    assert sum(shared.known(ALICE, at).allowed for at in (60.7, 61.0, 90.0) for _ in range(200)) == 50


def test_address_uses_later_counts_of_the_store() -> None:
    shared, demand = Shared(MINUTE), Demand(user="u", address="v")
    assert shared.hit(demand, 0.0, StoreErrorKind.TIMEOUT).allowed
    shared.hit(demand, 1.0, [*granted(8), *granted(3)])
    shared.lose(2.0)
    strangers = [shared.known(Demand(user=f"w{n}", address="v"), 2.0) for n in range(3)]
    assert [decision.allowed for decision in strangers] == [True, True, False]
    assert strangers[-1].policy == "address-60s"


Happening = Literal["asked", "late", "lost", "back"]
happenings = st.lists(
    st.tuples(
        st.integers(0, 24),
        st.sampled_from(["asked", "asked", "asked", "late", "lost", "back"]),
        st.integers(1, 4),
    ),
    min_size=20,
    max_size=60,
)
"""Eighths of a second on, what happens, and how many units are asked for."""

SIZES = [
    ((UserLimit("user-4s", 9, 4),), 1),
    ((UserLimit("user-2s", 5, 2), UserLimit("user-10s", 9, 10)), 1),
    ((UserLimit("user-4s", 1800, 4), UserLimit("user-10s", 3000, 10)), 400),
]
"""Limits, and by how much what is asked for is to be multiplied."""


def inside(spent: Sequence[tuple[float, int, bool]], window_s: int, now: float) -> int:
    return sum(units for at, units, _ in spent if now - window_s < at <= now)


@given(sizes=st.sampled_from(SIZES), trace=happenings)
def test_local_admissions_never_exceed_limit(
    sizes: tuple[tuple[UserLimit, ...], int], trace: Sequence[tuple[int, Happening, int]]
) -> None:
    """Local spending is never reported to the store, so its decisions come on top."""
    limits, scale = sizes
    shared, store = Shared(*limits), SlidingWindow(limits, 10)
    now, spent = 1000.0, list[tuple[float, int, bool]]()
    for ticks, what, units in trace:
        now += ticks / 8
        if what == "lost":
            shared.end_call(StoreErrorKind.UNREACHABLE, now)
        elif what == "back" and shared.windows.store_health.try_begin_probe(now):
            shared.end_probe(None, now)
        demand = Demand(user=ALICE.user, cost=units * scale)
        found = shared.windows.hit(demand, now)
        here = isinstance(found, Decision) or what == "late"
        if isinstance(found, WindowEntry):
            answer = StoreErrorKind.TIMEOUT if here else answer_of(store.hit("a", units * scale, now), limits)
            found = Question(shared.windows, demand, found, now).resolve(answer, now)
        assert isinstance(found, Decision)
        if not found.allowed:
            continue
        spent.append((now, units * scale, here))
        for limit in limits:
            unknown = 0 if here else inside([each for each in spent if each[2]], limit.window_s, now)
            assert inside(spent, limit.window_s, now) <= limit.limit + unknown


@given(
    processes=st.integers(1, 4),
    before=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.booleans()), min_size=10, max_size=50),
    after=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=20, max_size=60),
)
def test_user_known_to_all_processes_gets_little_over_limit(
    processes: int, before: Sequence[tuple[int, int, bool]], after: Sequence[tuple[int, int]]
) -> None:
    """At most one late reply in each process, one more notification, then the store is unavailable."""
    whole = UserLimit("user-8s", 20, 8)
    all_of_them = [Shared(whole, processes=processes) for _ in range(processes)]
    store, now, spent, late = SlidingWindow((whole,), 10), 1000.0, list[float](), set[int]()

    def charged(number: int, *, in_time: bool = True) -> None:
        windows = all_of_them[number].windows
        found = windows.hit(ALICE, now)
        if isinstance(found, WindowEntry):
            answer = answer_of(store.hit("a", 1, now), (whole,)) if in_time else StoreErrorKind.TIMEOUT
            found = Question(windows, ALICE, found, now).resolve(answer, now)
        assert isinstance(found, Decision)
        if found.allowed:
            spent.append(now)

    for ticks, who, is_late in before:
        now, number = now + ticks / 8, who % processes
        charged(number, in_time=number in late or not is_late)
        late |= {number} if is_late else set()
    now += 1.0
    for number in range(processes):
        charged(number)
        all_of_them[number].lose(now)
    lost_s = now
    for ticks, who in after:
        now += ticks / 8
        charged(who % processes)
        if now < lost_s + whole.window_s:
            assert sum(now - whole.window_s < at for at in spent) <= whole.limit + processes
