"""Verdicts and readiness of the published cases: each as labelled, and no hang that is none."""

from __future__ import annotations

import pytest

from autoglm_throttle.control.signal import effect
from autoglm_throttle.types import GpuCondition
from tests.gpu.cases.published import HANGS, PUBLISHED_CASES
from tests.gpu.cases.replay_case import Case, Player, labels
from tests.gpu.cases.table import CASES


@pytest.mark.parametrize("case", PUBLISHED_CASES, ids=lambda case: case.name)
def test_published_case_is_judged_as_labelled(case: Case) -> None:
    player = Player()
    for number, phase in enumerate(case.phases):
        seen = player.play(phase)
        assert labels(seen) == phase.labels, f"{case.origin}, phase {number}: {seen.verdicts}"
        # FIELD 13: one device that spins beside seven at 0 % is a hung service.
        assert effect(seen).stalled is (case in HANGS and GpuCondition.STALLED in phase.labels)


@pytest.mark.parametrize("case", [*CASES, *PUBLISHED_CASES], ids=lambda case: case.name)
def test_no_hang_is_invented(case: Case) -> None:
    """No second of any case is called stalled before a phase that is labelled so."""
    player = Player()
    expected: set[GpuCondition] = set()
    for phase in case.phases:
        expected |= set(phase.labels)
        found = {label for seen in player.seconds(phase) for label in labels(seen)}
        assert GpuCondition.STALLED not in found - expected, case.origin


def test_every_case_names_its_source_once() -> None:
    assert len({case.name for case in PUBLISHED_CASES}) == len(PUBLISHED_CASES)
    assert all(len(case.origin) > 20 for case in PUBLISHED_CASES)
