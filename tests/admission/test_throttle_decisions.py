"""Order, refunds and permits of the throttle, in one thread and in many."""

import asyncio
import contextlib
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle import (
    Decision,
    Demand,
    Outcome,
    Priority,
    Reason,
    Rejected,
    Rejection,
    Settings,
    Snapshot,
    Throttle,
)
from autoglm_throttle.limiting.token_bucket import TokenBucket
from autoglm_throttle.limiting.user_limits import UserLimits
from autoglm_throttle.testing import throttle_for_tests
from tests.admission.demands import admitted, decided, overheated, permit_of, run_threads
from tests.admission.limited_throttle import active, outcomes


class TestOrder:
    """The cheapest rejection comes first, and a rejected request is not charged."""

    def test_factor_0_rejects_before_rate_and_user(self) -> None:
        throttle = overheated(throttle_for_tests(rate_low_rps="1/s", user_limit="1/minute"), 96.0)
        assert decided(throttle, Priority.LOW, "u", cost=50.0).detail == "gpu:overload"

    def test_the_rate_answers_before_the_user(self) -> None:
        throttle = throttle_for_tests(rate_low_rps="1/s", user_limit="1/minute")
        assert decided(throttle, Priority.LOW, "u").allowed
        assert decided(throttle, Priority.LOW, "u").detail == "rate:low"
        throttle.clock.advance(1.0)
        assert decided(throttle, Priority.LOW, "u").detail == "user:user-60s"

    def test_user_rejection_refunds_the_token(self) -> None:
        throttle = throttle_for_tests(user_limit="1/minute")
        assert decided(throttle, user="u").allowed
        before = throttle.snapshot().tokens
        for cost in (1.0, 2.0, 300.0):
            assert not decided(throttle, user="u", cost=cost).allowed
        assert throttle.snapshot().tokens == before

    def test_a_borrowed_token_goes_back_to_its_lender(self) -> None:
        throttle = throttle_for_tests(borrow="any", rate_high_rps="1/s", user_limit="1/minute")
        assert decided(throttle, Priority.HIGH, "a").allowed
        assert decided(throttle, Priority.HIGH, "b").allowed
        before = throttle.snapshot().tokens
        assert before == {Priority.HIGH: 0.0, Priority.MID: 500.0, Priority.LOW: 99.0}
        assert not decided(throttle, Priority.HIGH, "b").allowed
        assert throttle.snapshot().tokens == before

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(Priority),
                st.sampled_from("ab"),
                st.sampled_from([0.5, 1.0, 2.5, 100.0]),
                st.floats(0.0, 20.0),
            ),
            max_size=40,
        )
    )
    def test_rejected_requests_change_nothing_for_the_others(
        self, demands: list[tuple[Priority, str, float, float]]
    ) -> None:
        """A second throttle with only the admitted requests ends in the same state."""
        limits: dict[str, Any] = {
            "user_limit": "6/minute;3/second",
            "rate_low_rps": "2/s",
            "rate_mid_rps": "3/s",
        }
        first, other = throttle_for_tests(**limits), throttle_for_tests(**limits)
        for priority, user, cost, after_s in demands:
            for throttle in (first, other):
                throttle.clock.advance(after_s)
            answer = decided(first, priority, user, cost)
            if answer.allowed:
                assert decided(other, priority, user, cost) == answer
        assert first.snapshot().tokens == pytest.approx(other.snapshot().tokens)
        for user in "ab":
            assert decided(first, Priority.HIGH, user) == decided(other, Priority.HIGH, user)

    @pytest.mark.parametrize(
        "settings", [{"user_limit": "3/minute"}, {"rate_mid_rps": "0.05/s"}, {"tiers": "1:0"}]
    )
    def test_rejected_before_retry_after_and_admitted_at_it(self, settings: dict[str, Any]) -> None:
        throttle = overheated(throttle_for_tests(**settings), 50.0)
        while (rejection := decided(throttle, user="u")).allowed:
            throttle.clock.advance(0.7)
        wait = rejection.retry_after_s
        assert 0.0 < wait < math.inf
        ready = throttle.clock() + wait
        throttle.gpu.utilization_pct = 0.0
        throttle.clock.advance(math.nextafter(ready, 0.0) - throttle.clock())
        assert not decided(throttle, user="u").allowed
        throttle.clock.advance(ready - throttle.clock())
        if rejection.reason is Reason.GPU:
            Throttle.tick(throttle)  # the sample that the wait named
        assert decided(throttle, user="u").allowed


class TestPermit:
    """Each permit is settled exactly once, with any result of the block."""

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (None, Outcome.SUCCESS),
            (ValueError("broken"), Outcome.FAILURE),
            (asyncio.CancelledError(), Outcome.NEUTRAL),
            (KeyboardInterrupt(), Outcome.NEUTRAL),
            (Rejected(Decision(False, Reason.RATE, "rate:mid", "rate-mid")), Outcome.NEUTRAL),
        ],
    )
    def test_block_settles_by_its_exception(self, error: BaseException | None, outcome: Outcome) -> None:
        throttle = throttle_for_tests()
        permit = permit_of(throttle)
        with contextlib.nullcontext() if error is None else pytest.raises(type(error)), permit:
            assert active(throttle) == 1
            if error is not None:
                raise error
        assert permit.settled
        assert outcomes(throttle) == {outcome: 1}
        assert active(throttle) == 0

    def test_a_second_settling_changes_nothing_and_is_counted(self) -> None:
        throttle = throttle_for_tests()
        permit = permit_of(throttle)
        permit.settle(Outcome.FAILURE)
        permit.settle()
        assert outcomes(throttle) == {Outcome.FAILURE: 1}
        assert active(throttle) == 0
        assert throttle.snapshot().stale_results == 1

    def test_block_that_has_settled_is_not_settled_again(self) -> None:
        throttle = throttle_for_tests()
        with permit_of(throttle) as permit:
            permit.settle(Outcome.FAILURE)
        assert outcomes(throttle) == {Outcome.FAILURE: 1}
        assert active(throttle) == 0
        assert throttle.snapshot().stale_results == 0
        permit.settle()
        assert outcomes(throttle) == {Outcome.FAILURE: 1}
        assert throttle.snapshot().stale_results == 1

    def test_64_threads_that_settle_one_permit_settle_it_once(self) -> None:
        throttle = throttle_for_tests()
        permit = permit_of(throttle)
        run_threads(64, lambda _: permit.settle())
        assert outcomes(throttle) == {Outcome.SUCCESS: 1}
        assert throttle.snapshot().stale_results == 63

    def test_a_duration_that_did_not_end_by_itself_is_not_observed(self) -> None:
        throttle = throttle_for_tests()
        for outcome in Outcome:
            permit = permit_of(throttle)
            throttle.clock.advance(0.3)
            permit.settle(outcome)
        durations = throttle.snapshot().durations[Priority.MID]
        assert sum(durations.counts) == 3
        assert durations.total_s == pytest.approx(0.9)

    def test_a_rejection_has_nothing_to_settle(self) -> None:
        throttle = overheated(throttle_for_tests(), 96.0)
        rejection = throttle.try_admit(Demand(Priority.HIGH))
        assert isinstance(rejection, Rejection)
        assert not rejection.admitted
        assert repr(rejection) == "Rejection(Demand(high, user='', cost=1), gpu:overload)"
        assert active(throttle) == 0

    def test_repr_shows_whether_it_is_open(self) -> None:
        permit = permit_of(throttle_for_tests())
        assert repr(permit) == "Permit(Demand(mid, user='', cost=1), open)"
        permit.settle()
        assert "settled" in repr(permit)


FAST: dict[str, Any] = {"rate_mid_rps": "100000/s"}


class TestConcurrency:
    """Concurrent requests are admitted exactly up to the limit."""

    @pytest.fixture(autouse=True)
    def _threads_change_often(self) -> Iterator[None]:
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        yield
        sys.setswitchinterval(before)

    async def test_512_cold_tasks_admit_exactly_the_limit(self) -> None:
        throttle = throttle_for_tests(user_limit="100/minute", **FAST)
        answers = await asyncio.gather(*(throttle.admit(Demand(user="u")) for _ in range(512)))
        assert sum(answer.admitted for answer in answers) == 100
        snapshot = throttle.snapshot()
        assert snapshot.requests[Priority.MID, "admitted", Reason.OK] == 100
        assert snapshot.requests[Priority.MID, "limited", Reason.USER] == 412

    def test_64_threads_admit_exactly_the_limit(self) -> None:
        throttle = throttle_for_tests(user_limit="100/minute", **FAST)
        counts = [0] * 64

        def request(number: int) -> None:
            counts[number] = admitted(throttle, 8, user="u")

        run_threads(64, request)
        assert sum(counts) == 100

    def test_64_threads_take_exactly_the_burst(self) -> None:
        throttle = throttle_for_tests(rate_mid_rps="100/s")
        counts = [0] * 64

        def request(number: int) -> None:
            counts[number] = admitted(throttle, 8)

        run_threads(64, request)
        assert sum(counts) == 100
        assert throttle.snapshot().tokens[Priority.MID] == 0.0

    def test_all_limits_are_tested_under_one_lock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Races are rare, so the test checks that the lock is held."""
        lock_held: list[bool] = []

        def watched(kind: type, name: str) -> None:
            original = getattr(kind, name)

            def call(*args: Any) -> Any:
                lock_held.append(throttle.admission.parts.settlement.lock.is_held())
                return original(*args)

            monkeypatch.setattr(kind, name, call)

        watched(TokenBucket, "take")
        watched(UserLimits, "hit")
        throttle = throttle_for_tests(user_limit="1/minute")
        assert admitted(throttle, 2, user="u") == 1
        assert lock_held == [True] * 4

    def test_a_snapshot_under_load_is_one_moment(self) -> None:
        throttle = Throttle(Settings(gpu="none", rate_mid_rps="1000000/s"))
        done = threading.Event()
        seen: list[Snapshot] = []

        def look(number: int) -> None:
            if number:
                for _ in range(300):
                    with permit_of(throttle):
                        pass
                done.set()
            else:
                while not done.is_set():
                    seen.append(throttle.snapshot())

        run_threads(4, look)
        seen.append(throttle.snapshot())
        totals = [_consistent(snapshot) for snapshot in seen]
        assert totals == sorted(totals)
        assert totals[-1] == 900


def _consistent(snapshot: Snapshot) -> int:
    """Requests admitted so far, if all counts of the snapshot agree with that number."""
    total = snapshot.requests[Priority.MID, "admitted", Reason.OK]
    ended = sum(snapshot.outcomes[Priority.MID, outcome] for outcome in Outcome)
    assert total == ended + snapshot.active[Priority.MID]
    assert sum(snapshot.durations[Priority.MID].counts) == ended
    assert 0 <= snapshot.active[Priority.MID] <= 3
    return total
