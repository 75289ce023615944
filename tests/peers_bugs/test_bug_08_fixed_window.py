"""Bug 8: a fixed window sold as a limit admits twice the limit round its edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.peers_bugs.limiter import LIMIT, WINDOW_S, Make, Plain, ours

BOUNDARY = [55.0, 0.0, 0.0, 0.0, 4.9, 0.2, 0.0, 0.0]


def check(make: Make, gaps_s: list[float]) -> None:
    subject = make()
    admitted: list[float] = []
    for gap_s in gaps_s:
        subject.clock.advance(gap_s)
        now = subject.clock()
        if subject.ask().status == 200:
            admitted.append(now)
        window = [then for then in admitted if then + WINDOW_S > now]
        assert len(window) <= LIMIT, "more than the limit in one window"


class FixedWindow(Plain):
    def hit(self, key: str, now: float) -> float:
        since_start = now - 1000.0
        window = f"{key}:{int(since_start // WINDOW_S)}"
        log = self.logs.setdefault(window, [])
        if len(log) >= LIMIT:
            return WINDOW_S - since_start % WINDOW_S
        log.append(now)
        return 0.0


@pytest.mark.parametrize("make", [ours, Plain.subject])
@given(gaps_s=st.lists(st.sampled_from([0.0, 0.1, 1.0, 20.0, 29.9, 30.0, 59.9, 60.0]), max_size=30))
def test_no_window_holds_more_than_the_limit(make: Make, gaps_s: list[float]) -> None:
    check(make, gaps_s)


@pytest.mark.parametrize("make", [ours, Plain.subject])
def test_attack_on_the_boundary_gains_nothing(make: Make) -> None:
    check(make, BOUNDARY)


def test_planted_fixed_window_is_found() -> None:
    with pytest.raises(AssertionError, match="one window"):
        check(FixedWindow.subject, BOUNDARY)
