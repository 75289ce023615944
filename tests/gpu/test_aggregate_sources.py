"""Devices that several sources report: one device, the fields of each source, their order and their age."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.types import AggregateMode, GpuSample
from tests.gpu.reported import GIB, PERCENT, UUIDS, aggregator, device, lost, report


def engine(device: str = "h:1#0", *, at: float = 1.0, **values: Any) -> GpuSample:
    named = {"device": device, "index": 0, "taken_at_s": at, "source": "vllm", "kind": "engine"}
    return GpuSample(**{**named, **values})


def test_sources_report_separate_fields() -> None:
    fleet = aggregator(AggregateMode.MEAN)
    fleet.update([device(0, 90.0)], 1.0, source="nvml")
    fleet.update([replace(device(1, 30.0), source="dcgm")], 1.0, source="dcgm")
    view = fleet.update([device(0, 70.0, at=2.0)], 2.0, source="nvml")
    assert (view.utilization_pct, view.capacity, len(view.devices)) == (50.0, 1.0, 2)
    assert fleet.update([], 3.0, source="nvml").capacity == 0.5
    assert len(fleet.update([], 3.0).devices) == 2, "nobody's reading is nobody's"
    assert fleet.update([], 3.0, source="dcgm").capacity == 0.0


def test_a_reading_without_a_name_is_that_of_this_hosts_rows() -> None:
    far = replace(device(0), host="b", source="a-fleet")
    fleet = aggregator(AggregateMode.MEAN)
    for rows in ([device(0), far], [far, device(0)], [device(0)]):
        assert len(fleet.update(rows, 1.0).devices) == len(rows)
    gateway = aggregator(AggregateMode.MEAN)
    gateway.update([far], 1.0)
    assert gateway.update([], 2.0).devices == ()


def test_device_of_two_sources_is_one() -> None:
    fleet = aggregator(AggregateMode.WEIGHTED, order=("nvml", "dcgm:h:1"))
    fleet.update(
        [report("dcgm", host="node", utilization_pct=10.0, sm_active_ratio=0.3)], 1.0, source="dcgm:h:1"
    )
    view = fleet.update([report("nvml", utilization_pct=90.0)], 1.0, source="nvml")
    (row,) = view.devices
    assert (row.host, row.utilization_pct, row.sm_active_ratio) == ("", 90.0, 0.3)
    assert view.weights == {("", UUIDS[0]): 1.0}


def test_mig_instance_of_two_sources_is_one() -> None:
    part: dict[str, Any] = {"kind": "mig", "gpu_instance": f"{UUIDS[0]}/3", "memory_total_bytes": 40 * GIB}
    driver = report("nvml", device=UUIDS[0].replace("GPU", "MIG"), graphics_active_ratio=0.9, **part)
    scraped = report("dcgm:h:1", device=f"{UUIDS[0]}/3", host="node", tensor_active_ratio=0.3, **part)
    fleet = aggregator(AggregateMode.WEIGHTED, order=("nvml", "dcgm:h:1"))
    fleet.update([scraped], 1.0, source="dcgm:h:1")
    view = fleet.update([driver], 1.0, source="nvml")
    (row,) = view.devices
    assert (row.device, row.host, row.gpu_instance) == (driver.device, "", driver.gpu_instance)
    assert (row.graphics_active_ratio, row.tensor_active_ratio, view.utilization_pct) == (0.9, 0.3, 90.0)
    assert view.weights == {("", driver.device): 1.0}


def test_compute_instances_of_one_part_are_not_joined() -> None:
    both = [
        report(
            "nvml", index, device=UUIDS[index].replace("GPU", "MIG"), kind="mig", graphics_active_ratio=0.9
        )
        for index in (0, 1)
    ]
    part = f"{UUIDS[0]}/3"
    fleet = aggregator(AggregateMode.MEAN)
    fleet.update([report("dcgm", device=part, gpu_instance=part, kind="mig")], 1.0, source="dcgm")
    assert len(fleet.update(both, 1.0, source="nvml").devices) == 3


def test_order_decides_and_unlisted_sources_come_last() -> None:
    for order, expected in (
        (("b", "a"), 2.0), (("a", "b", "a"), 1.0), ((), 1.0), (("c",), 3.0), (("b", "c"), 2.0), (("z",), 1.0)
    ):  # fmt: skip
        fleet = aggregator(AggregateMode.MEAN, order=order)
        for name, pct in (("c", 3.0), ("b", 2.0), ("a", 1.0)):
            view = fleet.update([report(name, utilization_pct=pct)], 1.0, source=name)
        assert view.utilization_pct == expected, order


def test_weights_are_shares_of_known_devices() -> None:
    fleet = aggregator(AggregateMode.WEIGHTED)
    fleet.update([device(0, memory=60 * GIB), device(1, memory=20 * GIB), engine()], 1.0)
    view = fleet.update([device(0, memory=60 * GIB), lost(1), engine()], 2.0)
    assert view.weights == {("", "GPU-0"): 0.75, ("", "GPU-1"): 0.25}
    assert aggregator(AggregateMode.MEAN).update([engine()], 1.0).weights == {}


def test_instance_utilization_is_its_active_time_share() -> None:
    rows = [device(0, None), replace(device(1, None), kind="mig", graphics_active_ratio=0.8)]
    view = aggregator(AggregateMode.MEAN).update(rows, 1.0)
    assert (view.utilization_pct, view.utilization_max_pct, view.utilization_mean_pct) == (80.0, 80.0, 80.0)


def test_mean_and_highest_are_always_reported() -> None:
    for how in AggregateMode:
        view = aggregator(how).update(
            [device(0, 100.0, memory=60 * GIB), device(1, 0.0, memory=20 * GIB)], 1.0
        )
        assert (view.utilization_mean_pct, view.utilization_max_pct) == (50.0, 100.0)


def test_engines_are_separate_from_devices() -> None:
    rows = [
        engine("a", queued=3, running=8, kv_used_ratio=0.9),
        engine("b", queued=4, running=None, kv_used_ratio=0.5),
        engine("c", health="lost", queued=99),
        engine("d"),
    ]
    fleet = aggregator(AggregateMode.WEIGHTED)
    view = fleet.update([device(0, 60.0), *rows], 1.0)
    assert (view.queued, view.running, view.engines, view.kv_used_ratio) == (7, 8, 3, 0.7)
    assert (view.utilization_pct, view.capacity, list(view.weights)) == (60.0, 1.0, [("", "GPU-0")])
    assert view.devices[0].kind == "gpu", "cards come first"
    assert aggregator(AggregateMode.MAX).update(rows, 1.0).kv_used_ratio == 0.9
    view = fleet.update([device(0, 60.0)], 2.0)
    assert (view.queued, view.running, view.engines, view.kv_used_ratio) == (None, None, 0, None)
    assert view.engines_at_s == 1.0, "it was heard once"
    assert len(view.devices) == 1


def test_device_and_engine_times_are_separate() -> None:
    fleet = aggregator(AggregateMode.MEAN)
    view = fleet.update([engine(at=5.0, age_s=1.0)], 5.0, source="vllm")
    assert (view.taken_at_s, view.engines_at_s) == (4.0, 4.0)
    view = fleet.update([device(0, at=2.0)], 5.0, source="nvml")
    assert (view.taken_at_s, view.engines_at_s) == (2.0, 4.0)
    assert aggregator(AggregateMode.MEAN).update([device(0)], 5.0).engines_at_s is None


def test_stale_row_leaves_means_but_not_capacity() -> None:
    fleet = aggregator(AggregateMode.WEIGHTED)
    old = device(0, 100.0, used=79 * GIB, power_w=690.0, at=1.0)
    fleet.update([old], 1.0, source="nvml")
    quick = replace(device(1, 20.0, at=4.0), source="given")
    view = fleet.update([quick, engine(at=4.0, queued=1)], 4.0, source="given")
    assert (view.utilization_pct, view.taken_at_s) == (60.0, 4.0)
    view = fleet.update([quick, engine(at=4.0, queued=1)], 4.1, source="given")
    assert (view.utilization_pct, view.utilization_max_pct, view.utilization_mean_pct) == (20.0, 20.0, 20.0)
    assert (view.memory_ratio, view.power_ratio, view.capacity, view.queued) == (None, None, 1.0, 1)
    view = fleet.update([quick, engine(at=4.0, queued=1)], 7.1, source="given")
    assert (view.utilization_pct, view.queued, view.engines, view.taken_at_s) == (None, None, 0, 4.0)
    assert view.capacity == 1.0
    assert fleet.update([device(0, 90.0, at=8.0)], 8.0, source="nvml").utilization_pct == 90.0


def test_a_limit_of_its_own_and_one_for_forgetting() -> None:
    fleet = aggregator(AggregateMode.MEAN, gpu_stale_after_s=10.0, gpu_forget_s=5.0)
    fleet.update([replace(device(0), source="dcgm")], 1.0, source="dcgm:h:1")
    assert fleet.update([replace(device(0), source="dcgm")], 11.0, source="dcgm:h:1").utilization_pct == 50.0
    assert fleet.update([], 12.0, source="dcgm:h:1").capacity == 0.0
    view = fleet.update([], 17.1, source="dcgm:h:1")
    assert (view.capacity, view.devices, view.weights, view.taken_at_s) == (1.0, (), {}, 17.1)


def test_slow_source_is_valid_longer_and_reports_its_interval() -> None:
    fleet = aggregator(AggregateMode.MEAN)
    fleet.update(
        [report("dcgm", 0, period_s=30.0, utilization_pct=80.0)], 1.0, source="dcgm:h:1", interval_s=5.0
    )
    view = fleet.update([report("nvml", 1, utilization_pct=20.0)], 1.0, source="nvml", interval_s=1.0)
    assert (view.utilization_pct, view.interval_s, view.period_s) == (50.0, 5.0, 30.0)
    view = fleet.update([report("nvml", 1, at=76.1, utilization_pct=20.0)], 76.1, source="nvml")
    assert (view.utilization_pct, view.interval_s, view.period_s) == (20.0, 1.0, None)
    view = aggregator(AggregateMode.MEAN).update([device(0)], 1.0)
    assert (view.interval_s, view.period_s) == (None, None)


def test_secondary_source_does_not_slow_the_load_source() -> None:
    fleet = aggregator(AggregateMode.MEAN, order=("nvml",))
    slow = report("dcgm", period_s=30.0, utilization_pct=80.0, sm_active_ratio=0.5)
    fleet.update([slow], 1.0, source="dcgm:h:1", interval_s=5.0)
    view = fleet.update([report("nvml", utilization_pct=20.0)], 1.0, source="nvml", interval_s=1.0)
    assert (view.interval_s, view.period_s, view.devices[0].sm_active_ratio) == (1.0, None, 0.5)


def test_measurement_repeated_thirty_times_counts_once() -> None:
    fleet = aggregator(AggregateMode.MEAN, order=("dcgm:h:1",))
    times = set()
    for second in range(30):
        row = report("dcgm", at=100.0 + second, age_s=float(second), period_s=30.0, utilization_pct=99.0)
        fleet.update([row], 100.0 + second, source="dcgm:h:1")
        beside = report("nvml", at=100.0 + second, utilization_pct=10.0, power_w=100.0)
        view = fleet.update([beside], 100.0 + second, source="nvml")
        times.add(view.taken_at_s)
        assert (view.utilization_pct, view.power_ratio) == (99.0, None)
    assert times == {100.0}


def test_power_is_the_mean_where_the_energy_is_counted() -> None:
    fleet = aggregator(AggregateMode.MEAN)
    fleet.update([replace(device(0, power_w=70.0), energy_j=0.0)], 1.0)
    view = fleet.update([replace(device(0, power_w=70.0, at=2.0), energy_j=350.0)], 2.0)
    assert (view.power_ratio, view.devices[0].power_mean_w) == (0.5, 350.0)


def test_full_is_full_where_two_sources_count_memory_differently() -> None:
    fleet = aggregator(AggregateMode.MEAN, order=("nvml",))
    fleet.update([report("nvml", memory_total_bytes=79 * GIB)], 1.0)
    view = fleet.update([report("dcgm", memory_used_bytes=80 * GIB)], 1.0)
    assert view.memory_ratio == 1.0


def test_vanished_device_is_new_while_source_reports_it() -> None:
    fleet = aggregator(AggregateMode.MEAN)
    fleet.update([device(0)], 1.0)
    assert fleet.update([], 2.0).taken_at_s == 2.0
    assert fleet.update([], 3.0).taken_at_s == 3.0
    assert fleet.update([engine(at=9.0)], 9.0, source="vllm").taken_at_s == 3.0


SOURCES = ("nvml", "dcgm:h:1", "vllm:h:3")


VALUES = st.fixed_dictionaries(
    {
        "utilization_pct": PERCENT,
        "graphics_active_ratio": st.none() | st.floats(0.0, 1.0),
        "memory_total_bytes": st.none() | st.integers(1, 2**40),
        "energy_j": st.none() | st.floats(0.0, 1e6),
        "health": st.sampled_from(["ok", "degraded", "lost"]),
        "age_s": st.floats(0.0, 10.0),
        "period_s": st.none() | st.floats(0.0, 60.0),
        "queued": st.none() | st.integers(0, 9),
        "kv_used_ratio": st.none() | st.floats(0.0, 1.0),
        "kind": st.sampled_from(["gpu", "gpu", "engine"]),
        "host": st.sampled_from(["", "node"]),
    }
)


READINGS = st.dictionaries(st.integers(0, 2), VALUES, max_size=3)


ROUND = st.dictionaries(st.sampled_from(SOURCES), READINGS, min_size=1)


def rows_of(name: str, reading: dict[int, dict[str, Any]], at: float) -> list[GpuSample]:
    """Devices by UUID, so that sources share them; an engine is reported by one source."""
    return [
        GpuSample(
            device=name + str(number) if values["kind"] == "engine" else UUIDS[number],
            index=number,
            taken_at_s=at,
            source=name,
            **values,
        )
        for number, values in reading.items()
    ]


@given(st.lists(ROUND, min_size=1, max_size=3), st.sampled_from(AggregateMode), st.data())
def test_order_of_rows_and_sources_does_not_matter(
    rounds: list[dict[str, dict[int, dict[str, Any]]]], how: AggregateMode, data: st.DataObject
) -> None:
    one, other = (aggregator(how, order=SOURCES[1:2]) for _ in range(2))
    for number, reported_now in enumerate(rounds):
        now = 20.0 + number
        readings = {name: rows_of(name, reading, now) for name, reading in reported_now.items()}
        for name, rows in readings.items():
            view = one.update(rows, now, source=name, interval_s=1.0)
        for name in data.draw(st.permutations(sorted(readings))):
            shuffled = data.draw(st.permutations(readings[name]))
            same = other.update(shuffled, now, source=name, interval_s=1.0)
        assert same == view


@given(ROUND, st.sampled_from(AggregateMode), st.sampled_from(SOURCES[:2]), st.lists(st.integers(0, 2)))
def test_device_lost_by_one_source_never_raises_capacity(
    reported_now: dict[str, dict[int, dict[str, Any]]],
    how: AggregateMode,
    source_name: str,
    losing: list[int],
) -> None:
    fleet = aggregator(how, order=SOURCES[:1])
    reading: dict[int, dict[str, Any]] = {}
    for name in SOURCES[:2]:
        host = "" if name == "nvml" else "node"
        devices = {
            n: v | {"health": "ok", "kind": "gpu", "host": host}
            for n, v in reported_now.get(name, {}).items()
        }
        view = fleet.update(rows_of(name, devices, 20.0), 20.0, source=name)
        reading = devices if name == source_name else reading
    capacity, now = view.capacity, 20.0
    assert capacity == 1.0
    for number in losing:
        now += 1.0
        if number % 2:
            reading.pop(number, None)
        elif number in reading:
            reading[number] |= {"health": "lost"}
        view = fleet.update(rows_of(source_name, reading, now), now, source=source_name)
        assert view.capacity <= capacity
        capacity = view.capacity
    if source_name == "nvml":
        lost_now = {UUIDS[n] for n in losing} & {
            row.device for row in view.devices if row.source == source_name
        }
        assert all(row.health == "lost" for row in view.devices if row.device in lost_now)


@given(ROUND, st.sampled_from(AggregateMode))
def test_unreported_field_is_unknown_not_zero(
    reported_now: dict[str, dict[int, dict[str, Any]]], how: AggregateMode
) -> None:
    fleet = aggregator(how)
    reporting = ("utilization_pct", "graphics_active_ratio", "queued", "kv_used_ratio", "energy_j")
    nothing = dict.fromkeys(reporting)
    for name, reading in reported_now.items():
        bare = {n: values | nothing for n, values in reading.items()}
        view = fleet.update(rows_of(name, bare, 20.0), 20.0, source=name)
    assert view.utilization_pct is view.utilization_max_pct is view.utilization_mean_pct is None
    assert view.queued is view.running is view.kv_used_ratio is view.memory_ratio is view.power_ratio is None


@given(READINGS, st.sampled_from(AggregateMode), st.lists(st.floats(0.0, 60.0), max_size=10))
def test_repeated_measurement_keeps_its_time(
    reading: dict[int, dict[str, Any]], how: AggregateMode, waits: list[float]
) -> None:
    fleet = aggregator(how)
    usable = {n: values | {"health": "ok", "period_s": 60.0} for n, values in reading.items()}
    devices = rows_of("dcgm:h:1", usable, 20.0)
    view = fleet.update(devices, 20.0, source="dcgm:h:1")
    for after_s in sorted(waits):
        again = [replace(row, taken_at_s=20.0 + after_s, age_s=row.age_s + after_s) for row in devices]
        later = fleet.update(again, 20.0 + after_s, source="dcgm:h:1")
        if devices:
            assert (later.taken_at_s, later.engines_at_s) == (view.taken_at_s, view.engines_at_s)
