"""Retries outside the guard: each attempt is a call; a rejection ends them, or states a wait."""

from __future__ import annotations

import pytest
import stamina
import tenacity

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, GuardRejected
from tests.resilience.tripping import Clocked


class Dependency:
    """Fails so many times and works from then on."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def search(self) -> int:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError("not now")
        return 7


def test_each_attempt_is_a_call_of_its_own() -> None:
    circuit, dependency = Clocked(BreakerSettings(failures=3)), Dependency(failures=2)
    search = Guard(circuit)(dependency.search)
    retried = tenacity.retry(stop=tenacity.stop_after_attempt(5), wait=tenacity.wait_none())(search)
    assert retried() == 7
    assert circuit.view().calls == 3


def test_tenacity_stops_at_a_rejection() -> None:
    circuit, dependency = Clocked(BreakerSettings(failures=2)), Dependency(failures=9)
    search = Guard(circuit)(dependency.search)
    retried = tenacity.retry(
        retry=tenacity.retry_if_not_exception_type(GuardRejected),
        stop=tenacity.stop_after_attempt(9),
        wait=tenacity.wait_none(),
        reraise=True,
    )(search)
    with pytest.raises(GuardRejected):
        retried()
    assert dependency.calls == 2
    assert circuit.view().rejected == {"failures": 1}


def test_tenacity_waits_for_retry_after() -> None:
    circuit, dependency = Clocked(BreakerSettings(failures=2)), Dependency(failures=2)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome and state.outcome.exception()
        return error.retry_after_s if isinstance(error, GuardRejected) else 0.0

    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        circuit.clock.advance(seconds)

    search = Guard(circuit)(dependency.search)
    retried = tenacity.retry(wait=wait, stop=tenacity.stop_after_attempt(9), sleep=sleep)(search)
    assert retried() == 7
    assert slept == [0.0, 0.0, 10.0]
    assert circuit.state() is BreakerState.CLOSED


def test_stamina_stops_at_a_rejection() -> None:
    circuit, dependency = Clocked(BreakerSettings(failures=2)), Dependency(failures=9)
    search = Guard(circuit)(dependency.search)

    def worth_it(error: Exception) -> bool:
        return not isinstance(error, GuardRejected)

    with stamina.set_testing(True, attempts=9), pytest.raises(GuardRejected):
        stamina.retry(on=worth_it, attempts=9)(search)()
    assert dependency.calls == 2


def test_stamina_waits_for_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit, dependency = Clocked(BreakerSettings(failures=2)), Dependency(failures=2)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        circuit.clock.advance(seconds)

    monkeypatch.setattr("time.sleep", sleep)

    def wait(error: Exception) -> bool | float:
        return error.retry_after_s if isinstance(error, GuardRejected) else 0.0

    search = Guard(circuit)(dependency.search)
    assert stamina.retry(on=wait, attempts=9, timeout=None)(search)() == 7
    assert slept == [0.0, 0.0, 10.0]
