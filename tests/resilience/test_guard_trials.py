"""A trial, and its three ends, on every face."""

from __future__ import annotations

import asyncio

import pytest

from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState, GuardRejected
from tests.resilience.faces import FACES, Act
from tests.resilience.tripping import Clocked, half_open


def answers() -> str:
    return "an answer"


def breaks() -> None:
    raise ConnectionError


def is_cancelled() -> None:
    raise asyncio.CancelledError


ENDS: dict[Act, tuple[type[BaseException] | None, BreakerState]] = {
    answers: (None, BreakerState.CLOSED),
    breaks: (ConnectionError, BreakerState.OPEN),
    is_cancelled: (asyncio.CancelledError, BreakerState.HALF_OPEN),
}


def call(circuit: Clocked, face: str, act: Act) -> type[BaseException] | None:
    try:
        FACES[face](circuit, act)
    except BaseException as error:  # noqa: BLE001 - whatever the face lets out
        return type(error)
    return None


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("act", ENDS)
def test_each_end_of_a_probe(face: str, act: Act) -> None:
    raised, state = ENDS[act]
    circuit = half_open()
    assert call(circuit, face, act) is raised
    assert circuit.state() is state
    assert circuit.view().probes == 0


@pytest.mark.parametrize("face", FACES)
def test_others_are_rejected_during_a_probe(face: str) -> None:
    circuit = half_open()
    others: list[type[BaseException] | None] = []

    def meanwhile() -> None:
        others.append(call(circuit, "block", answers))
        others.append(call(circuit, "coroutine", answers))

    assert call(circuit, face, meanwhile) is None
    assert others == [GuardRejected, GuardRejected]
    assert circuit.state() is BreakerState.CLOSED


@pytest.mark.parametrize("face", FACES)
def test_slow_probe_has_failed(face: str) -> None:
    circuit = half_open(BreakerSettings(failures=1, slow_call_s=0.5))
    assert call(circuit, face, lambda: circuit.clock.advance(0.6)) is None
    stream = "generator" in face
    assert circuit.state() is (BreakerState.CLOSED if stream else BreakerState.OPEN)


@pytest.mark.parametrize("face", FACES)
def test_a_call_from_before_the_opening_changes_nothing_after_it(face: str) -> None:
    circuit = Clocked()

    def outlived() -> None:
        assert call(circuit, "function", breaks) is ConnectionError
        circuit.clock.advance(4.0)

    assert call(circuit, face, outlived) is None
    assert circuit.state() is BreakerState.OPEN
    assert circuit.view().retry_after_s == 6.0
    assert circuit.view().stale_results == 1


@pytest.mark.parametrize("face", FACES)
def test_a_disabled_guard_lets_all_through_and_counts_nothing(face: str) -> None:
    circuit = half_open()
    circuit.breaker.operate(BreakerEvent.DISABLE)
    for _ in range(3):
        assert call(circuit, face, breaks) is ConnectionError
    assert circuit.state() is BreakerState.DISABLED


@pytest.mark.parametrize("face", FACES)
def test_metrics_only_rejects_nothing(face: str) -> None:
    circuit = Clocked()
    circuit.breaker.operate(BreakerEvent.METRICS_ONLY)
    for _ in range(3):
        assert call(circuit, face, breaks) is ConnectionError
    assert circuit.view().would_reject == 2
    assert circuit.view().state is BreakerState.OPEN
