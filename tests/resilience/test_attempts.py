"""Attempts take the breaker's short way where there is nothing to ask, and no shorter one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoglm_throttle.resilience.calls import GuardedAttempt, attempt, attempt_async
from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerCause, BreakerState, Outcome, RemoteBreakerState
from tests.resilience.faces import drive
from tests.resilience.fake_store import FakeStore
from tests.resilience.tripping import Clocked

Try = Callable[[GuardState], GuardedAttempt]


async def _answer() -> int:
    return 7


TRIES: list[Try] = [
    lambda circuit: attempt(circuit, lambda: 7, (), {}),
    lambda circuit: drive(attempt_async(circuit, _answer, (), {})),
]


@pytest.fixture(params=TRIES, ids=["sync", "async"])
def tried(request: pytest.FixtureRequest) -> Try:
    """The one and the other."""
    found: Try = request.param
    return found


def test_each_is_counted_and_gives_its_value(tried: Try) -> None:
    circuit = Clocked()
    for number in (1, 2):
        made = tried(circuit)
        assert (made.value, made.outcome) == (7, Outcome.SUCCESS)
        assert circuit.view().calls == number


def test_no_attempt_before_the_first_fleet_state(tried: Try) -> None:
    store = FakeStore(RemoteBreakerState(7, BreakerState.OPEN, wait_s=4.0))
    rejection = tried(Clocked(store=store)).rejection
    assert rejection is not None
    assert rejection.cause is BreakerCause.REMOTE
    assert store.questions == 1


def test_after_the_first_fleet_state_no_query_is_made(tried: Try) -> None:
    store = FakeStore(None)
    circuit = Clocked(store=store)
    assert [tried(circuit).value for _ in range(3)] == [7, 7, 7]
    assert store.questions == 1


def test_a_success_ends_a_streak_of_failures(tried: Try) -> None:
    circuit = Clocked(BreakerSettings(failures=2))
    circuit.record(circuit.fast.permit or pytest.fail("closed"), Outcome.FAILURE)
    tried(circuit)
    assert circuit.view().streak == 0


def test_classified_value_is_never_taken_for_a_success(tried: Try) -> None:
    circuit = Clocked(classifier=OutcomeClassifier(classify=lambda _: Outcome.FAILURE))
    assert tried(circuit).outcome is Outcome.FAILURE
    assert circuit.state() is BreakerState.OPEN
