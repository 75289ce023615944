"""Copies of rows equal those of `dataclasses.replace`, and the original is unchanged."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, astuple, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.sanity import changed, lost
from autoglm_throttle.types import GpuSample

ROW = GpuSample(
    device="GPU-1", index=1, taken_at_s=5.0, source="nvml", host="a", notes=("one",), utilization_pct=3.0
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "device": st.text(),
        "age_s": st.floats(0.0, 9.0),
        "utilization_pct": st.none() | st.floats(0.0, 100.0),
        "power_mean_w": st.floats(0.0, 900.0),
        "preemptions_per_s": st.floats(0.0, 9.0),
    },
)


@given(CHANGES)
def test_a_copy_has_the_changes_and_all_the_rest(changes: dict[str, Any]) -> None:
    before = astuple(ROW)
    copy = changed(ROW, changes)
    assert copy == replace(ROW, **changes)
    assert copy is not ROW
    assert astuple(ROW) == before


def test_a_copy_is_as_frozen_as_its_row() -> None:
    with pytest.raises(FrozenInstanceError):
        changed(ROW, {"index": 2}).index = 3  # type: ignore[misc]


def test_there_is_no_other_field() -> None:
    with pytest.raises(KeyError, match="utilisation"):
        changed(ROW, {"utilisation": 3.0})


def test_nothing_is_known_of_a_lost_device() -> None:
    gone = lost(ROW, "fell off the bus")
    assert (gone.device, gone.health, gone.notes) == ("GPU-1", "lost", ("fell off the bus",))
    assert gone.utilization_pct is None
    assert lost(gone, "again") is gone
