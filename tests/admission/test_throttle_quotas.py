"""Resource quotas on the path of a request: charges, refunds, counts and reports."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

from autoglm_throttle import Demand, Outcome, Permit, Priority, Reason, Rejection, Snapshot, Throttle
from autoglm_throttle.admission.permit import Permit as PlainPermit
from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, throttle_for_tests
from tests.admission.forked import forked
from tests.admission.limited_throttle import (
    HIGH_RATES,
    NO_REMAINING_STATE,
    in_flight,
    limited_throttle,
    permit_for,
    rejection_for,
    remaining_state,
    ticket_for,
)
from tests.admission.scripted_throttle import ScriptedThrottle

GB = 10**9
HIGH, MID, LOW = Priority


def device(clock: ManualClock) -> FakeGpu:
    gpu = FakeGpu(clock=clock)
    gpu.memory_total_bytes, gpu.memory_used_bytes = 100 * GB, 0
    return gpu


def with_quotas(**settings: Any) -> ManualThrottle:
    """Build a throttle with an empty GPU."""
    clock = ManualClock()
    throttle = throttle_for_tests(
        clock=clock, gpu=device(clock), **{"quotas": True, **HIGH_RATES, **settings}
    )
    throttle.tick()
    return throttle


def filled(throttle: ManualThrottle, used_gb: int) -> ManualThrottle:
    """Fill the memory of the GPU by one request in flight."""
    permit_for(throttle, Demand(HIGH, "somebody", memory_bytes=used_gb * GB))
    throttle.gpu.memory_used_bytes = used_gb * GB
    throttle.tick()
    return throttle


def view(throttle: Throttle) -> Any:
    seen = throttle.snapshot().quota
    assert seen is not None
    return seen


def rejected(snapshot: Snapshot, reason: Reason) -> int:
    return sum(n for (_, _, why), n in snapshot.requests.items() if why is reason)


def test_without_quotas_there_are_none() -> None:
    throttle = throttle_for_tests()
    permit = permit_for(throttle, Demand())
    assert type(permit) is PlainPermit
    assert permit.advice is None
    assert throttle.snapshot().quota is None
    assert throttle.admission.parts.take_tokens == throttle.admission.parts.buckets.take


def test_each_priority_is_rejected_at_its_own_cap() -> None:
    throttle = filled(with_quotas(), 60)
    assert isinstance(throttle.try_admit(Demand(HIGH)), Permit)
    assert isinstance(throttle.try_admit(Demand(MID)), Permit)
    assert rejection_for(throttle, Demand(LOW)).decision.detail == "gpu:memory"
    seen = view(throttle)
    assert (seen.basis, seen.fill, seen.rejecting[LOW]) == (FillBasis.DEVICE, pytest.approx(0.6), True)


def test_memory_rejection_charges_nothing() -> None:
    throttle = filled(with_quotas(user_limit="5/minute"), 60)
    before = throttle.snapshot()
    in_flight_before = in_flight(throttle)
    for _ in range(20):
        rejection_for(throttle, Demand(LOW, "u"))
    after = throttle.snapshot()
    assert after.tokens == before.tokens
    assert in_flight(throttle) == in_flight_before
    assert rejected(after, Reason.GPU) == 20
    decision = permit_for(throttle, Demand(HIGH, "u")).decision
    assert decision.remaining == 4


def test_factor_0_rejects_first() -> None:
    throttle = filled(with_quotas(), 60)
    throttle.gpu.utilization_pct = 99.0
    throttle.tick(3)
    assert rejection_for(throttle, Demand(LOW)).decision.detail == "gpu:overload"


def test_the_memory_of_one_that_has_ended_is_free_again() -> None:
    throttle = with_quotas()
    permits = [permit_for(throttle, Demand(memory_bytes=30 * GB)) for _ in range(2)]
    assert rejection_for(throttle, Demand(memory_bytes=30 * GB)).decision.reason is Reason.GPU
    permits[0].settle(Outcome.SUCCESS)
    permits[0].settle(Outcome.SUCCESS)
    assert view(throttle).fill == pytest.approx(0.3)
    assert throttle.snapshot().stale_results == 1
    assert permit_for(throttle, Demand(memory_bytes=30 * GB)).advice.memory_bytes == 40 * GB  # type: ignore[union-attr]


def test_request_rejected_by_a_later_limit_is_not_counted() -> None:
    throttle = with_quotas(user_limit="1/minute")
    permit_for(throttle, Demand(user="u")).settle()
    assert rejection_for(throttle, Demand(user="u")).decision.reason is Reason.USER
    assert view(throttle).cost == 0.0


def test_request_without_a_slot_has_advice_and_no_memory() -> None:
    throttle = filled(with_quotas(precisions="fp16,int8"), 60)
    with permit_for(throttle, Demand(LOW, holds_slot=False)) as permit:
        assert permit.advice is not None
        assert view(throttle).cost == 0.0
    assert view(throttle).fill == pytest.approx(0.6)


def test_advice_is_that_of_the_admission() -> None:
    throttle = with_quotas(precisions="fp16,int8", tiers="85:0.7")
    early = permit_for(throttle, Demand(LOW))
    throttle.gpu.utilization_pct = 90.0
    throttle.tick(3)
    late = permit_for(throttle, Demand(LOW))
    assert early.advice is not None
    assert late.advice is not None
    assert (early.advice.precision, late.advice.precision) == ("fp16", "int8")
    assert late.advice.compute_priority == 9


def test_a_dry_run_counts_and_lets_in() -> None:
    throttle = filled(with_quotas(dry_run=True), 60)
    permit = permit_for(throttle, Demand(LOW, memory_bytes=GB))
    assert permit.decision.would_reject is not None
    assert permit.decision.would_reject.detail == "gpu:memory"
    assert throttle.snapshot().would_reject[LOW, Reason.GPU] == 1
    assert view(throttle).fill == pytest.approx(0.61)
    permit.settle()
    assert view(throttle).fill == pytest.approx(0.6)


def test_queued_request_is_rechecked_when_called() -> None:
    throttle = limited_throttle(2, quotas=True, user_limit="60/minute", rate_low_rps="100/s")
    throttle.gpu.memory_total_bytes = 100 * GB
    throttle.tick()
    first, second = (permit_for(throttle, Demand(HIGH, memory_bytes=GB)) for _ in range(2))
    ticket = ticket_for(throttle, Demand(LOW, "u", cost=50))
    throttle.gpu.memory_used_bytes = 60 * GB
    throttle.clock.advance(0.1)
    Throttle.tick(throttle)
    first.settle()
    ((returned, verdict),) = throttle.called()
    assert returned is ticket
    assert isinstance(verdict, Rejection)
    assert verdict.decision.detail == "gpu:memory"
    second.settle()
    assert throttle.snapshot().tokens[LOW] == 100.0, "else there would be 60 of them"
    assert in_flight(throttle) == 0
    assert remaining_state(throttle) == NO_REMAINING_STATE
    throttle.gpu.memory_used_bytes = 0
    throttle.tick()
    assert permit_for(throttle, Demand(LOW, "u")).decision.remaining == 59, "its units were given back"


def test_queued_request_with_memory_is_admitted() -> None:
    throttle = limited_throttle(1, quotas=True)
    throttle.tick()
    first = permit_for(throttle, Demand(HIGH))
    ticket_for(throttle, Demand(LOW))
    first.settle()
    ((_, verdict),) = throttle.called()
    assert isinstance(verdict, Permit)
    assert view(throttle).cost == 1.0
    verdict.settle()
    assert view(throttle).cost == 0.0


async def test_request_is_rechecked_after_the_store_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = ScriptedThrottle(monkeypatch, slots=9, quotas=True, rate_mid_rps="10/s")
    throttle = site.throttle
    gpu = device(site.clock)
    throttle.observe(gpu.read())
    inside = await site.admit()
    assert isinstance(inside, Permit)
    task = await site.started_check()
    site.clock.advance(0.1)
    gpu.memory_used_bytes = 80 * GB
    throttle.observe(gpu.read())
    with caplog.at_level(logging.INFO, "autoglm_throttle"):
        assert site.store.hold is not None
        site.store.hold.set()
        verdict = await task
    assert isinstance(verdict, Rejection)
    assert verdict.decision.detail == "gpu:memory"
    assert "gpu:memory" in caplog.text, "said at once, not with the next request"
    inside.settle()
    assert site.is_empty()
    assert site.left() == pytest.approx(site.tokens), "without the refund it would be one less"
    assert len(site.store.given_back) == 1


def test_missing_telemetry_rejects_nothing_and_is_shown() -> None:
    throttle = throttle_for_tests(quotas=True, rate_low_rps="1000/s")
    assert view(throttle).basis is FillBasis.UNKNOWN
    for _ in range(50):
        assert isinstance(throttle.try_admit(Demand(LOW)), (Permit, Ticket))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_begins_with_nothing_in_flight() -> None:
    throttle = with_quotas()
    permit = permit_for(throttle, Demand())

    def check() -> None:
        assert view(throttle).cost == 0.0
        permit.settle()
        assert view(throttle).cost == 0.0

    forked(check)
    assert view(throttle).cost > 0.0
