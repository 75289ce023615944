"""Readings of a source: new measurements, and devices that it no longer lists."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.aggregate import MOST_DEVICES, SAME_S, FieldReport, SampleBuilder
from autoglm_throttle.types import GpuSample


def row(at: float, device: str = "GPU-0", **values: Any) -> GpuSample:
    return GpuSample(**{"device": device, "index": 0, "taken_at_s": at, "source": "nvml", **values})


class Source:
    """A source with readings given one by one."""

    def __init__(self, forget_s: float = 300.0) -> None:
        self.reading = SampleBuilder(3.0, forget_s)

    def reports(
        self, *rows: GpuSample, now: float = 0.0, interval_s: float | None = 1.0
    ) -> list[FieldReport]:
        self.reading.update(rows, now, interval_s)
        return list(self.reading.reports.values())

    def one(self, *rows: GpuSample, now: float = 0.0, interval_s: float | None = 1.0) -> FieldReport:
        (report,) = self.reports(*rows, now=now, interval_s=interval_s)
        return report


def test_repeated_measurement_keeps_its_time_and_rates() -> None:
    source = Source()
    source.one(row(10.0, energy_j=0.0))
    first = source.one(row(40.0, energy_j=9000.0))
    assert (first.measured_s, first.row.power_mean_w) == (40.0, 300.0)
    for after_s in (0.3, 1.0, 29.7):  # the differences of these are not exact
        again = source.one(row(40.0 + after_s, energy_j=9000.0, age_s=after_s))
        assert (again.measured_s, again.row.taken_at_s, again.row.age_s) == (40.0, 40.0, 0.0)
        assert again.row.power_mean_w == 300.0
    assert source.one(row(70.0, energy_j=12000.0)).row.power_mean_w == 100.0


def test_two_clocks_read_in_turn_make_no_new_measurement() -> None:
    source = Source()
    source.one(row(10.0))
    for _ in range(20):  # it does not add up
        assert source.one(row(12.0, age_s=2.0 - 0.9 * SAME_S)).measured_s == 10.0
    assert source.one(row(12.0, age_s=2.0 - 1.1 * SAME_S)).measured_s == 10.0 + 1.1 * SAME_S


def test_repeated_measurement_of_lost_device_is_ignored() -> None:
    source = Source()
    source.one(row(10.0, energy_j=0.0, power_w=5.0))
    again = source.one(row(10.0, health="lost"))
    assert (again.row.health, again.row.power_mean_w, again.row.taken_at_s) == ("lost", None, 10.0)


def test_a_lost_row_is_no_beginning_of_a_rate() -> None:
    source = Source()
    source.one(row(10.0, energy_j=10.0))
    source.one(row(11.0, health="lost", energy_j=20.0))
    assert source.one(row(12.0, energy_j=None)).row.power_mean_w is None
    source.one(row(13.0, health="lost"))
    assert source.one(row(14.0, energy_j=300.0)).row.power_mean_w is None


def test_of_two_rows_of_one_device_the_later_measured_counts() -> None:
    old, new = row(12.0, power_w=1.0, age_s=5.0), row(11.0, power_w=2.0)
    for rows in ((old, new), (new, old)):
        assert Source().one(*rows).row.power_w == 2.0


@pytest.mark.parametrize(
    ("interval_s", "period_s", "believed_s"),
    [(None, None, 3.0), (1.0, None, 3.0), (10.0, None, 30.0), (1.0, 1.0, 3.0), (1.0, 30.0, 75.0)],
)
def test_for_how_long_a_measurement_is_believed(
    interval_s: float | None, period_s: float | None, believed_s: float
) -> None:
    report = Source().one(row(12.0, age_s=2.0, period_s=period_s), interval_s=interval_s)
    assert (report.measured_s, report.believed_until_s) == (10.0, 10.0 + believed_s)


def test_the_interval_is_that_last_promised() -> None:
    source = Source()
    source.one(row(1.0), interval_s=10.0)
    assert source.one(row(2.0), interval_s=None).interval_s == 10.0
    assert source.one(row(3.0), interval_s=0.5).interval_s == 0.5


def test_vanished_local_device_is_lost_until_it_returns() -> None:
    source = Source()
    source.one(row(1.0, power_w=5.0, throttle=frozenset({"sw_thermal"}), energy_j=1.0))
    gone = source.one(now=2.0)
    assert (gone.row.health, gone.row.power_w, gone.row.throttle, gone.measured_s) == (
        "lost",
        None,
        None,
        2.0,
    )
    later = source.one(now=1e6)
    assert (later.row, later.vanished_s, later.measured_s) == (gone.row, 2.0, 1e6)
    back = source.one(row(1e6, energy_j=7e5))
    assert (back.row.health, back.vanished_s, back.row.power_mean_w) == ("ok", None, None)
    assert back.row.taken_at_s == 1e6, "its old time is not held"


def test_device_memory_is_kept_over_a_loss() -> None:
    source = Source()
    source.one(row(1.0, memory_total_bytes=80))
    assert source.one(now=2.0).total_bytes == 80
    assert source.one(row(3.0, health="lost")).total_bytes == 80
    assert source.one(row(4.0, memory_total_bytes=None)).total_bytes == 80


@pytest.mark.parametrize("name", ["dcgm", "dcgm:h:9400", "prometheus:h:9090"])
@pytest.mark.parametrize("host", ["", "node"])
def test_vanished_scraped_device_is_lost_then_removed(name: str, host: str) -> None:
    source = Source(forget_s=300.0)
    source.one(row(1.0, source=name, host=host))
    assert source.one(now=2.0).row.health == "lost"
    assert source.one(now=302.0).row.health == "lost"
    assert source.reports(now=302.1) == []


def test_returned_scraped_device_is_lost_as_long_again() -> None:
    source = Source(forget_s=300.0)
    source.one(row(1.0, source="dcgm"))
    source.one(now=2.0)
    source.one(row(200.0, source="dcgm"), now=200.0)
    source.one(now=201.0)
    assert source.one(now=500.0).row.health == "lost"


def test_vanished_remote_device_and_engine_are_removed() -> None:
    source = Source()
    source.reports(row(1.0, source="fleet", host="b"), row(1.0, "vllm:8000", kind="engine"))
    assert source.reports() == []


@given(st.lists(st.floats(0.0, 30.0), max_size=20), st.floats(0.0, 1e6))
def test_measurement_repeated_often_counts_once(ages: list[float], measured_s: float) -> None:
    source = Source()
    source.one(row(measured_s, utilization_pct=100.0))
    for age_s in ages:
        report = source.one(row(measured_s + age_s, utilization_pct=100.0, age_s=age_s))
        assert report.measured_s == report.row.taken_at_s - report.row.age_s == measured_s


def test_source_with_changing_names_is_bounded() -> None:
    source = Source()
    half = MOST_DEVICES // 2
    for number in range(4):
        at = 10.0 + number
        report = source.reports(*(row(at, f"{number}-{n}", source="dcgm:a") for n in range(half)), now=at)
    assert len(report) == MOST_DEVICES
    assert {one.row.device[0] for one in report} == {"2", "3"}, "those that vanished first are forgotten"


def test_all_present_devices_are_kept() -> None:
    source = Source()
    assert len(source.reports(*(row(10.0, str(n)) for n in range(MOST_DEVICES + 5)))) == MOST_DEVICES + 5
