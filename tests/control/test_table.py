"""The tier table: strict edges, and the highest one below the signal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.tiers import tier_factor
from autoglm_throttle.settings.groups.control import ControlSettings


@pytest.mark.parametrize(
    ("signal_pct", "factor"),
    [
        (0.0, 1.0),
        (85.0, 1.0),
        (math.nextafter(85.0, 100.0), 0.7),
        (90.0, 0.7),
        (math.nextafter(90.0, 100.0), 0.4),
        (95.0, 0.4),
        (math.nextafter(95.0, 100.0), 0.0),
        (100.0, 0.0),
        (105.0, 0.0),
    ],
)
def test_an_edge_is_not_above_itself(signal_pct: float, factor: float) -> None:
    assert tier_factor(ControlSettings().tiers, signal_pct) == factor


def test_the_founding_table_is_the_default() -> None:
    assert ControlSettings().tiers == ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0))


@given(
    edges=st.lists(st.integers(0, 100), min_size=1, max_size=6, unique=True).map(sorted),
    data=st.data(),
    signals=st.tuples(st.floats(0, 100), st.floats(0, 100)),
)
def test_more_load_never_leaves_more(
    edges: list[int], data: st.DataObject, signals: tuple[float, float]
) -> None:
    size = len(edges)
    drawn = data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size, unique=True))
    table = tuple(
        (float(edge), factor) for edge, factor in zip(edges, sorted(drawn, reverse=True), strict=True)
    )
    calm, busy = sorted(signals)
    assert tier_factor(table, busy) <= tier_factor(table, calm)
    assert tier_factor(table, float(edges[0])) == 1.0
    assert tier_factor(table, 101.0) == min(drawn)
