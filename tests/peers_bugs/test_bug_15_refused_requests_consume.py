"""Bug 15: requests that were refused are charged all the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle import Demand
from autoglm_throttle.testing import throttle_for_tests
from tests.peers_bugs.limiter import LIMIT, WINDOW_S, Make, Plain, ours


def check(make: Make) -> None:
    subject = make()
    for _ in range(LIMIT):
        subject.ask()
    for _ in range(WINDOW_S - 1):
        subject.clock.advance(1)
        assert subject.ask().status == 429
    subject.clock.advance(1)
    assert subject.passed(LIMIT) == LIMIT, "refusals were charged"


class ChargesRefusals(Plain):
    def hit(self, key: str, now: float) -> float:
        wait = super().hit(key, now)
        if wait:
            self.logs[key].append(now)
            self.logs[key] = self.logs[key][-LIMIT:]
        return wait


@pytest.mark.parametrize("make", [ours, Plain.subject])
def test_rejected_requests_are_not_charged(make: Make) -> None:
    check(make)


def test_planted_charge_is_found() -> None:
    with pytest.raises(AssertionError):
        check(ChargesRefusals.subject)


@given(refused=st.integers(1, 50))
def test_rejection_by_one_limit_leaves_the_others_unchanged(refused: int) -> None:
    throttle = throttle_for_tests(user_limit=f"{LIMIT}/minute", rate_mid_rps=1, burst_s=10)
    for _ in range(LIMIT):
        assert throttle.try_admit(Demand(user="a")).admitted
    tokens = throttle.snapshot().tokens
    for _ in range(refused):
        assert not throttle.try_admit(Demand(user="a")).admitted
    assert throttle.snapshot().tokens == tokens
