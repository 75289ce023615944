"""The policy ``adaptive`` from the GPU to the rejection, compared with the other policies."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autoglm_throttle import (
    Decision,
    Demand,
    Permit,
    Priority,
    Reason,
    Rejection,
    TelemetryState,
    Throttle,
    ThrottleMiddleware,
)
from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle
from autoglm_throttle.types import ControlCause
from tests.admission.demands import admitted, decided, overheated
from tests.admission.limited_throttle import (
    NO_REMAINING_STATE,
    in_flight,
    limited_throttle,
    permit_for,
    permits_for,
    rejection_for,
    remaining_state,
    ticket_for,
    warmed,
    with_budget,
)
from tests.asgi.run_app import request

HIGH, MID, LOW = Priority
RATES: dict[str, Any] = {"rate_high_rps": "1000/s", "rate_mid_rps": "500/s", "rate_low_rps": "100/s"}
NOMINAL_RPS = 1600.0
HEADROOM = 1.15


def adaptive(slots: int = 1, **settings: Any) -> ManualThrottle:
    """Build a limiter for a service of 100 requests a second, with a queue timeout of a minute."""
    return warmed(limited_throttle(slots, **{"policy": "adaptive", "slo_s": 240.0, **RATES, **settings}))


class Overload:
    """All slots in use, a waiting request, and a busy GPU."""

    def __init__(self, throttle: ManualThrottle, utilization_pct: float, samples: int = 3) -> None:
        self.throttle = throttle
        self.running = permits_for(throttle, int(throttle.admission.parts.settlement.limiter.limit))
        self.ticket = ticket_for(throttle, Demand(HIGH))
        overheated(throttle, utilization_pct, samples)

    def end(self) -> ManualThrottle:
        self.throttle.leave(self.ticket)
        for permit in self.running:
            permit.settle()
        assert remaining_state(self.throttle) == NO_REMAINING_STATE
        assert in_flight(self.throttle) == 0
        return self.throttle


def overloaded(throttle: ManualThrottle, utilization_pct: float, samples: int = 3) -> ManualThrottle:
    return Overload(throttle, utilization_pct, samples).throttle


def least_rps(throttle: ManualThrottle) -> float:
    """Return the lowest rate of a reduction: the measured service rate and the headroom."""
    rate = throttle.admission.parts.settlement.limiter.view(throttle.clock()).service_rps
    assert rate is not None
    assert 70.0 < rate < 110.0
    return HEADROOM * rate


def admit_until_rejected(throttle: ManualThrottle, priority: Priority) -> tuple[int, Decision]:
    """Request until rejected; returns the number of admissions and the rejection."""
    taken = 0
    while not isinstance(verdict := throttle.try_admit(Demand(priority)), Rejection):
        taken += 1
    return taken, verdict.decision


class TestUnconfirmed:
    """A busy GPU without a queue is no overload."""

    def test_a_gpu_at_99_percent_without_traffic_changes_nothing(self) -> None:
        throttle = overheated(adaptive(), 99.0, samples=10)
        state = throttle.control_state()
        assert (state.factor, state.ceilings, state.budget_rps) == (1.0, (1.0, 1.0, 1.0), None)
        assert (state.armed, state.table_factor, state.cause) == (False, 0.0, ControlCause.CALM)
        assert tuple(throttle.snapshot().rate_limit_rps.values()) == (1000.0, 500.0, 100.0)

    def test_a_busy_gpu_with_free_slots_changes_nothing(self) -> None:
        throttle = adaptive(8)
        throttle.gpu.utilization_pct = 100.0
        for _ in range(10):
            permits = permits_for(throttle, 8)
            throttle.tick()
            for permit in permits:
                permit.settle()
        assert not throttle.control_state().armed

    def test_rate_and_user_rejections_do_not_confirm(self) -> None:
        throttle = adaptive(rate_low_rps="1/s", user_limit="2/minute")
        throttle.gpu.utilization_pct = 99.0
        for _ in range(5):
            for number in range(5):
                verdict = throttle.try_admit(Demand(LOW, f"{number}"))
                if isinstance(verdict, Permit):
                    verdict.settle()
                permit = throttle.try_admit(Demand(MID, "u"))
                if isinstance(permit, Permit):
                    permit.settle()
            throttle.tick()
        snapshot = throttle.snapshot()
        assert snapshot.requests[LOW, "limited", Reason.RATE] > 10
        assert snapshot.requests[MID, "limited", Reason.USER] > 10
        assert not snapshot.control.armed

    def test_queue_without_a_busy_gpu_is_no_cut(self) -> None:
        assert not overloaded(adaptive(), 85.0, samples=10).control_state().armed


class TestCut:
    """The third hot sample with a waiting request."""

    @pytest.mark.parametrize(
        ("utilization_pct", "tier", "rates"),
        [(86.0, 0.7, (700.0, 350.0, 0.0)), (92.0, 0.4, (400.0, 200.0, 0.0)), (96.0, 0.0, (0.0, 0.0, 0.0))],
    )
    def test_rates_drop_no_lower_than_the_completion_rate(
        self, utilization_pct: float, tier: float, rates: tuple[float, ...]
    ) -> None:
        throttle = overloaded(adaptive(), utilization_pct, samples=2)
        assert (throttle.control_state().cause, throttle.control_state().armed) == (
            ControlCause.STRIKE,
            False,
        )
        throttle.tick()
        state, least = throttle.control_state(), least_rps(throttle)
        assert (state.cause, state.armed, state.tier) == (ControlCause.TIER, True, tier)
        assert state.table_factor == tier
        assert state.budget_rps == pytest.approx(max(tier * NOMINAL_RPS, least))
        assert state.budget_rps is not None
        assert state.factor == pytest.approx(state.budget_rps / NOMINAL_RPS)
        refill = tuple(throttle.snapshot().rate_limit_rps.values())
        assert refill == pytest.approx(tuple(max(rate, min(least, 1000.0)) for rate in rates))
        assert (state.signal, state.term) == ("utilization", "utilization")

    def test_budget_rejects_until_exactly_retry_after(self) -> None:
        throttle = overloaded(adaptive(), 99.0)
        _, rejection = admit_until_rejected(throttle, HIGH)
        assert (rejection.reason, rejection.detail, rejection.policy) == (
            Reason.GPU,
            "gpu:utilization",
            "gpu",
        )
        assert 0.0 < rejection.retry_after_s <= 1 / least_rps(throttle)
        ready_s = throttle.clock() + rejection.retry_after_s
        throttle.clock.advance(math.nextafter(ready_s, 0.0) - throttle.clock())
        assert rejection_for(throttle, Demand(HIGH)).decision.detail == "gpu:utilization"
        throttle.clock.advance(ready_s - throttle.clock())
        ticket_for(throttle, Demand(HIGH))

    def test_low_is_rejected_first_and_high_last(self) -> None:
        throttle = overloaded(adaptive(min_share=0.0), 99.0)
        full = least_rps(throttle) / 2
        taken = 0
        for priority, reserve in ((LOW, 0.6), (MID, 0.3), (HIGH, 0.0)):
            taken += admit_until_rejected(throttle, priority)[0]
            assert taken == int((1.0 - reserve) * full)

    def test_rejected_request_is_not_charged_its_rate(self) -> None:
        throttle = overloaded(adaptive(min_share=0.0), 99.0)
        admit_until_rejected(throttle, MID)
        tokens = throttle.snapshot().tokens
        rejection_for(throttle, Demand(MID))
        assert throttle.snapshot().tokens == tokens

    def test_user_rejection_refunds_the_budget(self) -> None:
        throttle = adaptive(user_limit="3/hour")
        permit_for(throttle, Demand(MID, "u", 3.0, holds_slot=False))
        overloaded(throttle, 99.0)
        for _ in range(100):
            assert rejection_for(throttle, Demand(MID, "u")).decision.reason is Reason.USER
        ticket_for(throttle, Demand(HIGH, "v"))

    def test_reserved_share_is_not_charged_and_not_refunded(self) -> None:
        throttle = overloaded(adaptive(min_share=0.2, user_limit="300/hour"), 99.0)
        permit_for(throttle, Demand(HIGH, "u", 300.0, holds_slot=False))
        admit_until_rejected(throttle, HIGH)
        budget = throttle.admission.parts.shared_budget.bucket
        before = budget.tokens(throttle.clock())
        throttle.leave(ticket_for(throttle, Demand(LOW)))
        assert rejection_for(throttle, Demand(LOW, "u")).decision.reason is Reason.USER
        assert budget.tokens(throttle.clock()) == before

    def test_budget_rejections_are_demand(self) -> None:
        throttle = overloaded(adaptive(min_share=0.0), 99.0)
        admit_until_rejected(throttle, HIGH)
        limiter = throttle.admission.parts.settlement.limiter
        assert isinstance(limiter, AdaptiveConcurrencyLimiter)
        before = limiter.period.arrived[HIGH]
        for _ in range(10):
            rejection_for(throttle, Demand(HIGH))
        assert limiter.period.arrived[HIGH] == before + 10

    def test_with_free_slots_only_the_budget_is_checked(self) -> None:
        throttle = Overload(adaptive(4), 99.0).end()
        permit = permit_for(throttle, Demand(HIGH))
        assert throttle.control_state().armed
        permit.settle()
        assert in_flight(throttle) == 0

    def test_reserved_share_with_a_free_slot_admits_at_once(self) -> None:
        throttle = Overload(adaptive(4, min_share=0.2), 99.0).end()
        budget = with_budget(throttle, 0.001)
        throttle.clock.advance(0.01)
        while budget.take(LOW, throttle.clock()) is None:
            pass
        permit = permit_for(throttle, Demand(LOW))
        assert in_flight(throttle) == 1
        permit.settle()
        assert (in_flight(throttle), throttle.called()) == (0, [])

    def test_user_rejection_with_a_free_slot_releases_it(self) -> None:
        throttle = adaptive(4, user_limit="1/hour")
        permit_for(throttle, Demand(MID, "u", holds_slot=False))
        budget = with_budget(throttle, 10.0)
        assert rejection_for(throttle, Demand(MID, "u")).decision.reason is Reason.USER
        assert in_flight(throttle) == 0
        assert budget.bucket.tokens(throttle.clock()) == 8.0

    async def test_client_gets_503_with_retry_after(self) -> None:
        throttle = overloaded(adaptive(min_share=0.0), 99.0)
        admit_until_rejected(throttle, HIGH)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            raise AssertionError("refused requests do not arrive")

        answer = await request(ThrottleMiddleware(app, throttle=throttle))
        assert answer.status == 503
        assert answer.header("retry-after") == "1"
        assert b"gpu" in answer.body

    @pytest.mark.parametrize(("min_share", "least", "most"), [(0.03, 24, 36), (0.0, 0, 0)])
    def test_the_guaranteed_share_keeps_low_alive(self, min_share: float, least: int, most: int) -> None:
        """Ten seconds of reduced rates: high demand takes all of the budget, 3 of 100 a second go to low."""
        throttle = overloaded(adaptive(min_share=min_share), 99.0)
        admit_until_rejected(throttle, HIGH)
        limiter = throttle.admission.parts.settlement.limiter
        limiter.enqueue_reserved(Demand(LOW), limiter.work_classes[""], throttle.clock())
        admitted_low = 0
        for step in range(1000):
            throttle.clock.advance(0.01)
            if step % 100 == 99:
                Throttle.tick(throttle)
            for _ in range(3):
                throttle.try_admit(Demand(HIGH))
            admitted_low += not isinstance(throttle.try_admit(Demand(LOW)), Rejection)
        assert least <= admitted_low <= most

    def test_the_signal_may_be_the_pressure_and_names_its_term(self) -> None:
        throttle = adaptive(signal="pressure", min_share=0.0)
        throttle.gpu.memory_used_bytes = int(0.5 * 80 * 1024**3)
        throttle.tick()
        throttle.gpu.memory_used_bytes = int(0.89 * 80 * 1024**3)
        overloaded(throttle, 0.0)
        assert (throttle.control_state().term, throttle.control_state().armed) == ("memory", True)
        assert throttle.snapshot().pressure["memory"] == pytest.approx(0.89 / 0.92)
        assert admit_until_rejected(throttle, LOW)[1].detail == "gpu:memory"

    def test_the_latency_of_our_own_requests_is_a_term(self) -> None:
        throttle = adaptive(slo_s=2.0)
        for _ in range(20):
            permit = permit_for(throttle, Demand(HIGH))
            throttle.clock.advance(0.9)
            permit.settle()
        throttle.tick()
        assert throttle.snapshot().pressure["latency"] == pytest.approx(0.5, abs=0.05)


class TestRelease:
    """Two samples without confirmation by the limiter."""

    def test_holds_at_the_first_and_releases_at_the_second(self) -> None:
        throttle = Overload(adaptive(), 92.0).end()
        state = throttle.tick()
        assert (state.cause, state.armed) == (ControlCause.HELD, True)
        state = throttle.tick()
        assert (state.cause, state.armed, state.budget_rps) == (ControlCause.RELEASED, False, None)
        assert tuple(throttle.snapshot().rate_limit_rps.values()) == (1000.0, 500.0, 100.0)
        assert throttle.control_state().table_factor == 0.4
        assert admitted(throttle, 1, HIGH) == 1

    def test_budget_and_rate_rejections_do_not_hold_the_cut(self) -> None:
        """After a hang of the service, only the reduced rates reject."""
        throttle = Overload(adaptive(8), 99.0).end()
        rejected = 0
        for _ in range(2):
            for _ in range(1200):
                verdict = throttle.try_admit(Demand(HIGH))
                if isinstance(verdict, Permit):
                    verdict.settle()
                else:
                    assert isinstance(verdict, Rejection)
                    assert verdict.decision.detail in {"gpu:utilization", "gpu:ceiling"}
                    rejected += 1
            assert throttle.control_state().armed
            throttle.tick()
        assert rejected > 2000
        assert (throttle.control_state().cause, throttle.control_state().armed) == (
            ControlCause.RELEASED,
            False,
        )

    def test_telemetry_that_hangs_does_not_hold_it_either(self) -> None:
        overload = Overload(adaptive(), 99.0)
        throttle = overload.throttle
        throttle.gpu.hang()
        throttle.tick(5)
        state = throttle.control_state()
        assert (state.telemetry, state.armed) == (TelemetryState.STALE, True), "requests still wait"
        overload.end()
        throttle.tick(2)
        assert throttle.control_state().armed
        throttle.tick()
        state = throttle.control_state()
        assert (state.telemetry, state.armed, state.budget_rps) == (TelemetryState.STALE, False, None)
        assert decided(throttle, HIGH).allowed

    def test_last_device_lost_rejects_all(self) -> None:
        throttle = adaptive(4, gpu=FakeGpu(devices=2, clock=(clock := ManualClock())), clock=clock)
        throttle.tick()
        throttle.gpu.lose(0)
        throttle.tick()
        assert decided(throttle).allowed
        throttle.gpu.lose(1)
        throttle.tick()
        assert not throttle.snapshot().ready
        assert (decided(throttle).detail, decided(throttle, HIGH).reason) == ("gpu:lost", Reason.GPU)
        throttle.gpu.recover()
        throttle.tick(2)
        assert decided(throttle).detail == "gpu:lost"
        throttle.tick()
        assert throttle.snapshot().ready
        assert decided(throttle).allowed

    def test_requests_rejected_at_factor_0_are_demand(self) -> None:
        throttle = adaptive(4, slo_s=2.0)
        throttle.gpu.lose()
        throttle.tick()
        for _ in range(300):  # without completions a period lasts as long as the objective
            throttle.clock.advance(0.01)
            assert not decided(throttle, HIGH).allowed
            rejection_for(throttle, Demand(MID, holds_slot=False))
        demand_rps = throttle.admission.parts.settlement.limiter.view(throttle.clock()).demand_rps
        assert demand_rps[HIGH] > 10.0
        assert demand_rps[MID] == 0.0
