"""The degradation levels step by step, and their effects on a feature."""

from __future__ import annotations

import math

import pytest

from autoglm_throttle.resilience.degradation import (
    DegradationController,
    DegradationLevels,
)
from autoglm_throttle.resilience.fallback import DegradationAction, Fallback, Feature
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from autoglm_throttle.types import Criticality, DegradationLevel

FULL, SHED, STALE, STATIC = (
    DegradationLevel.FULL,
    DegradationLevel.SHED,
    DegradationLevel.STALE,
    DegradationLevel.STATIC,
)


def climbed(loads: list[float | None], rules: DegradationSettings | None = None) -> list[DegradationLevel]:
    """The levels after samples one second apart."""
    ladder = DegradationLevels(rules or DegradationSettings(), 0.0)
    return [ladder.observe(load, float(second)) for second, load in enumerate(loads)]


@pytest.mark.parametrize(
    ("loads", "levels"),
    [
        ([0.81, 0.81, 0.81], [FULL, FULL, SHED]),
        ([0.80, 0.80, 0.80, 0.80], [FULL] * 4),
        ([0.90, 0.90, 0.90], [FULL, FULL, SHED]),
        ([0.95, 0.95, 0.95], [FULL, FULL, STALE]),
        ([0.96, 0.96, 0.96], [FULL, FULL, STATIC]),
        ([0.96, 0.96, 0.85], [FULL, FULL, SHED]),
        ([0.96, 0.96, 0.91, 0.96], [FULL, FULL, STALE, STALE]),
        ([0.96, 0.79, 0.96, 0.96, 0.96], [FULL, FULL, FULL, FULL, STATIC]),
        # one of the last three still holds a level: it stays
        ([0.96, 0.96, 0.96, 0.5, 0.5, 0.5], [FULL, FULL, STATIC, STATIC, STATIC, FULL]),
        ([0.96, 0.96, 0.96, 0.5, 0.91, 0.5, 0.5], [FULL, FULL, STATIC, STATIC, STATIC, STATIC, STATIC]),
        ([0.96, 0.96, 0.96, 0.86, 0.86, 0.86], [FULL, FULL, STATIC, STATIC, STATIC, STALE]),
        ([0.81, 0.81, 0.81, 0.75, 0.75, 0.75, 0.75], [FULL, FULL, SHED, SHED, SHED, SHED, SHED]),
        ([0.81, 0.81, 0.81, 0.74, 0.74, 0.74], [FULL, FULL, SHED, SHED, SHED, FULL]),
        # 3 s unknown keep the level, and are no samples; more is the end of it
        ([0.81, 0.81, None, None, 0.81], [FULL, FULL, FULL, FULL, SHED]),
        ([0.81, 0.81, 0.81, None, None, None], [FULL, FULL, SHED, SHED, SHED, SHED]),
        ([0.81, 0.81, 0.81, None, None, None, None], [FULL, FULL, SHED, SHED, SHED, SHED, FULL]),
        ([0.81, 0.81, 0.81, None, None, None, 0.81], [FULL, FULL, SHED, SHED, SHED, SHED, FULL]),
        ([0.81, 0.81, 0.81, math.nan, math.nan, math.nan, math.nan], [FULL, FULL, *[SHED] * 4, FULL]),
        ([9.0, 9.0, math.inf, -1.0, -math.inf, 0.0], [FULL, FULL, STATIC, STATIC, STATIC, FULL]),
    ],
)
def test_level_follows_the_last_three_samples(
    loads: list[float | None], levels: list[DegradationLevel]
) -> None:
    assert climbed(loads) == levels


def test_one_sample_suffices_where_configured() -> None:
    assert climbed([0.96, 0.1, 0.91], DegradationSettings(samples=1)) == [STATIC, FULL, STALE]


def test_samples_with_a_gap_start_anew() -> None:
    ladder = DegradationLevels(DegradationSettings(), 0.0)
    for now in (0.0, 1.0):
        ladder.observe(0.96, now)
    assert ladder.observe(0.96, 4.5) is FULL
    assert tuple(ladder.samples) == (0.96,)
    assert ladder.observe(0.96, 7.5) is FULL  # a gap of just as long is none
    assert ladder.observe(0.96, 8.0) is STATIC


def test_level_with_a_gap_ends_despite_the_next_sample() -> None:
    ladder = DegradationLevels(DegradationSettings(samples=2), 0.0)
    ladder.observe(0.96, 0.0)
    assert ladder.observe(0.96, 1.0) is STATIC
    assert ladder.observe(0.96, 4.1) is FULL


def test_a_clock_that_steps_back_breaks_nothing() -> None:
    ladder = DegradationLevels(DegradationSettings(), 100.0)
    assert [ladder.observe(0.96, now) for now in (100.0, 50.0, 20.0)] == [FULL, FULL, STATIC]
    assert ladder.observe(None, 10.0) is STATIC


def test_level_and_load_are_those_of_the_newest_samples() -> None:
    ladder = DegradationLevels(DegradationSettings(), 5.0)
    assert (ladder.level, ladder.load) == (FULL, None)
    for now in (6.0, 7.0, 8.0, 9.0, 20.0 / 2):
        ladder.observe(0.84, now)
    assert (ladder.level, ladder.load, tuple(ladder.samples)) == (SHED, 0.84, (0.84,) * 3)
    ladder.observe(None, 11.0)
    assert (ladder.level, ladder.load) == (SHED, None)


def test_a_threshold_of_its_own_has_the_same_hysteresis() -> None:
    ladder = DegradationLevels(DegradationSettings(), 0.0)
    ladder.add_threshold(0.6)
    held = []
    loads = [0.6, 0.6, 0.6, 0.61, 0.61, 0.61, 0.56, 0.56, 0.56, 0.54, 0.54, 0.54]
    for second, load in enumerate(loads):
        ladder.observe(load, float(second))
        held.append(ladder.is_above(0.6))
    assert held == [False] * 5 + [True] * 6 + [False]
    assert ladder.level is FULL


def test_later_threshold_uses_existing_samples() -> None:
    ladder = DegradationLevels(DegradationSettings(samples=2), 0.0)
    ladder.add_threshold(0.7)
    assert not ladder.is_above(0.7)
    ladder.observe(0.65, 0.0)
    ladder.add_threshold(0.6)
    assert not ladder.is_above(0.6)
    ladder.observe(0.65, 1.0)
    ladder.add_threshold(0.62)
    ladder.add_threshold(0.6)
    assert (ladder.is_above(0.6), ladder.is_above(0.62), ladder.is_above(0.7)) == (True, True, False)
    assert ladder.level is FULL


def test_watching_once_more_changes_nothing() -> None:
    ladder = DegradationLevels(DegradationSettings(samples=1), 0.0)
    ladder.observe(0.81, 0.0)
    ladder.observe(0.76, 1.0)
    ladder.add_threshold(0.80)
    assert ladder.is_above(0.80)
    assert ladder.observe(0.76, 2.0) is SHED


def test_threshold_above_every_load_is_invalid() -> None:
    ladder = DegradationLevels(DegradationSettings(), 0.0)
    for threshold in (0.05, 0.01, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"above the margin of 0\.05"):
            ladder.add_threshold(threshold)
    with pytest.raises(KeyError):
        ladder.is_above(0.05)


def test_a_margin_of_nothing_is_a_margin() -> None:
    assert climbed([0.81, 0.80, 0.79], DegradationSettings(samples=1, margin=0.0)) == [SHED, SHED, FULL]


BARE = Feature("x", Criticality.CORE)
GIVEN = Feature("x", Criticality.CORE, Fallback(static=1, stale=True))
KEPT = Feature("x", Criticality.CORE, Fallback(stale=True))
COMPUTED = Feature("x", Criticality.CORE, Fallback(dynamic=str))
CHEAP = Feature("x", Criticality.CORE, Fallback(dynamic=str, under_load=True))
LEFT_OUT = Feature("x", Criticality.NON_CORE)
GRADED = Feature("x", Criticality.NON_CORE, Fallback(static=1, stale=True), shed_above=0.99)
EARLY = Feature("x", Criticality.NON_CORE, Fallback(static=1, stale=True), shed_above=0.3)


@pytest.mark.parametrize(
    ("load", "feature", "usable", "choice"),
    [
        (0.50, GIVEN, True, DegradationAction.SERVE),
        (0.85, GIVEN, True, DegradationAction.SERVE),
        (0.92, GIVEN, True, DegradationAction.STALE),
        (0.92, GIVEN, False, DegradationAction.SERVE),
        (0.97, GIVEN, True, DegradationAction.STATIC),
        (0.97, GIVEN, False, DegradationAction.STATIC),
        (0.97, KEPT, True, DegradationAction.STALE),
        (0.97, KEPT, False, DegradationAction.SERVE),
        (0.97, BARE, False, DegradationAction.SERVE),
        (0.97, COMPUTED, False, DegradationAction.SERVE),
        (0.92, CHEAP, False, DegradationAction.SERVE),
        (0.97, CHEAP, False, DegradationAction.STATIC),
        (0.50, LEFT_OUT, True, DegradationAction.SERVE),
        (0.85, LEFT_OUT, True, DegradationAction.SHED),
        (0.92, LEFT_OUT, True, DegradationAction.SHED),
        (0.97, LEFT_OUT, True, DegradationAction.SHED),
        (0.50, EARLY, True, DegradationAction.SHED),
        (0.85, GRADED, True, DegradationAction.SERVE),
        (0.92, GRADED, True, DegradationAction.STALE),
        (0.97, GRADED, False, DegradationAction.STATIC),
        (0.995, GRADED, True, DegradationAction.SHED),
    ],
)
def test_load_selects_the_action_for_a_feature(
    load: float, feature: Feature, usable: bool, choice: DegradationAction
) -> None:
    settings = DegradationSettings(samples=1)
    degradation = DegradationController(settings, lambda: load, 1.0, lambda: 0.0, lambda *_: None)
    degradation.register(feature)
    assert degradation.action(feature, usable) is choice
