"""Rates from counters between two measurements: plausible, or None."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.aggregate import LEAST_GAP_S, RATES, rates
from autoglm_throttle.gpu.sanity import RANGES
from autoglm_throttle.types import GpuSample

COUNTERS = {
    "nvlink_rx_bytes": "nvlink_rx_bps",
    "nvlink_tx_bytes": "nvlink_tx_bps",
    "pcie_rx_bytes": "pcie_rx_bps",
    "pcie_tx_bytes": "pcie_tx_bps",
    "tokens_total": "tokens_per_s",
    "preemptions_total": "preemptions_per_s",
    "energy_j": "power_mean_w",
}


def row(**values: Any) -> GpuSample:
    return GpuSample(device="GPU-a", index=0, taken_at_s=1.0, source="test", **values)


@pytest.mark.parametrize(("counter", "rate"), COUNTERS.items())
def test_a_rate_is_the_difference_over_the_time(counter: str, rate: str) -> None:
    assert rates(row(**{counter: 1000}), row(**{counter: 1500}), 2.0) == {rate: 250.0}
    assert rates(row(**{counter: 1000}), row(**{counter: 1000}), 2.0) == {rate: 0.0}


@pytest.mark.parametrize(("counter", "rate"), COUNTERS.items())
def test_rates_of_the_source_are_kept(counter: str, rate: str) -> None:
    assert rates(row(**{counter: 1000}), row(**{counter: 1500, rate: 7.0}), 2.0) == {}


@pytest.mark.parametrize("counter", [*COUNTERS, "throttled_ns"])
def test_first_row_short_gap_or_unknown_counter_gives_no_rate(counter: str) -> None:
    known, unknown = row(**{counter: 1000}), row()
    assert rates(None, known, 1.0) == {}
    assert rates(known, row(**{counter: 1001}), LEAST_GAP_S - 0.001) == {}
    assert rates(unknown, known, 1.0) == rates(known, unknown, 1.0) == {}
    assert rates(known, row(**{counter: 999}), 1.0) == {}, "it began anew"
    assert rates(known, row(**{counter: 1001}), LEAST_GAP_S) != {}


def test_a_difference_that_cannot_be_is_not_believed() -> None:
    assert rates(row(energy_j=0.0), row(energy_j=5001.0), 1.0) == {}
    assert rates(row(pcie_rx_bytes=0), row(pcie_rx_bytes=2 * 10**12), 1.0) == {}


def test_power_is_from_energy_counter_or_sensor() -> None:
    before, after = row(energy_j=1000.0, power_w=90.0), row(energy_j=1300.0, power_w=100.0)
    assert rates(before, after, 1.0) == {"power_mean_w": 300.0}
    assert rates(after, before, 1.0) == {"power_mean_w": 90.0}, "the counter began anew"
    assert rates(None, before, 0.0) == {"power_mean_w": 90.0}
    assert rates(row(), row(power_w=70.0), 1.0) == {"power_mean_w": 70.0}
    assert rates(None, row(power_w=70.0, power_mean_w=65.0), 1.0) == {}


@pytest.mark.parametrize(("grown_ns", "ratio"), [(0, 0.0), (5 * 10**8, 0.5), (10**9, 1.0), (4 * 10**9, 1.0)])
def test_the_time_slowed_down_is_a_share_and_at_most_all_of_it(grown_ns: int, ratio: float) -> None:
    before, after = row(throttled_ns=7), row(throttled_ns=7 + grown_ns)
    assert rates(before, after, 1.0) == {"throttled_ratio": ratio}


def test_impossible_throttled_time_is_rejected() -> None:
    assert rates(row(throttled_ns=0), row(throttled_ns=5 * 10**9), 1.0) == {}


ANY = st.none() | st.integers(0, 2**63)
COUNTS = st.fixed_dictionaries(
    dict.fromkeys([*(name for name in COUNTERS if name != "energy_j"), "throttled_ns"], ANY)
)


@given(COUNTS, COUNTS, st.floats(0.0, 1e6))
def test_whatever_the_counters_do_no_rate_is_negative_or_huge(
    before: dict[str, Any], after: dict[str, Any], gap_s: float
) -> None:
    found = rates(row(**before), row(**after), gap_s)
    assert found.keys() <= set(RATES)
    for name, value in found.items():
        low, high = RANGES[name]
        assert low <= value <= high
    for counter, value in before.items():
        if value is None or after[counter] is None or after[counter] < value:
            assert COUNTERS.get(counter, "throttled_ratio") not in found
