"""Several devices as one value: a lost device never looks idle."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.sanity import lost as make_lost
from autoglm_throttle.types import AggregateMode, GpuSample
from tests.gpu.reported import GIB, PERCENT, aggregator, device, lost, report


def test_no_device_is_no_capacity_missing_and_nothing_known() -> None:
    view = aggregator(AggregateMode.WEIGHTED).update([], 7.0)
    assert (view.taken_at_s, view.capacity, view.devices) == (7.0, 1.0, ())
    assert view.utilization_pct is view.utilization_max_pct is view.memory_ratio is view.power_ratio is None


@pytest.mark.parametrize(
    ("how", "expected"),
    [(AggregateMode.WEIGHTED, 90.0), (AggregateMode.MEAN, 75.0), (AggregateMode.MAX, 100.0)],
)
def test_utilization_by_each_way(how: AggregateMode, expected: float) -> None:
    view = aggregator(how).update([device(0, 100.0, memory=80 * GIB), device(1, 50.0, memory=20 * GIB)], 1.0)
    assert view.utilization_pct == expected
    assert view.utilization_max_pct == 100.0


def test_weights_are_equal_as_soon_as_one_memory_is_unknown() -> None:
    view = aggregator(AggregateMode.WEIGHTED).update([device(0, 100.0), device(1, 50.0, memory=None)], 1.0)
    assert view.utilization_pct == 75.0


def test_an_unknown_utilization_is_left_out_and_not_read_as_zero() -> None:
    for how in AggregateMode:
        assert aggregator(how).update([device(0, 90.0), device(1, None)], 1.0).utilization_pct == 90.0


def test_lost_device_leaves_mean_and_lowers_capacity() -> None:
    fleet = aggregator(AggregateMode.WEIGHTED)
    fleet.update([device(0, 90.0, memory=60 * GIB), device(1, 90.0, memory=20 * GIB)], 1.0)
    view = fleet.update([device(0, 90.0, memory=60 * GIB), lost(1)], 2.0)
    assert (view.utilization_pct, view.capacity) == (90.0, 0.75)


def test_a_vanished_device_is_lost_until_a_row_comes_again() -> None:
    fleet = aggregator(AggregateMode.WEIGHTED)
    fleet.update([device(0), device(1, used=GIB, power_w=100.0)], 1.0)
    view = fleet.update([device(0)], 2.0)
    gone = view.devices[1]
    assert view.capacity == 0.5
    assert (gone.device, gone.health, gone.utilization_pct, gone.memory_total_bytes) == (
        "GPU-1",
        "lost",
        None,
        None,
    )
    assert "vanished" in gone.notes[0]
    assert fleet.update([device(0)], 3.0).devices[1] is gone
    assert fleet.update([device(0), device(1)], 4.0).capacity == 1.0


def test_a_degraded_device_is_still_usable() -> None:
    view = aggregator(AggregateMode.MEAN).update([replace(device(0, 40.0), health="degraded")], 1.0)
    assert (view.utilization_pct, view.capacity) == (40.0, 1.0)


def test_all_lost_is_known_now_and_has_no_capacity() -> None:
    fleet = aggregator(AggregateMode.WEIGHTED)
    fleet.update([device(0)], 1.0)
    view = fleet.update([lost(0, at=5.0)], 5.1)
    assert (view.capacity, view.utilization_pct, view.taken_at_s) == (0.0, None, 5.0)


def test_time_is_that_of_the_newest_usable_row() -> None:
    view = aggregator(AggregateMode.MEAN).update([device(0, at=3.0), device(1, at=4.0), lost(2, at=9.0)], 9.0)
    assert view.taken_at_s == 4.0


def test_memory_and_power_are_those_of_the_fullest_and_hottest() -> None:
    rows = [device(0, used=8 * GIB, power_w=630.0), device(1, used=60 * GIB, power_w=70.0), device(2)]
    view = aggregator(AggregateMode.MEAN).update(rows, 1.0)
    assert (view.memory_ratio, view.power_ratio) == (0.75, 0.9)


def test_a_total_of_zero_is_no_weight_and_no_divisor() -> None:
    view = aggregator(AggregateMode.WEIGHTED).update([device(0, memory=0, used=0), device(1)], 1.0)
    assert (view.capacity, view.memory_ratio, view.utilization_pct) == (1.0, None, 50.0)


def test_of_two_rows_of_one_device_the_newer_counts() -> None:
    for rows in (
        [device(0, 10.0, at=1.0), device(0, 90.0, at=2.0)],
        [device(0, 90.0, at=2.0), device(0, 10.0, at=1.0)],
    ):
        assert aggregator(AggregateMode.MEAN).update(rows, 2.0).utilization_pct == 90.0


def test_the_same_name_on_two_hosts_is_two_devices() -> None:
    view = aggregator(AggregateMode.MEAN).update([device(0), replace(device(0), host="b")], 1.0)
    assert len(view.devices) == 2


def test_a_device_of_another_host_without_a_row_is_forgotten() -> None:
    fleet = aggregator(AggregateMode.WEIGHTED)
    far = replace(device(0, 10.0), host="b")
    fleet.update([device(0, 90.0), far], 1.0)
    assert fleet.update([device(0, 90.0), lost_of(far)], 2.0).capacity == 0.5
    view = fleet.update([device(0, 90.0)], 3.0)
    assert (view.capacity, view.utilization_pct, len(view.devices)) == (1.0, 90.0, 1)


def test_a_row_that_is_lost_stays_as_it_is() -> None:
    gone = lost(0)
    assert lost_of(gone) is gone


def lost_of(row: GpuSample) -> GpuSample:
    return make_lost(row, "silent")


def test_one_of_four_lost_leaves_three_quarters() -> None:
    fleet = aggregator(AggregateMode.WEIGHTED)
    fleet.update([report("nvml", n, utilization_pct=90.0) for n in range(4)], 1.0)
    view = fleet.update([report("nvml", n, at=2.0, utilization_pct=90.0) for n in range(3)], 2.0)
    assert (view.capacity, view.utilization_pct) == (0.75, 90.0)
    assert sum(view.weights.values()) == 1.0


FLEETS = st.lists(st.tuples(PERCENT, st.none() | st.integers(1, 2**40)), min_size=1, max_size=8)


def fleet_rows(fleet: list[tuple[float | None, int | None]]) -> list[GpuSample]:
    return [device(index, pct, memory=memory, used=memory) for index, (pct, memory) in enumerate(fleet)]


@given(FLEETS, st.sampled_from(AggregateMode), st.data())
def test_losing_a_device_never_raises_capacity(
    fleet: list[tuple[float | None, int | None]], how: AggregateMode, data: st.DataObject
) -> None:
    rows = fleet_rows(fleet)
    combined = aggregator(how)
    capacity = combined.update(rows, 1.0).capacity
    assert capacity == 1.0
    reported_lost: list[GpuSample] = []
    for index in data.draw(st.permutations(range(len(rows)))):
        rows = [row for row in rows if row.index != index]
        if data.draw(st.booleans()):  # the others vanish without a word
            reported_lost.append(lost(index))
        view = combined.update([*rows, *reported_lost], 2.0)
        assert view.capacity < capacity
        capacity = view.capacity
    assert capacity == 0.0


@given(FLEETS, st.sampled_from(AggregateMode), st.data())
def test_the_order_of_rows_changes_nothing(
    fleet: list[tuple[float | None, int | None]], how: AggregateMode, data: st.DataObject
) -> None:
    rows = fleet_rows(fleet)
    shuffled = data.draw(st.permutations(rows))
    assert aggregator(how).update(rows, 1.0) == aggregator(how).update(shuffled, 1.0)


@given(FLEETS, st.sampled_from(AggregateMode))
def test_utilization_is_between_known_extremes(
    fleet: list[tuple[float | None, int | None]], how: AggregateMode
) -> None:
    view = aggregator(how).update(fleet_rows(fleet), 1.0)
    known = [pct for pct, _ in fleet if pct is not None]
    if not known:
        assert view.utilization_pct is None
    else:
        assert view.utilization_pct is not None
        assert min(known) - 1e-9 <= view.utilization_pct <= max(known)
