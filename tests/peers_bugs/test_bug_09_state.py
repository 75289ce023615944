"""Bug 9: state that never goes away, and bounded state that forgets the guilty."""

from __future__ import annotations

import pytest

from tests.peers_bugs.limiter import LIMIT, WINDOW_S, Make, Plain, ours

STRANGERS = 1000
GUILTY = [f"192.0.2.{n}" for n in range(40)]


def check_forgets_the_idle(make: Make) -> None:
    subject = make()
    for n in range(STRANGERS):
        subject.ask(f"198.51.{n >> 8}.{n & 255}")
    subject.clock.advance(WINDOW_S + 1)
    for n in range(STRANGERS):
        subject.ask(f"203.0.{n >> 8}.{n & 255}")
        subject.clock.advance(WINDOW_S + 1)
    assert subject.remembered() < 10, "idle users are remembered for ever"


def check_remembers_the_guilty(make: Make, each: int = 1) -> None:
    subject = make(max_users=100)
    for client in GUILTY:
        assert subject.passed(LIMIT + 1, client=client) == LIMIT
    for n in range(STRANGERS):
        subject.passed(each, client=f"198.51.{n >> 8}.{n & 255}")
    free = [client for client in GUILTY if subject.ask(client).status == 200]
    assert not free, "a flood of strangers washed the guilty clean"


class NeverForgets(Plain):
    def expire(self, now: float) -> None:
        pass


class ForgetsTheOldest(Plain):
    def expire(self, now: float) -> None:
        while len(self.logs) >= 100:
            del self.logs[next(iter(self.logs))]


@pytest.mark.parametrize("make", [ours, Plain.subject])
def test_idle_users_are_forgotten(make: Make) -> None:
    check_forgets_the_idle(make)


@pytest.mark.parametrize("make", [ours, Plain.subject])
@pytest.mark.parametrize("each", [1, LIMIT])
def test_exhausted_user_is_not_forgotten(make: Make, each: int) -> None:
    check_remembers_the_guilty(make, each)


def test_planted_bugs_are_found() -> None:
    with pytest.raises(AssertionError, match="for ever"):
        check_forgets_the_idle(NeverForgets.subject)
    with pytest.raises(AssertionError, match="washed"):
        check_remembers_the_guilty(ForgetsTheOldest.subject)


def test_table_stays_within_its_bound() -> None:
    subject = ours(max_users=100)
    for n in range(STRANGERS):
        for _ in range(LIMIT):
            subject.ask(f"198.51.{n >> 8}.{n & 255}")
    assert subject.remembered() <= 110, "100 users and a tenth as many neighbourhoods"
