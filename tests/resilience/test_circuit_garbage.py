"""The garbage collector, or a signal handler, may end a stream in the midst of anything the circuit does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from autoglm_throttle.resilience import (
    breaker,
    failure_stats,
    guard_state,
    half_open_probes,
    half_open_slots,
    notification_queue,
    ramp,
    thread_safe_breaker,
    window,
)
from autoglm_throttle.resilience.breaker_rules import BreakerRules
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerView,
    GuardPermit,
    GuardRejection,
    Outcome,
)
from tests.gc_control import Collector
from tests.resilience.tripping import Clocked, Told, half_open, passed

WATCHED = {
    str(module.__file__)
    for module in (
        breaker,
        guard_state,
        notification_queue,
        failure_stats,
        thread_safe_breaker,
        half_open_slots,
        ramp,
        half_open_probes,
        window,
    )
}


class Scene:
    """A half-open circuit with one trial that nobody reads any more, one that goes on, and room for two."""

    def __init__(self) -> None:
        self.told = Told()
        self.circuit: Clocked = half_open(BreakerRules(failures=1, half_open_max=4), on_transitions=self.told)
        self.forgotten = passed(self.circuit.allow())
        self.running = passed(self.circuit.allow())

    def collect(self) -> None:
        self.circuit.record(self.forgotten, Outcome.NEUTRAL)

    def seen(self) -> tuple[BreakerView, list[object]]:
        view = self.circuit.view()
        return replace(view, stale_results=0), [(change.before, change.after) for change in self.told.changes]


def enter(scene: Scene) -> None:
    passed(scene.circuit.allow())


def overfill(scene: Scene) -> None:
    """One more than there is room for, if nobody leaves."""
    for _ in range(2):
        passed(scene.circuit.allow())


def win(scene: Scene) -> None:
    scene.circuit.record(scene.running, Outcome.SUCCESS)


def lose(scene: Scene) -> None:
    scene.circuit.record(scene.running, Outcome.FAILURE, "it fails")
    scene.circuit.allow()


def expire(scene: Scene) -> None:
    scene.circuit.clock.advance(30.0)
    scene.circuit.allow()


def reset(scene: Scene) -> None:
    scene.circuit.reset()


def look(scene: Scene) -> None:
    scene.circuit.view()
    scene.circuit.state()
    scene.circuit.rejection()


ACTS: list[Callable[[Scene], None]] = [enter, overfill, win, lose, expire, reset, look]


@pytest.mark.untraced
@pytest.mark.parametrize("act", ACTS)
def test_whatever_is_collected_counts_before_or_after_but_never_between(act: Callable[[Scene], None]) -> None:
    orders = []
    for first, then in ((Scene.collect, act), (act, Scene.collect)):
        scene = Scene()
        first(scene)
        then(scene)
        orders.append(scene.seen())
    moment = 0
    while True:
        moment += 1
        scene = Scene()
        collector = Collector(scene.collect, moment, WATCHED)
        collector.watch(partial(act, scene))
        if collector.seen < moment:
            break
        assert scene.seen() in orders
        assert scene.circuit.view().probes <= 4
    assert moment > 5


def ask(scene: Scene, answers: list[GuardPermit | GuardRejection]) -> None:
    answers.append(scene.circuit.allow())


@pytest.mark.untraced
@pytest.mark.parametrize("act", [win, lose, reset, expire])
def test_call_during_a_transition_is_rejected_or_correct(act: Callable[[Scene], None]) -> None:
    busy = GuardRejection("db", BreakerState.HALF_OPEN, BreakerCause.IN_FLIGHT, 0.0)
    answers: list[GuardPermit | GuardRejection] = []
    moment = 0
    while True:
        moment += 1
        scene = Scene()
        collector = Collector(partial(ask, scene, answers), moment, WATCHED)
        collector.watch(partial(act, scene))
        if collector.seen < moment:
            break
        assert scene.circuit.view().probes <= 4
    assert busy in answers
