"""What a throttle learns of an engine: its cache from telemetry, its first tokens from streams."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle import GpuSample, Permit, Settings, Throttle
from autoglm_throttle.limiting.cache_cap import CACHE_TARGET
from autoglm_throttle.testing import FakeGpu, ManualClock
from tests.admission.demands import permit_of

START = 64


def throttle_before_engine(clock: ManualClock, **settings: Any) -> Throttle:
    values: dict[str, Any] = {"policy": "concurrency", "inflight_start": START, **settings}
    throttle = Throttle(Settings(**values), gpu=FakeGpu(), sampling="manual", clock=clock)
    throttle.start()
    return throttle


def sample(clock: ManualClock, fill: float | None, running: int = 20) -> list[GpuSample]:
    clock.advance(1.0)
    now = clock()
    return [
        GpuSample(
            device="engine",
            index=0,
            taken_at_s=now,
            source="engine",
            kind="engine",
            running=running,
            queued=0,
            kv_used_ratio=fill,
        )
    ]


def limit(throttle: Throttle) -> float:
    view = throttle.snapshot().concurrency
    assert view is not None
    return view.limit


def test_limit_stays_below_the_requests_that_the_cache_holds() -> None:
    clock = ManualClock()
    throttle = throttle_before_engine(clock)
    throttle.observe(sample(clock, 0.5))
    assert limit(throttle) == pytest.approx(CACHE_TARGET * 40)
    throttle.observe(sample(clock, 1.0))
    assert limit(throttle) < CACHE_TARGET * 40


def test_cap_ends_when_the_engine_reports_no_cache_or_is_lost() -> None:
    clock = ManualClock()
    throttle = throttle_before_engine(clock)
    throttle.observe(sample(clock, 0.5))
    throttle.observe(sample(clock, None))
    assert limit(throttle) == START
    throttle.observe(sample(clock, 0.5))
    assert limit(throttle) < START
    throttle.control.source_lost(True)
    assert limit(throttle) == START


def test_fixed_limit_knows_no_cache() -> None:
    clock = ManualClock()
    throttle = throttle_before_engine(clock, policy="fixed", inflight_start=2, inflight_max=50)
    throttle.observe(sample(clock, 1.0))
    assert limit(throttle) == 50


def test_first_event_of_a_stream_is_the_first_token_of_the_engine() -> None:
    clock = ManualClock()
    throttle = throttle_before_engine(clock, slo_ttft_s=2.0)
    permit: Permit = permit_of(throttle)
    clock.advance(0.3)
    permit.record_first_event(clock())
    first = throttle.admission.parts.settlement.limiter.first_tokens
    assert first is not None
    assert first.seen == 1
    assert first.engine_s == pytest.approx(0.3)
    permit.settle()


def test_stream_without_an_objective_of_the_first_token_is_not_measured() -> None:
    clock = ManualClock()
    throttle = throttle_before_engine(clock)
    with permit_of(throttle) as permit:
        permit.record_first_event(clock())
    assert throttle.admission.parts.settlement.limiter.first_tokens is None
