"""The level of a running process: sampling of the load, and notification of changes."""

from __future__ import annotations

import threading

import pytest

from autoglm_throttle.resilience.degradation import DegradationController
from autoglm_throttle.resilience.fallback import DegradationAction, Fallback, Feature
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from autoglm_throttle.types import Criticality, DegradationLevel

FULL, SHED, STALE, STATIC = (
    DegradationLevel.FULL,
    DegradationLevel.SHED,
    DegradationLevel.STALE,
    DegradationLevel.STATIC,
)
FOR_S = 60.0
AT_ONCE = DegradationSettings(samples=1)
"""A single sample changes the level."""


class Watched:
    """A degradation with a load and a clock by hand."""

    def __init__(self, samples: int = 1) -> None:
        self.now = 50.0
        self.load: float | None = 0.1
        self.requested = 0
        self.changes: list[tuple[DegradationLevel, DegradationLevel, float | None]] = []
        rules = DegradationSettings(samples=samples)
        self.degradation = DegradationController(rules, self.pull, 1.0, lambda: self.now, self.notified)

    def pull(self) -> float | None:
        """Give the load."""
        self.requested += 1
        return self.load

    def notified(self, *change: object) -> None:
        """Note a change."""
        self.changes.append(change)  # type: ignore[arg-type]


def test_load_is_sampled_once_per_interval() -> None:
    watched = Watched()
    for step in range(40):
        watched.now = 50.0 + step / 10
        watched.degradation.level()
    assert watched.requested == 4


def test_the_first_question_is_a_sample() -> None:
    watched = Watched()
    watched.load = 0.91
    assert watched.degradation.level() is STALE


def test_slightly_early_tick_samples() -> None:
    watched = Watched()
    for now in (50.0, 50.95, 51.99, 52.94):
        watched.now = now
        watched.degradation.poll()
    assert watched.requested == 4
    watched.now = 53.5
    watched.degradation.poll()
    assert watched.requested == 4


def test_a_clock_that_steps_back_does_not_stop_the_sampling() -> None:
    watched = Watched()
    watched.degradation.level()
    watched.now = 10.0
    watched.load = 0.99
    assert watched.degradation.level() is STATIC
    watched.now = 5.0
    watched.degradation.poll()
    assert watched.requested == 3


def test_change_is_reported_once() -> None:
    watched = Watched()
    for load in (0.1, 0.85, 0.85, 0.99, 0.1, None, None, None, None):
        watched.load = load
        watched.degradation.level()
        watched.degradation.poll()
        watched.now += 1.0
    assert watched.changes == [(FULL, SHED, 0.85), (SHED, STATIC, 0.99), (STATIC, FULL, 0.1)]


def test_an_unknown_load_ends_the_level() -> None:
    watched = Watched()
    watched.load = 0.99
    watched.degradation.level()
    watched.load = None
    for _ in range(4):
        watched.now += 1.0
        watched.degradation.level()
    assert watched.changes == [(FULL, STATIC, 0.99), (STATIC, FULL, None)]


def test_level_expires_without_calls() -> None:
    watched = Watched(samples=2)
    for load in (0.99, 0.99):
        watched.load = load
        watched.degradation.level()
        watched.now += 1.0
    assert watched.changes[-1][1] is STATIC
    watched.now += 100.0
    assert watched.degradation.level() is FULL


def test_a_load_that_cannot_be_read_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()

    def broken() -> float | None:
        raise OSError("away")

    degradation = DegradationController(AT_ONCE, broken, 1.0, lambda: watched.now, watched.notified)
    for _ in range(3):
        assert degradation.level() is FULL
        watched.now += 1.0
    assert caplog.messages == ["degradation: the load could not be read: it counts as unknown"]


def test_an_observer_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()

    def broken(*_: object) -> None:
        raise OSError("away")

    degradation = DegradationController(AT_ONCE, lambda: 0.99, 1.0, lambda: watched.now, broken)
    assert degradation.level() is STATIC
    assert caplog.messages == ["an action that had waited for a lock failed"]


def test_observer_may_query_the_level_and_order_holds() -> None:
    now = 50.0
    loads = iter([0.99, 0.1, 0.1])
    changes: list[tuple[DegradationLevel, DegradationLevel]] = []

    def notified(before: DegradationLevel, after: DegradationLevel, _: float | None) -> None:
        nonlocal now
        now += 1.0
        degradation.level()
        changes.append((before, after))

    degradation = DegradationController(AT_ONCE, lambda: next(loads), 1.0, lambda: now, notified)
    assert degradation.level() is FULL
    assert changes == [(FULL, STATIC), (STATIC, FULL)]


def test_load_function_sees_the_previous_level() -> None:
    seen: list[DegradationLevel] = []

    def load() -> float | None:
        seen.append(degradation.level())
        return 0.99

    degradation = DegradationController(AT_ONCE, load, 1.0, lambda: 50.0, lambda *_: None)
    assert degradation.level() is STATIC
    assert seen == [FULL]


def test_hanging_load_blocks_no_caller_and_is_unknown() -> None:
    now = 50.0
    loads = [0.99]
    begun, go = threading.Event(), threading.Event()

    def load() -> float | None:
        if loads:
            return loads.pop()
        begun.set()
        go.wait(FOR_S)
        return 0.99

    degradation = DegradationController(AT_ONCE, load, 1.0, lambda: now, lambda *_: None)
    assert degradation.level() is STATIC
    now += 1.0
    hanging = threading.Thread(target=degradation.level)
    hanging.start()
    try:
        assert begun.wait(FOR_S)
        levels = []
        for _ in range(3):
            now += 1.0
            levels.append(degradation.level())
        assert levels == [STATIC, STATIC, FULL]
    finally:
        go.set()
        hanging.join(FOR_S)
    assert not hanging.is_alive()
    now += 1.0
    assert degradation.level() is STATIC


def test_change_is_reported_by_one_thread_at_a_time() -> None:
    now = 50.0
    loads = iter([0.99, 0.1])
    begun, go = threading.Event(), threading.Event()
    changes: list[DegradationLevel] = []

    def notified(_: DegradationLevel, after: DegradationLevel, __: float | None) -> None:
        if not changes:
            begun.set()
            go.wait(FOR_S)
        changes.append(after)

    degradation = DegradationController(AT_ONCE, lambda: next(loads), 1.0, lambda: now, notified)
    notifying = threading.Thread(target=degradation.level)
    notifying.start()
    try:
        assert begun.wait(FOR_S)
        now += 1.0
        assert degradation.level() is FULL
        assert changes == []
    finally:
        go.set()
        notifying.join(FOR_S)
    assert changes == [STATIC, FULL]


def test_level_read_amid_an_update_is_the_previous_one() -> None:
    now = 50.0
    seen: list[DegradationLevel] = []

    class Load(float):
        """Reads the level when it is compared with a threshold."""

        def __gt__(self, threshold: float) -> bool:
            nonlocal now
            now += 1.0
            seen.append(degradation.level())
            return float(self) > threshold

    degradation = DegradationController(AT_ONCE, lambda: Load(0.99), 1.0, lambda: now, lambda *_: None)
    assert degradation.level() is STATIC
    assert set(seen) == {FULL}


NON_CORE = Feature("related", Criticality.NON_CORE)
EARLY = Feature("related", Criticality.NON_CORE, shed_above=0.5)
CORE = Feature("answer", Criticality.CORE, Fallback(static=1, stale=True))


@pytest.mark.parametrize(
    ("load", "shed", "choices"),
    [
        (0.1, (False, False), (DegradationAction.SERVE, DegradationAction.SERVE, DegradationAction.SERVE)),
        (0.6, (False, True), (DegradationAction.SERVE, DegradationAction.SHED, DegradationAction.SERVE)),
        (0.85, (True, True), (DegradationAction.SHED, DegradationAction.SHED, DegradationAction.SERVE)),
        (0.92, (True, True), (DegradationAction.SHED, DegradationAction.SHED, DegradationAction.STALE)),
        (0.99, (True, True), (DegradationAction.SHED, DegradationAction.SHED, DegradationAction.STATIC)),
    ],
)
def test_load_selects_the_action_for_each_feature(
    load: float, shed: tuple[bool, bool], choices: tuple[DegradationAction, ...]
) -> None:
    watched = Watched()
    watched.load = load
    degradation = watched.degradation
    degradation.register(EARLY)
    degradation.register(NON_CORE)
    assert (degradation.sheds(NON_CORE), degradation.sheds(EARLY)) == shed
    assert not degradation.sheds(CORE)
    watched.now += 2.0
    assert tuple(degradation.action(feature, True) for feature in (NON_CORE, EARLY, CORE)) == choices


def test_the_choice_for_a_core_feature_samples_the_load_too() -> None:
    watched = Watched()
    watched.load = 0.99
    assert watched.degradation.action(CORE, False) is DegradationAction.STATIC


def test_threshold_above_every_load_is_invalid() -> None:
    with pytest.raises(ValueError, match="above the margin"):
        Watched().degradation.register(Feature("related", Criticality.NON_CORE, shed_above=0.05))


def test_shed_feature_returns_after_the_configured_samples() -> None:
    assert Watched(samples=3).degradation.retry_after_s == 3.0


def test_the_view_takes_no_sample() -> None:
    watched = Watched()
    assert watched.degradation.view() == (DegradationLevel.FULL, None)
    assert watched.requested == 0
    watched.degradation.level()
    assert watched.degradation.view() == (DegradationLevel.FULL, 0.1)
