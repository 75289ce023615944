"""A dry run rejects no request, and reports the rejections of a live throttle."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle import Decision, Demand, Permit, Priority, Reason, Rejection, Throttle
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Policy
from tests.admission.demands import overheated
from tests.admission.limited_throttle import (
    HIGH_RATES,
    NO_REMAINING_STATE,
    in_flight,
    limited_throttle,
    permit_for,
    permits_for,
    rejection_for,
    remaining_state,
    warmed,
)

LOW = Demand(Priority.LOW)


def live_and_dry_run(**settings: Any) -> tuple[ManualThrottle, ManualThrottle]:
    """A live throttle and a dry run with the same settings."""
    return throttle_for_tests(**settings), throttle_for_tests(**settings, dry_run=True)


def is_rejection(record: logging.LogRecord) -> bool:
    return getattr(record, "event", "") == "request_rejected"


class TestRejections:
    """Each rejection is reported, and none takes place."""

    @pytest.mark.parametrize(
        ("settings", "before", "detail"),
        [
            ({"policy": "tiers", "tiers": "50:0"}, 0, "gpu:overload"),
            ({"policy": "fixed", "rate_low_rps": "1/s"}, 1, "rate:low"),
            ({"policy": "concurrency", "rate_low_rps": "0.1/s"}, 1, "rate:low"),
            ({"policy": "fixed", "user_limit": "3/minute"}, 3, "user:user-60s"),
            ({"policy": "concurrency", "user_limit": "3/minute"}, 3, "user:user-60s"),
            ({"policy": "fixed", "inflight_max": 4}, 4, "queue:cap"),
            ({"policy": "tiers", "inflight_max": 4}, 4, "queue:cap"),
            ({"policy": "concurrency", "inflight_start": 4, "queue_max": 3}, 7, "queue:full"),
        ],
    )
    def test_first_rejection_equals_that_of_a_live_throttle(
        self, settings: dict[str, Any], before: int, detail: str
    ) -> None:
        live, dry = (overheated(throttle, 60.0) for throttle in live_and_dry_run(**settings))
        for _ in range(before):
            assert not isinstance(live.try_admit(LOW), Rejection)
            assert permit_for(dry, LOW).decision.would_reject is None
        rejection = rejection_for(live, LOW).decision
        assert rejection.detail == detail
        assert permit_for(dry, LOW).decision == Decision(True, Reason.OK, would_reject=rejection)

    @pytest.mark.parametrize("policy", ["concurrency", "adaptive"])
    def test_first_one_that_waits_too_long_equals_that_of_a_live_throttle(self, policy: str) -> None:
        live, dry = map(warmed, live_and_dry_run(policy=policy, inflight_max=4, slo_s=0.4, **HIGH_RATES))
        for _ in range(15):
            assert not isinstance(live.try_admit(LOW), Rejection)
            assert permit_for(dry, LOW).decision.would_reject is None
        rejection = rejection_for(live, LOW).decision
        assert rejection.detail == "queue:slow"
        assert permit_for(dry, LOW).decision == Decision(True, Reason.OK, would_reject=rejection)

    def test_one_that_is_too_large_is_let_in_too(self) -> None:
        live, dry = live_and_dry_run(policy="fixed", rate_mid_rps="5/s")
        rejection = rejection_for(live, Demand(cost=6.0)).decision
        assert rejection.reason is Reason.TOO_LARGE
        assert permit_for(dry, Demand(cost=6.0)).decision.would_reject == rejection

    def test_shared_budget_is_named_by_its_term(self) -> None:
        live, dry = live_and_dry_run(
            policy="adaptive", inflight_start=4, sample_interval_s=0.2, slo_s=4.0, **HIGH_RATES
        )
        for throttle in (live, dry):
            for _ in range(5):
                throttle.try_admit(Demand(Priority.HIGH))
            overheated(throttle, 99.0)
            assert throttle.control_state().armed
        while not isinstance(verdict := live.try_admit(LOW), Rejection):
            assert permit_for(dry, LOW).decision.would_reject is None
        assert verdict.decision.detail == "gpu:utilization"
        assert permit_for(dry, LOW).decision.would_reject == verdict.decision

    def test_they_are_counted_by_class_and_reason_and_are_admissions(self) -> None:
        dry = throttle_for_tests(policy="fixed", rate_low_rps="2/s", user_limit="4/minute", dry_run=True)
        for _ in range(5):
            permit_for(dry, LOW)
            permit_for(dry, Demand(Priority.HIGH))
        snapshot = dry.snapshot()
        assert {key: n for key, n in snapshot.would_reject.items() if n} == {
            (Priority.LOW, Reason.RATE): 3,
            (Priority.HIGH, Reason.USER): 3,
        }
        assert snapshot.dry_run
        assert {key: n for key, n in snapshot.requests.items() if n} == {
            (Priority.LOW, "admitted", Reason.OK): 5,
            (Priority.HIGH, "admitted", Reason.OK): 5,
        }

    def test_a_live_throttle_counts_none(self) -> None:
        live = throttle_for_tests(policy="fixed", rate_low_rps="1/s")
        permit_for(live, LOW)
        assert rejection_for(live, LOW).decision.would_reject is None
        assert not any(live.snapshot().would_reject.values())
        assert not live.snapshot().dry_run

    def test_they_are_logged_as_the_live_ones_are(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger="autoglm_throttle")
        messages = []
        for throttle in live_and_dry_run(policy="fixed", rate_low_rps="1/s"):
            caplog.clear()
            for _ in range(3):
                throttle.try_admit(LOW)
            messages.append([record.getMessage() for record in caplog.records if is_rejection(record)])
        assert messages[0] == messages[1] != []

    def test_none_of_them_has_taken_a_token_or_a_unit(self) -> None:
        dry = throttle_for_tests(policy="fixed", user_limit="2/minute", rate_mid_rps="3/s", dry_run=True)
        for _ in range(2):
            permit_for(dry, Demand(user="u"))
        tokens = dry.snapshot().tokens
        would = [permit_for(dry, Demand(user="u")).decision.would_reject for _ in range(3)]
        assert [rejection.remaining for rejection in would if rejection is not None] == [0, 0, 0]
        assert dry.snapshot().tokens == tokens


class TestInFlight:
    """Requests admitted by a dry run load the service, so they count."""

    def test_all_of_them_are_in_flight_until_they_are_settled(self) -> None:
        dry = limited_throttle(4, queue_max=4, dry_run=True)
        permits = permits_for(dry, 12)
        assert sum(permit.decision.would_reject is not None for permit in permits) == 4
        assert in_flight(dry) == 12
        limiter = dry.snapshot().concurrency
        assert limiter is not None
        assert (limiter.in_flight, limiter.waiting) == (12, (0, 0, 0))
        for permit in permits:
            permit.settle()
        assert in_flight(dry) == 0
        assert remaining_state(dry) == NO_REMAINING_STATE

    def test_a_cap_counts_them_too(self) -> None:
        dry = throttle_for_tests(policy="fixed", inflight_max=2, dry_run=True)
        permits = permits_for(dry, 5)
        assert [permit.decision.would_reject is not None for permit in permits] == [
            False,
            False,
            True,
            True,
            True,
        ]
        assert in_flight(dry) == 5
        for permit in permits[:3]:
            permit.settle()
        assert permit_for(dry, LOW).decision.would_reject is not None
        permits[3].settle()
        permits[4].settle()
        assert permit_for(dry, LOW).decision.would_reject is None

    def test_one_without_a_slot_has_none_here_either(self) -> None:
        dry = throttle_for_tests(policy="fixed", rate_low_rps="1/s", dry_run=True)
        permits = [permit_for(dry, Demand(Priority.LOW, holds_slot=False)) for _ in range(3)]
        assert permits[2].decision.would_reject is not None
        assert in_flight(dry) == 0
        permits[2].settle()
        assert in_flight(dry) == 0

    def test_requests_above_the_limit_confirm_an_overload(self) -> None:
        live, dry = live_and_dry_run(policy="concurrency", inflight_start=4)
        for throttle in (live, dry):
            for _ in range(4):
                throttle.try_admit(LOW)
            assert not throttle.admission.parts.settlement.limiter.report().confirmed
            throttle.try_admit(LOW)
            assert throttle.admission.parts.settlement.limiter.report().confirmed

    def test_queue_too_long_would_reject(self) -> None:
        live, dry = (warmed(limited_throttle(4, dry_run=dry)) for dry in (False, True))
        permits_for(live, 4)
        permits_for(dry, 4)
        waiting = 0
        while isinstance(verdict := live.try_admit(LOW), Ticket):
            waiting += 1
            assert permit_for(dry, LOW).decision.would_reject is None
        assert waiting > 40
        assert isinstance(verdict, Rejection)
        assert verdict.decision.detail == "queue:slow"
        assert verdict.decision.retry_after_s > 0.0
        assert permit_for(dry, LOW).decision.would_reject == verdict.decision


DEMANDS = st.builds(
    Demand,
    st.sampled_from(Priority),
    st.sampled_from("ab"),
    st.sampled_from([0.5, 1.0, 3.0]),
    holds_slot=st.sampled_from([True, True, True, False]),
)
STEPS = st.lists(st.tuples(DEMANDS, st.sampled_from([0.0, 0.001, 0.004])), min_size=1, max_size=60)


class TestLiveThrottle:
    """Two throttles with the same requests."""

    @given(st.sampled_from(Policy), st.sampled_from([0.0, 87.0, 99.0]), STEPS)
    def test_decides_as_a_live_one_up_to_the_first_rejection(
        self, policy: Policy, utilization_pct: float, steps: list[tuple[Demand, float]]
    ) -> None:
        live, dry = live_and_dry_run(
            policy=policy,
            inflight_start=4,
            inflight_max=8,
            queue_max=3,
            min_share=0,  # a dry run grants nothing from the reserved share (docs/limitations.md)
            rate_low_rps="6/s",
            rate_mid_rps="12/s",
            user_limit="20/minute",
        )
        for throttle in (live, dry):
            overheated(throttle, utilization_pct)
        for demand, after_s in steps:
            live.clock.advance(after_s)
            dry.clock.advance(after_s)
            verdict = live.try_admit(demand)
            would = permit_for(dry, demand).decision.would_reject
            if isinstance(verdict, Rejection):
                assert would == verdict.decision
                return
            assert would is None

    @given(
        st.sampled_from(Policy),
        st.lists(st.one_of(DEMANDS, st.none(), st.sampled_from([0.01, 0.7])), max_size=120),
    )
    def test_never_rejects_and_leaks_nothing(
        self, policy: Policy, events: list[Demand | float | None]
    ) -> None:
        """A demand arrives, the oldest request ends, or time passes."""
        dry = throttle_for_tests(
            policy=policy, inflight_start=2, inflight_max=3, user_limit="5/second", tiers="1:0", dry_run=True
        )
        dry.gpu.utilization_pct = 50.0
        running: list[Permit] = []
        would = arrived = 0
        for event in events:
            if isinstance(event, Demand):
                arrived += 1
                running.append(permit_for(dry, event))
                would += running[-1].decision.would_reject is not None
            elif event is not None:
                dry.clock.advance(event)
                Throttle.tick(dry)
            elif running:
                running.pop(0).settle()
            assert in_flight(dry) == sum(permit.demand.holds_slot for permit in running)
        snapshot = dry.snapshot()
        assert sum(snapshot.would_reject.values()) == would
        assert sum(snapshot.requests.values()) == arrived
        for permit in running:
            permit.settle()
        assert in_flight(dry) == 0
        assert remaining_state(dry) == NO_REMAINING_STATE

    async def test_no_request_is_queued(self) -> None:
        dry = limited_throttle(1, dry_run=True)
        verdicts = [await dry.admit(Demand(Priority.HIGH)) for _ in range(3)]
        assert all(verdict.admitted for verdict in verdicts)
        assert sum(dry.snapshot().queue_time[Priority.HIGH].counts) == 0
