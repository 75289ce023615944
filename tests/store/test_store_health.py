"""Health of a store: calls suspended and resumed."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autoglm_throttle.events import LOG_INTERVAL_S
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.fallback import ReducedLimit, fair_share
from autoglm_throttle.store.health import (
    JITTER,
    PROBE_LOST_S,
    HealthState,
    OutageLog,
    StoreHealth,
)
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.types import UserLimit

UP, DOWN, PROBING = HealthState
FINAL = {StoreErrorKind.UNREACHABLE, StoreErrorKind.FORBIDDEN, StoreErrorKind.LOOP}
OURS = {StoreErrorKind.QUEUE_FULL, StoreErrorKind.FOREIGN}
PASSING = set(StoreErrorKind) - FINAL - OURS
FAILURES, PROBE_S = StoreSettings().redis_failures, StoreSettings().redis_probe_s
LONGEST_S = PROBE_S * (1.0 + JITTER)

troubles = st.sampled_from(StoreErrorKind)
reports = st.none() | troubles


def changed(outage: StoreHealth) -> tuple[StoreErrorKind | None, float, float]:
    """The cause, the time of the change and the seconds that the state before lasted."""
    return outage.cause, outage.since_s, outage.lasted_s


def no_jitter() -> float:
    return 1.0


def lost(now: float = 10.0, trouble: StoreErrorKind = StoreErrorKind.UNREACHABLE) -> StoreHealth:
    outage = StoreHealth(FAILURES, (PROBE_S,), jitter=no_jitter)
    assert outage.record_result(trouble, now) is not None
    return outage


class AsInTheTable(RuleBasedStateMachine):
    """The table once more, event by event, beside the machine that is tested."""

    @initialize(failures=st.integers(1, 4), factor=st.floats(0.8, 1.2))
    def start(self, failures: int, factor: float) -> None:
        self.now = 100.0
        self.failures, self.interval_s = failures, 2.0 * factor
        self.outage = StoreHealth(failures, (2.0,), lambda: factor, self.now)
        self.state, self.in_a_row, self.since_s, self.why = UP, 0, self.now, None
        self.begun_s = self.asked_s = self.now
        self.suspected = False

    why: StoreErrorKind | None

    @rule(step_s=st.floats(0.0, 1.0) | st.sampled_from([0.0, 1.6, 2.0, 2.4, PROBE_LOST_S, 100.0]))
    def time_passes(self, step_s: float) -> None:
        self.now += step_s

    @rule(trouble=reports)
    def a_call_ends(self, trouble: StoreErrorKind | None) -> None:
        change = self.outage.record_result(trouble, self.now)
        if self.state is not UP or trouble in OURS:
            assert change is None
            return
        self.why = trouble
        self.in_a_row = 0 if trouble is None else self.in_a_row + 1
        if trouble in FINAL or self.in_a_row == self.failures:
            assert (change, *changed(self.outage)) == (DOWN, trouble, self.now, self.now - self.since_s)
            self.state, self.since_s, self.begun_s = DOWN, self.now, self.now
        else:
            assert change is None

    @rule()
    def somebody_asks_for_a_probe(self) -> None:
        if self.state is PROBING and self.now >= self.asked_s + PROBE_LOST_S:
            self.state, self.begun_s = DOWN, self.asked_s + PROBE_LOST_S
        expected = self.state is DOWN and self.now >= self.begun_s + self.interval_s
        assert self.outage.try_begin_probe(self.now) is expected
        if expected:
            self.state, self.asked_s = PROBING, self.now

    @rule()
    def somebody_else_finds_it_silent(self) -> None:
        assert self.outage.report_failure(self.now) is (self.state is UP)
        if self.state is UP:
            self.state, self.why, self.suspected = PROBING, StoreErrorKind.TIMEOUT, True
            self.asked_s, self.begun_s = self.now, self.now - self.interval_s

    @precondition(lambda self: self.state is PROBING)
    @rule(trouble=reports)
    def the_probe_ends(self, trouble: StoreErrorKind | None) -> None:
        change = self.outage.record_probe(trouble, self.now)
        suspected, self.suspected = self.suspected, False
        if suspected and trouble is not None:
            assert (change, *changed(self.outage)) == (DOWN, trouble, self.now, self.now - self.since_s)
            self.state, self.since_s, self.begun_s, self.why = DOWN, self.now, self.now, trouble
        elif suspected:
            assert change is None
            self.state, self.in_a_row, self.why = UP, 0, None
        elif trouble is None:
            assert (change, *changed(self.outage)) == (UP, None, self.now, self.now - self.since_s)
            self.state, self.since_s, self.in_a_row, self.why = UP, self.now, 0, None
        else:
            assert change is None
            self.state, self.begun_s, self.why = DOWN, self.now, trouble

    @precondition(lambda self: self.state is not PROBING)
    @rule(trouble=reports)
    def a_probe_ends_that_was_given_up(self, trouble: StoreErrorKind | None) -> None:
        assert self.outage.record_probe(trouble, self.now) is None

    @rule()
    def the_process_forks(self) -> None:
        self.outage.reset(self.now)
        self.suspected = False
        self.state, self.in_a_row, self.since_s, self.why = UP, 0, self.now, None

    @invariant()
    def they_agree(self) -> None:
        if hasattr(self, "state"):
            shown = (self.outage.state, self.outage.since_s, self.outage.cause)
            assert shown == (self.state, self.since_s, self.why)
            if self.state is UP:
                assert self.outage.next_probe_s == math.inf
            else:
                assert self.outage.next_probe_s == pytest.approx(self.begun_s + self.interval_s)


TestAsInTheTable = AsInTheTable.TestCase


@pytest.mark.parametrize("trouble", sorted(PASSING))
def test_transient_error_counts_at_the_third_time(trouble: StoreErrorKind) -> None:
    outage = StoreHealth(FAILURES, (PROBE_S,))
    assert [outage.record_result(trouble, float(n)) for n in range(FAILURES - 1)] == [None] * 2
    assert (outage.record_result(trouble, 2.0), *changed(outage)) == (DOWN, trouble, 2.0, 2.0)


@pytest.mark.parametrize("trouble", sorted(FINAL))
def test_permanent_error_counts_at_once(trouble: StoreErrorKind) -> None:
    outage = StoreHealth(FAILURES, (PROBE_S,))
    assert (outage.record_result(trouble, 5.0), *changed(outage)) == (DOWN, trouble, 5.0, 5.0)
    assert outage.try_begin_probe(5.0 + LONGEST_S)  # and is probed like any other


@pytest.mark.parametrize("trouble", sorted(OURS))
def test_neutral_result_does_not_count(trouble: StoreErrorKind) -> None:
    outage = StoreHealth(2, (PROBE_S,))
    outage.record_result(StoreErrorKind.TIMEOUT, 1.0)
    assert [outage.record_result(trouble, 1.0) for _ in range(9)] == [None] * 9
    assert outage.record_result(StoreErrorKind.TIMEOUT, 1.0) is not None  # nor does it end the row


def test_an_answer_ends_the_row() -> None:
    outage = StoreHealth(FAILURES, (PROBE_S,))
    for n in range(20):
        assert outage.record_result(None if n % 3 == 2 else StoreErrorKind.TIMEOUT, float(n)) is None
    assert outage.state is UP


def test_a_probe_is_asked_for_once() -> None:
    outage = lost(now=10.0)
    assert [outage.try_begin_probe(10.0), outage.try_begin_probe(10.999), outage.try_begin_probe(11.0)] == [
        False,
        False,
        True,
    ]
    assert [outage.try_begin_probe(11.0), outage.try_begin_probe(13.9)] == [False, False]


def test_a_probe_that_never_returns_is_replaced() -> None:
    outage = lost(now=10.0)
    assert outage.try_begin_probe(11.0)
    lost_at = 11.0 + PROBE_LOST_S
    assert not outage.try_begin_probe(lost_at)  # it has failed just now: an interval follows
    assert outage.state is DOWN
    assert outage.try_begin_probe(lost_at + PROBE_S)
    assert outage.record_probe(None, lost_at + PROBE_S) is not None


def test_a_suspicion_that_an_answer_disproves_is_no_outage() -> None:
    outage = StoreHealth(FAILURES, (PROBE_S,), now=3.0)
    assert outage.report_failure(10.0)
    assert (outage.state, outage.cause, outage.try_begin_probe(10.0)) == (
        PROBING,
        StoreErrorKind.TIMEOUT,
        False,
    )
    assert outage.record_result(None, 10.01) is None, "of an earlier call"
    assert outage.record_probe(None, 10.02) is None
    assert (outage.state, outage.cause, outage.since_s) == (UP, None, 3.0)


def test_suspicion_confirmed_by_probe_starts_outage() -> None:
    outage = StoreHealth(FAILURES, (PROBE_S,), jitter=no_jitter, now=3.0)
    assert outage.report_failure(10.0)
    assert not outage.report_failure(10.01), "one probe is enough"
    busy = StoreErrorKind.BUSY
    assert (outage.record_probe(busy, 10.5), *changed(outage)) == (DOWN, busy, 10.5, 7.5)
    assert not outage.report_failure(10.6)
    assert outage.try_begin_probe(11.5)
    assert (outage.record_probe(None, 11.75), *changed(outage)) == (UP, None, 11.75, 1.25)


def test_lost_probe_of_suspicion_is_repeated() -> None:
    outage = StoreHealth(FAILURES, (PROBE_S,), jitter=no_jitter)
    assert outage.report_failure(10.0)
    assert outage.try_begin_probe(10.0 + PROBE_LOST_S + PROBE_S)
    assert outage.record_probe(StoreErrorKind.LOST, 14.5) is DOWN


def test_lost_probe_after_long_idle_is_replaced_at_once() -> None:
    outage = lost(now=10.0)
    assert outage.try_begin_probe(11.0)
    assert outage.try_begin_probe(1000.0)


def test_outage_lasts_from_loss_to_successful_probe() -> None:
    outage = lost(now=10.0, trouble=StoreErrorKind.FORBIDDEN)
    for at in (11.0, 12.5):
        assert outage.try_begin_probe(at)
        assert outage.record_probe(StoreErrorKind.BUSY, at) is None
    assert outage.try_begin_probe(14.0)
    assert (outage.record_probe(None, 14.25), *changed(outage)) == (UP, None, 14.25, 4.25)
    assert (outage.cause, outage.since_s) == (None, 14.25)


def test_the_row_begins_anew_after_an_outage() -> None:
    outage = lost(now=10.0)
    outage.try_begin_probe(11.0)
    outage.record_probe(None, 11.0)
    assert [outage.record_result(StoreErrorKind.LOST, 11.0) for _ in range(FAILURES - 1)] == [None] * 2


@given(events=st.lists(st.tuples(st.floats(0.0, 2.0), reports, reports), max_size=40))
def test_wherever_it_stands_it_is_back_soon_after_the_store_is(
    events: list[tuple[float, StoreErrorKind | None, StoreErrorKind | None]],
) -> None:
    outage, now = StoreHealth(FAILURES, (PROBE_S,)), 0.0
    for step_s, called, probed in events:
        now += step_s
        outage.record_result(called, now)
        if outage.try_begin_probe(now) and probed is not StoreErrorKind.LOOP:  # else the probe never returns
            outage.record_probe(probed, now)
    well_since = now
    while outage.state is not UP:
        now += 0.01
        if outage.try_begin_probe(now):
            outage.record_probe(None, now)
    assert now - well_since <= PROBE_LOST_S + LONGEST_S + 0.02


@given(trouble=troubles, polls=st.lists(st.floats(0.001, 0.5), min_size=20, max_size=60))
def test_the_interval_does_not_grow_and_never_shrinks(trouble: StoreErrorKind, polls: list[float]) -> None:
    outage, now, probes = lost(now=0.0), 0.0, [0.0]
    for step_s in polls:
        now += step_s
        if outage.try_begin_probe(now):
            probes.append(now)
            outage.record_probe(trouble, now)
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert all(PROBE_S - 1e-9 <= gap <= PROBE_S + 0.5 for gap in gaps)


def test_pauses_are_taken_in_order_and_the_last_repeated() -> None:
    outage = StoreHealth(1, (1.5, 5.0), jitter=no_jitter)
    outage.record_call(StoreErrorKind.LOST, 0.0)
    pauses = [outage.next_probe_s]
    for _ in range(3):
        now = outage.next_probe_s
        assert outage.try_begin_probe(now)
        assert outage.record_call(StoreErrorKind.LOST, now) is None
        pauses.append(outage.next_probe_s - now)
    assert pauses == [1.5, 5.0, 5.0, 5.0]
    assert outage.try_begin_probe(99.0)
    assert outage.record_call(None, 99.0) is not None
    outage.record_call(StoreErrorKind.LOST, 100.0)
    assert outage.next_probe_s == 101.5


def test_processes_do_not_all_probe_in_one_instant() -> None:
    instants = set()
    for _ in range(200):
        outage = StoreHealth(FAILURES, (PROBE_S,))
        outage.record_result(StoreErrorKind.UNREACHABLE, 0.0)
        instants.add(outage.next_probe_s)
    assert PROBE_S - 0.2 <= min(instants) < PROBE_S - 0.1
    assert PROBE_S + 0.1 < max(instants) <= PROBE_S + 0.2


@given(units=st.integers(1, 16_777_215), processes=st.integers(1, 10_000))
def test_shares_are_fair(units: int, processes: int) -> None:
    (share,) = fair_share((UserLimit("user-60s", units, 60),), processes)
    assert share.limit >= 1
    assert units <= share.limit * processes < units + processes
    assert (share.name, share.window_s) == ("user-60s", 60)


def test_one_process_takes_the_limits_as_they_are() -> None:
    limits = (UserLimit("user-60s", 100, 60),)
    assert fair_share(limits, 1) is limits
    assert fair_share(limits, 0) is limits


def test_the_form_of_a_share_is_that_of_the_whole() -> None:
    exact, compact = fair_share((UserLimit("user-1s", 1000, 1), UserLimit("user-60s", 1001, 60)), 4)
    assert (exact.limit, exact.exact) == (250, True)
    assert (compact.limit, compact.exact) == (251, False)
    assert ReducedLimit("a", 1, 60, 2) == ReducedLimit("a", 1, 60, 2)


def test_loss_and_recovery_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog("the store")
    log.record_recovery(0.0)
    for now in (1.0, 2.0):
        log.record_loss(0.5, now, "effect (cause\nand more)")
    known_since = [log.since_s]
    for now in (3.0, 4.0):
        log.record_recovery(now, ": 2 members")
        known_since.append(log.since_s)
    assert known_since == [0.5, None, None]
    assert caplog.messages == [
        "the store is unavailable: effect (cause and more)",
        "the store is available again after 2.5 s: 2 members",
    ]


def test_lines_come_in_pairs_at_most_once_in_the_interval(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog("the store")
    for begin_s in (0.0, 1.0, LOG_INTERVAL_S - 0.1, LOG_INTERVAL_S):
        log.record_loss(begin_s, begin_s, f"at {begin_s:g}")
        log.record_recovery(begin_s + 0.05)
    assert [line.split(": ")[-1] for line in caplog.messages[::2]] == ["at 0", f"at {LOG_INTERVAL_S:g}"]
    assert len(caplog.messages) == 4
