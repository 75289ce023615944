"""The terms of the pressure: what each one is, when it is left out, which one decides."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.pressure import NOTHING_KNOWN, PressureGauge, in_force
from autoglm_throttle.model import Signal, Work
from tests.control.views import view

NO_WORK = Work()


@pytest.mark.parametrize(
    ("memory", "work", "value", "term", "terms"),
    [
        (0.46, NO_WORK, 0.5, "memory", {"memory": 0.5}),
        (None, Work(1.0, 2.0), 0.5, "latency", {"latency": 0.5}),
        (0.46, Work(1.5, 2.0), 0.75, "latency", {"memory": 0.5, "latency": 0.75}),
        (0.69, Work(1.0, 2.0), 0.75, "memory", {"memory": 0.75, "latency": 0.5}),
        (0.46, Work(1.0, 2.0), 0.5, "memory", {"memory": 0.5, "latency": 0.5}),
        (0.46, Work(5.0, 2.0), 1.0, "latency", {"memory": 0.5, "latency": 2.5}),
        (0.0, NO_WORK, 0.0, "memory", {"memory": 0.0}),
        (None, Work(0.0, 2.0), 0.0, "latency", {"latency": 0.0}),
    ],
)
def test_the_largest_term_is_the_pressure(
    memory: float | None, work: Work, value: float, term: str, terms: dict[str, float]
) -> None:
    pressure = PressureGauge().measure(view(99.0, memory=memory), work)
    assert pressure.value == pytest.approx(value)
    assert pressure.term == term
    assert pressure.terms == pytest.approx(terms)


@pytest.mark.parametrize("work", [NO_WORK, Work(p95_s=3.0), Work(slo_s=2.0)])
@pytest.mark.parametrize("memory", [None, math.nan, -0.1])
def test_what_is_not_known_is_no_term(memory: float | None, work: Work) -> None:
    assert PressureGauge().measure(view(99.0, memory=memory), work) == NOTHING_KNOWN


@pytest.mark.parametrize(("idle", "told"), [(0.86, True), (0.87, False), (0.95, False)])
def test_memory_that_was_never_free_says_nothing(idle: float, told: bool) -> None:
    gauge = PressureGauge()
    gauge.measure(view(0.0, memory=idle), NO_WORK)
    assert bool(gauge.measure(view(0.0, memory=0.95), NO_WORK).terms) is told


def test_the_lowest_fill_seen_counts_as_idle() -> None:
    gauge = PressureGauge()
    told = [bool(gauge.measure(view(0.0, memory=fill), NO_WORK).terms) for fill in (0.9, 0.5, 0.9)]
    assert told == [False, True, True]


def test_the_target_is_a_setting() -> None:
    gauge = PressureGauge(memory_target=0.5)
    assert gauge.measure(view(0.0, memory=0.25), NO_WORK).value == 0.5
    assert gauge.measure(view(0.0, memory=0.6), NO_WORK).terms == {"memory": 1.2}
    assert PressureGauge(memory_target=0.5).measure(view(0.0, memory=0.45), NO_WORK) == NOTHING_KNOWN


@pytest.mark.parametrize(
    ("wanted", "known"), [(["latency"], {"latency"}), (["memory"], {"memory"}), ([], set())]
)
def test_only_the_wanted_terms_count(wanted: list[str], known: set[str]) -> None:
    pressure = PressureGauge(terms=wanted).measure(view(0.0, memory=0.5), Work(1.0, 2.0))
    assert set(pressure.terms) == known


@pytest.mark.parametrize(
    ("stated", "signal"),
    [
        (Signal.AUTO, Signal.UTILIZATION),
        (Signal.UTILIZATION, Signal.UTILIZATION),
        (Signal.PRESSURE, Signal.PRESSURE),
    ],
)
def test_which_signal_is_in_force(stated: Signal, signal: Signal) -> None:
    assert in_force(stated) is signal


@given(
    fills=st.lists(st.one_of(st.none(), st.floats(0.0, 1.1)), min_size=1, max_size=10),
    p95_s=st.one_of(st.none(), st.floats(0.0, 1e4)),
    slo_s=st.one_of(st.none(), st.floats(0.01, 1e4)),
)
def test_the_table_never_sees_more_than_one(
    fills: list[float | None], p95_s: float | None, slo_s: float | None
) -> None:
    gauge = PressureGauge()
    for fill in fills:
        pressure = gauge.measure(view(50.0, memory=fill), Work(p95_s, slo_s))
        largest = max(pressure.terms.values(), default=None)
        assert pressure.value == (None if largest is None else min(1.0, largest))
        assert pressure.terms.get(pressure.term) == largest
