"""Effects of the load of a throttle on its guards."""

from __future__ import annotations

import logging

import pytest

from autoglm_throttle import (
    Criticality,
    Demand,
    Fallback,
    GuardRejected,
    Permit,
    Priority,
    Settings,
    Throttle,
)
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.types import DegradationLevel, FallbackKind
from tests.resilience.test_guard_registry import loaded, seen


class TestDegradation:
    def test_non_core_is_shed_above_80_percent_load(self) -> None:
        throttle = throttle_for_tests()
        calls = []
        throttle.feature("related", criticality=Criticality.NON_CORE, fallback=Fallback(static=["none"]))
        throttle.feature("log", criticality=Criticality.NON_CORE)

        @throttle.guard("related")
        def related() -> list[str]:
            calls.append(1)
            return ["live"]

        loaded(throttle, 80.0)
        assert related() == ["live"]
        loaded(throttle, 80.5, samples=2)
        assert related() == ["live"]
        loaded(throttle, 80.5, samples=1)
        assert related() == ["none"]
        with pytest.raises(GuardRejected) as rejected, throttle.guard("log"):
            pytest.fail("let through")
        assert rejected.value.retry_after_s == 3.0
        with throttle.guard("core"):
            pass
        view = seen(throttle)
        assert (view.level, len(calls)) == (DegradationLevel.SHED, 2)
        assert view.degraded["related", FallbackKind.STATIC, "load"] == 1
        loaded(throttle, 74.0)
        assert related() == ["live"]
        assert seen(throttle).level is DegradationLevel.FULL

    @pytest.mark.parametrize(
        ("pct", "level"),
        [
            (80.0, DegradationLevel.FULL),
            (90.0, DegradationLevel.SHED),
            (95.0, DegradationLevel.STALE),
            (95.1, DegradationLevel.STATIC),
        ],
    )
    def test_levels_start_above_80_90_and_95_percent(self, pct: float, level: DegradationLevel) -> None:
        throttle = throttle_for_tests()
        throttle.guard("any")
        loaded(throttle, pct)
        assert seen(throttle).level is level

    def test_concurrency_limiter_reports_the_load_without_gpu(self) -> None:
        clock = throttle_for_tests().clock
        settings = Settings(gpu="none", policy="concurrency", inflight_max=4)
        throttle = Throttle(settings, sampling="manual", clock=clock)
        throttle.feature("related", criticality="non_core")
        assert throttle.guard("related").is_available()
        permits = [throttle.try_admit(Demand(Priority.HIGH)) for _ in range(4)]
        assert all(isinstance(permit, Permit) for permit in permits)
        for _ in range(4):
            throttle.guard("related").is_available()
            clock.advance(1.0)
        assert not throttle.guard("related").is_available()

    def test_each_level_change_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        throttle = throttle_for_tests()
        throttle.guard("any")
        with caplog.at_level(logging.INFO, "autoglm_throttle"):
            loaded(throttle, 92.0)
            loaded(throttle, 10.0)
        lines = [record for record in caplog.records if getattr(record, "event", "") == "degradation_changed"]
        assert [(line.levelno, line.__dict__["level"]) for line in lines] == [
            (logging.WARNING, "stale"),
            (logging.INFO, "full"),
        ]

    def test_a_dry_run_sheds_nothing(self) -> None:
        throttle = throttle_for_tests(dry_run=True)
        throttle.feature("related", criticality="non_core")
        loaded(throttle, 99.0)
        assert throttle.guard("related").is_available()
        assert seen(throttle).level is DegradationLevel.FULL
