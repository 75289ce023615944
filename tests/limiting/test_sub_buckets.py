"""Large limits in 60 sub-buckets against a plain list, at the edges of buckets, and in bounded memory."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.bucket_window import BucketRing, BucketWindow
from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.types import Decision, Reason, UserLimit
from tests.limiting.reference_buckets import ReferenceBuckets
from tests.limiting.windows import limit

BYTES_AT_MOST = 300
LARGEST = 2**24 - 1


limits = st.builds(
    limit,
    st.one_of(st.integers(1, 9), st.sampled_from([255, 1001, 5000, 65_536, LARGEST])),
    st.sampled_from([1, 7, 60, 61, 3600, 366 * 86_400]),
)
STARTS = (0.0, 0.1, 1000.1, 1e6 / 3, 4e7, -3.0)

Move = tuple[int, float, int, float]
"""So many buckets on, then so far into that bucket, an ulp aside; and the share of the limit asked for."""

moves = st.tuples(
    st.one_of(st.integers(0, 3), st.sampled_from([20, 57, 58, 59, 60, 61, 62, 121, 500])),
    st.sampled_from([0.0, 0.0, 0.25, 0.999]),
    st.sampled_from([-1, 0, 0, 1]),
    st.sampled_from([0.0, 0.1, 0.25, 0.34, 0.5, 1.0, 1.01]),
)
traces = st.lists(moves, max_size=15)


def instants(of: UserLimit, start: float, trace: Sequence[Move]) -> list[tuple[float, int]]:
    """Instants on the edges of buckets and near them, in rising order, and the units asked for then."""
    width_us = ReferenceBuckets(of).width_us
    bucket, now, found = math.floor(start * 1e6) // width_us, start, []
    for gap, into, aside, share in trace:
        bucket += gap
        at = (bucket + into) * width_us / 1e6
        now = max(now, math.nextafter(at, math.inf * aside) if aside else at)
        found.append((now, max(1, math.ceil(of.limit * share))))
    return found


def asked(tested: BucketWindow, ring: BucketRing, units: int, now: float) -> Decision:
    return decision_of(tested.test(ring, units, now))


def spend(tested: BucketWindow, ring: BucketRing, units: int, now: float) -> None:
    asked(tested, ring, units, now)
    tested.charge(ring, units, now)


def ask(tested: BucketWindow, ring: BucketRing, units: int, now: float) -> Decision:
    decision = asked(tested, ring, units, now)
    if decision.allowed:
        tested.charge(ring, units, now)
    return decision


def size(ring: BucketRing) -> int:
    return sys.getsizeof(ring) + sys.getsizeof(ring.counts) + sys.getsizeof(ring.last)


@given(of=limits, start=st.sampled_from(STARTS), trace=traces, given_back=st.sets(st.integers(0, 14)))
def test_it_decides_as_the_plain_list_does(
    of: UserLimit, start: float, trace: list[Move], given_back: set[int]
) -> None:
    tested, ring, reference = BucketWindow(of), BucketRing(), ReferenceBuckets(of)
    for number, (now, units) in enumerate(instants(of, start, trace)):
        expected = reference.look("ann", units, now)
        decision = ask(tested, ring, units, now)
        assert decision.allowed is expected.allowed
        assert decision.remaining == expected.remaining[of.name]
        assert decision.retry_after_s == pytest.approx(expected.retry_after_s, abs=1e-6)
        if of.name in expected.reset_s:
            assert decision.reset_after_s == pytest.approx(expected.reset_s[of.name], abs=1e-6)
        elif not decision.allowed:
            assert decision.reset_after_s == 0.0
        assert size(ring) <= BYTES_AT_MOST
        if decision.allowed:
            reference.charge("ann", units, now)
            if number in given_back:
                assert tested.refund(ring, units, now, now)
                reference.give_back("ann", units, now)
        used = reference.used("ann", now)
        assert tested.is_idle(ring, now) is (used == 0)
        assert tested.remaining(ring, now) == 1.0 - used / of.limit


@given(of=limits, start=st.sampled_from(STARTS), trace=traces)
def test_no_window_ever_holds_more_than_the_limit(of: UserLimit, start: float, trace: list[Move]) -> None:
    tested, ring, log = BucketWindow(of), BucketRing(), []
    for now, units in instants(of, start, trace):
        tries = (units, max(1, units // 2), 1)
        log += [(now, each) for each in tries if ask(tested, ring, each, now).allowed]
    for first, _ in log:
        assert sum(units for spent, units in log if first <= spent < first + of.window_s) <= of.limit


@given(
    of=limits,
    start=st.sampled_from(STARTS),
    trace=traces,
    probe=st.floats(0.0, 1.0),
    aside=st.floats(0.0, 1.0),
    share=st.floats(0.0, 0.999),
)
def test_rejected_before_retry_after_and_allowed_at_it(
    of: UserLimit, start: float, trace: list[Move], probe: float, aside: float, share: float
) -> None:
    tested, ring, now = BucketWindow(of), BucketRing(), start
    for now, units in instants(of, start, trace):
        ask(tested, ring, units, now)
    now += aside * of.window_s / 100
    units = max(1, math.ceil(of.limit * probe))
    rejection = asked(tested, ring, units, now)
    if rejection.allowed:
        return
    there = now + rejection.retry_after_s
    # A sum of two floats is rounded, so the instant before is a nanosecond away, not one last place.
    for earlier in (now + rejection.retry_after_s * share, there - 1e-9 * max(1.0, abs(there))):
        assert earlier >= there - 1e-9 or not asked(tested, ring, units, earlier).allowed
    assert asked(tested, ring, units, there).allowed


@given(
    of=limits,
    trace=st.lists(st.tuples(st.floats(-2.0, 2.0), st.sampled_from([0.1, 0.5, 1.0])), max_size=15),
)
def test_a_clock_that_steps_back_frees_nothing(of: UserLimit, trace: list[tuple[float, float]]) -> None:
    """It stands still: what the latest instant refuses is refused, and waits are told from the clock on."""
    tested, ring, latest, now = BucketWindow(of), BucketRing(), 1000.0, 1000.0
    for step, share in trace:
        now += step * of.window_s
        latest = max(latest, now)
        units = max(1, int(of.limit * share))
        by_the_latest = asked(tested, copy.deepcopy(ring), units, latest)
        decision = ask(tested, ring, units, now)
        assert decision.allowed <= by_the_latest.allowed
        if not decision.allowed:
            assert ask(tested, copy.deepcopy(ring), units, now + decision.retry_after_s).allowed


def test_a_clock_that_went_far_back_charges_where_it_stood() -> None:
    tested, ring = BucketWindow(limit(2000, 60)), BucketRing()
    assert ask(tested, ring, 1500, 1000.0).allowed
    rejection = ask(tested, ring, 1000, 100.0)
    assert (rejection.allowed, rejection.remaining, rejection.retry_after_s) == (False, 500, 961.0)
    assert ask(tested, ring, 500, 100.0).allowed
    assert tested.remaining(ring, 100.0) == 0.0
    assert not ask(tested, ring, 1, math.nextafter(1061.0, 0.0)).allowed
    assert ask(tested, ring, 2000, 1061.0).allowed


def test_nothing_that_was_given_back_makes_the_clock_stand() -> None:
    tested, ring = BucketWindow(limit(2000, 60)), BucketRing()
    assert ask(tested, ring, 2000, 1000.0).allowed
    assert tested.refund(ring, 2000, 1000.0, 1000.0)
    assert ask(tested, ring, 2000, 500.0).allowed
    assert ask(tested, ring, 2000, 561.0).allowed


def test_numbers_at_the_edges_of_a_minute() -> None:
    tested, ring = BucketWindow(limit(5000, 60)), BucketRing()
    first = ask(tested, ring, 4000, 10.75)
    assert (first.allowed, first.reason, first.policy, first.limit) == (True, Reason.OK, "user-60s", 5000)
    assert (first.remaining, first.reset_after_s, first.window_s) == (1000, 60.25, 60), "leaves at 71"
    second = ask(tested, ring, 1000, 30.0)
    assert (second.remaining, second.reset_after_s) == (0, 41.0)
    rejection = ask(tested, ring, 4001, 40.5)
    assert (rejection.reason, rejection.detail, rejection.remaining) == (Reason.USER, "user:user-60s", 0)
    assert (rejection.retry_after_s, rejection.reset_after_s) == (50.5, 30.5), "when both have left"
    assert ask(tested, ring, 4000, 40.5).retry_after_s == 30.5
    assert not ask(tested, ring, 1, math.nextafter(71.0, 0.0)).allowed
    assert ask(tested, ring, 4000, 71.0).allowed
    never = ask(tested, ring, 5001, 71.0)
    assert (never.reason, never.detail) == (Reason.TOO_LARGE, "too_large:user-60s")
    assert (never.retry_after_s, never.reset_after_s, never.remaining) == (math.inf, 20.0, 0)
    assert ask(tested, BucketRing(), 5001, 71.0).reset_after_s == 0.0, "nothing is counted"


def test_a_width_is_rounded_up_to_the_microsecond() -> None:
    """A second has no sixtieth in microseconds: 16 667 of them, so 61 widths are more than a second."""
    tested, ring = BucketWindow(limit(2000, 1)), BucketRing()
    assert ask(tested, ring, 2000, 0.0).allowed
    assert ask(tested, ring, 1, 0.5).retry_after_s == pytest.approx(61 * 0.016667 - 0.5)


def test_a_wait_ends_at_the_first_float_that_lies_in_the_bucket() -> None:
    """Seconds made of microseconds are rounded: to less, to the same, or an ulp before them is enough."""
    tested, rounded = BucketWindow(limit(1, 1)), set()
    for leaves_us in range(61 * 16_667, 400 * 16_667, 16_667):
        ring, plain = BucketRing(), leaves_us / 1e6
        spend(tested, ring, 1, plain - 61 * 0.016667 + 1e-4)
        now = plain - 0.5
        there = now + ask(tested, ring, 1, now).retry_after_s
        assert not asked(tested, ring, 1, math.nextafter(there, 0.0)).allowed
        assert asked(tested, ring, 1, there).allowed
        rounded.add((there > plain) - (there < plain))
    assert rounded == {-1, 0, 1}


@pytest.mark.parametrize("units", [1001, 5000, 65_536, LARGEST])
def test_a_ring_is_bounded_whatever_the_limit(units: int) -> None:
    of = limit(units, 1)
    tested, ring = BucketWindow(of), BucketRing()
    year_s = 366 * 86_400
    for number in range(200):
        ask(tested, ring, units // 61, year_s + number / 60)
        assert size(ring) <= BYTES_AT_MOST
    full = BucketRing()
    ask(tested, full, units, 100 * year_s)
    assert size(full) <= 120, "one bucket needs no more than one bucket"


# --- giving back ---


@given(
    spent=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=20),
    victim=st.integers(0, 19),
    later=st.integers(0, 70),
)
def test_only_the_bucket_of_the_charge_gets_its_units(
    spent: list[tuple[int, int]], victim: int, later: int
) -> None:
    """Buckets of a minute are seconds, so the plain list is one of seconds."""
    tested, ring, kept = BucketWindow(limit(2000, 60)), BucketRing(), []
    for at, units in sorted(spent):
        spend(tested, ring, units, at + 0.5)
        kept.append((at, units))
    at, units = kept[victim % len(kept)]
    now = max(each for each, _ in kept) + later
    inside = now - at <= 60
    assert tested.refund(ring, units, at + 0.75, float(now)) is inside
    if inside:
        kept.remove((at, units))
    for moment in range(now, now + 62):
        live = sum(units for at, units in kept if moment - at <= 60)
        assert tested.remaining(ring, float(moment)) == pytest.approx(1.0 - live / 2000)


def test_what_is_not_there_is_not_taken_from_elsewhere() -> None:
    tested, ring = BucketWindow(limit(2000, 60)), BucketRing()
    assert not tested.refund(ring, 1, 10.5, 10.5), "nothing was ever charged"
    for at in (10.5, 11.5):
        spend(tested, ring, 5, at)
    assert not tested.refund(ring, 6, 10.5, 12.0), "five, not six"
    assert not tested.refund(ring, 1, 9.5, 12.0), "an older bucket has none"
    assert not tested.refund(ring, 1, 12.5, 13.0), "nor has a newer one"
    assert not tested.refund(ring, 5, 10.5, 71.0), "they have left"
    assert tested.remaining(ring, 12.0) == 1.0 - 10 / 2000
    assert tested.refund(ring, 5, 10.5, math.nextafter(71.0, 0.0))
    assert tested.refund(ring, 2, 11.5, 12.0)
    assert tested.remaining(ring, 12.0) == 1.0 - 3 / 2000


# --- a fork in the midst ---


class TornRing(BucketRing):
    """Its thread is gone before it has written the counts."""

    __slots__ = ("torn",)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "counts" and getattr(self, "torn", False):
            raise InterruptedError
        super().__setattr__(name, value)


def test_a_charge_broken_off_by_a_fork_frees_nothing() -> None:
    tested, ring = BucketWindow(limit(2000, 60)), TornRing()
    spend(tested, ring, 2000, 10.0)
    ring.torn = True
    with pytest.raises(InterruptedError):
        spend(tested, ring, 1, 40.0)
    ring.torn = False
    assert not asked(tested, ring, 1, 70.5).allowed, "what was spent stays for a window at least"
    assert asked(tested, ring, 2000, 101.0).allowed
