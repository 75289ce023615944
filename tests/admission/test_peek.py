"""`Throttle.peek`: the rejection that a demand would get now, without any charge."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.types import Demand, Reason

ANN = Demand(user="ann")


def test_peek_takes_nothing() -> None:
    throttle = throttle_for_tests(user_limit="2/minute", rate_mid_rps=2, burst_s=1)
    for _ in range(5):
        assert throttle.peek(ANN) is None
    assert isinstance(throttle.try_admit(ANN), Permit)
    assert throttle.peek(ANN) is None
    assert isinstance(throttle.try_admit(ANN), Permit)


@pytest.mark.parametrize(("setting", "reason"), [("user_limit", Reason.USER), ("rate_mid_rps", Reason.RATE)])
def test_peek_returns_the_rejection_and_counts_none(setting: str, reason: Reason) -> None:
    values: dict[str, Any] = {"user_limit": {"user_limit": "1/minute"}, "rate_mid_rps": {"rate_mid_rps": 1}}
    throttle = throttle_for_tests(burst_s=1, **values[setting])
    assert isinstance(throttle.try_admit(ANN), Permit)
    peeked = throttle.peek(ANN)
    assert isinstance(peeked, Rejection)
    assert peeked.decision.reason is reason
    assert not any(n for (_, decision, _), n in throttle.snapshot().requests.items() if decision == "limited")
    throttle.clock.advance(peeked.decision.retry_after_s)
    assert throttle.peek(ANN) is None


def test_dry_run_has_no_rejection_to_peek_at() -> None:
    for throttle in (
        throttle_for_tests(dry_run=True, user_limit="1/minute"),
        throttle_for_tests(dry_run=True, rate_mid_rps=1, burst_s=1),
    ):
        throttle.try_admit(ANN)
        assert throttle.peek(ANN) is None
