"""Metrics of dcgm-exporter as rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.sanity import RANGES, drop_implausible
from autoglm_throttle.gpu.scrape import dcgm
from autoglm_throttle.gpu.scrape.dcgm import ALIASES, MIG_NOTE, NAMES, SCALES, SUMS, parse_devices
from autoglm_throttle.gpu.scrape.exposition import Series
from autoglm_throttle.gpu.scrape.freshness import DatedRow
from autoglm_throttle.types import GpuSample, ThrottleBit
from tests.gpu.exporter_texts import series

MIB = 1024**2
UUID = "GPU-5a1c7f3e-0b2d-4c6a-9e8f-1122334455"


def rows(name: str) -> list[DatedRow]:
    report = parse_devices(series(name), source="dcgm:h:9400", now=7.0, host="h:9400")
    assert report is not None
    return report


def one(name: str, value: float, at_s: float | None = None, **labels: str) -> Series:
    return Series(name, {"UUID": "GPU-a", **labels}, value, at_s)


def row(*lines: Series) -> GpuSample:
    report = parse_devices(lines, source="s", now=7.0)
    assert report is not None
    return report[0][0]


def test_the_default_counters() -> None:
    busy, idle = rows("dcgm_plain")
    assert busy == (
        GpuSample(
            device=UUID + "00",
            index=0,
            taken_at_s=7.0,
            source="dcgm:h:9400",
            host="node-7",
            name="NVIDIA H100 80GB HBM3",
            utilization_pct=97.0,
            memory_busy_pct=41.0,
            memory_used_bytes=75880 * MIB,
            memory_total_bytes=81559 * MIB,
            power_w=612.417,
            energy_j=8412345678.901,
            temperature_c=64.0,
            sm_clock_mhz=1980.0,
            graphics_active_ratio=0.981224,
            tensor_active_ratio=0.418872,
            dram_active_ratio=0.377201,
            pcie_tx_bps=151234567.0,
            pcie_rx_bps=99123456.0,
        ),
        8412345678.901,
        None,
    )
    assert (idle[0].device, idle[0].index, idle[0].utilization_pct) == (UUID + "01", 1, 0.0)
    assert idle[0].notes == ("last XID 31",)


def test_all_counters() -> None:
    busy, idle = (report[0] for report in rows("dcgm_all"))
    assert (busy.sm_active_ratio, busy.sm_occupancy_ratio) == (0.91, 0.22)
    assert (busy.power_limit_w, busy.sm_clock_max_mhz) == (700.0, 1980.0)
    assert busy.throttled_ns == 1_500_000_000
    assert busy.throttle == frozenset[ThrottleBit]({"sw_power_cap", "sw_thermal"})
    assert idle.throttle == frozenset()
    assert busy.nvlink_errors == 5
    assert (busy.nvlink_tx_bps, busy.nvlink_rx_bps) == (5e9, 4e9)


def test_the_newer_names() -> None:
    busy, broken = (report[0] for report in rows("dcgm_renamed"))
    assert (busy.temperature_c, busy.power_w, busy.power_limit_w) == (64.0, 612.417, 700.0)
    assert (busy.graphics_active_ratio, busy.sm_active_ratio, busy.sm_occupancy_ratio) == (
        0.981224,
        0.91,
        0.22,
    )
    assert (busy.tensor_active_ratio, busy.dram_active_ratio) == (0.418872, 0.377201)
    assert busy.temperature_margin_c == 23.0
    assert busy.throttle == frozenset[ThrottleBit]({"hw_power_brake"})
    assert busy.utilization_pct == 97.0
    assert broken.notes == ("last XID 79",)


def test_base_units_are_read_in_our_units() -> None:
    """FIELD 23: names and units of DCGM 4.7, field ids 1600 to 1650, as dcgm-exporter 4.8.2 renders them."""
    busy, idle = rows("dcgm_base_units")
    assert busy == (
        GpuSample(
            device=UUID + "00",
            index=0,
            taken_at_s=7.0,
            source="dcgm:h:9400",
            host="node-7",
            name="NVIDIA H100 80GB HBM3",
            utilization_pct=97.0,
            memory_busy_pct=41.0,
            memory_used_bytes=75880 * MIB,
            memory_total_bytes=81559 * MIB,
            energy_j=8412345678.0,
            sm_clock_mhz=1980.0,
            sm_clock_max_mhz=1980.0,
            throttled_ns=1_500_000_000,
        ),
        8412345678.0,
        None,
    )
    assert (idle[0].utilization_pct, idle[0].sm_clock_mhz, idle[0].throttled_ns) == (0.0, 345.0, 0)


@pytest.mark.parametrize(
    ("share", "other", "expected"),
    [
        (0.0, None, 0.0),
        (0.31, None, 31.0),
        (2.0, None, 2.0),  # DCGM 4.4 to 4.6 count 0 to 100 under the same name
        (97.0, None, 97.0),
        (1.0, None, None),  # 1 % or 100 %
        (1.0, "DCGM_FI_DEV_FB_USED_BYTES", 100.0),  # a name that only 4.7 has
    ],
)
def test_utilization_ratio_is_read_by_its_scale(
    share: float, other: str | None, expected: float | None
) -> None:
    """FIELD 23: a wrong guess would call an idle device full."""
    lines = [one("DCGM_FI_DEV_GPU_UTIL_RATIO", share), one(other or "DCGM_FI_DEV_GPU_TEMP", 40.0)]
    assert row(*lines).utilization_pct == expected


def test_throttled_time_under_both_names_counts_once() -> None:
    names = {"DCGM_FI_DEV_POWER_VIOLATION": 5e9, "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL": 5.0}
    assert row(*(one(name, value) for name, value in names.items())).throttled_ns == 5_000_000_000


def test_lines_of_links_belong_to_their_device() -> None:
    """FIELD 23: dcgm-exporter (d5e5f51) labels them gpu_uuid and model_name; they made two more devices."""
    found = [report[0] for report in rows("dcgm_links")]
    assert [(one.device, one.name, one.nvlink_errors) for one in found] == [
        (UUID + "00", "NVIDIA H100 80GB HBM3", 7),
        (UUID + "01", "NVIDIA H100 80GB HBM3", 0),
    ]


def test_mig_instance_replaces_its_device() -> None:
    first, second, whole = rows("dcgm_mig")
    assert [report[0].device for report in (first, second, whole)] == [
        UUID + "00/1",
        UUID + "00/2",
        UUID + "01",
    ]
    assert [report[0].kind for report in (first, second, whole)] == ["mig", "mig", "gpu"]
    assert [report[0].gpu_instance for report in (first, second, whole)] == [
        UUID + "00/1",
        UUID + "00/2",
        "",
    ]
    assert [report[0].index for report in (first, second, whole)] == [101, 102, 1]
    assert first[0].name == "NVIDIA H100 80GB HBM3 3g.40gb"
    assert (first[0].graphics_active_ratio, first[0].utilization_pct) == (0.87, None)
    assert (first[0].memory_used_bytes, first[0].memory_total_bytes) == (30000 * MIB, 40192 * MIB)
    assert (first[0].temperature_c, first[0].sm_clock_mhz) == (64.0, 1755.0)
    for field in dcgm.WHOLE_DEVICE_FIELDS:
        assert getattr(first[0], field) is None
    assert first[0].notes == (MIG_NOTE,)
    assert first[1] == 5112345678.901, "its card's counter tells that it was measured anew"


def test_blank_values_are_unknown() -> None:
    first, second = rows("dcgm_blank")
    assert first[0] == GpuSample(
        device=UUID + "00",
        index=0,
        taken_at_s=7.0,
        source="dcgm:h:9400",
        host="node-7",
        name="NVIDIA H100 80GB HBM3",
        temperature_c=64.0,
        power_w=612.417,
        utilization_pct=97.0,
    )
    assert first[1] is None
    assert second[0].memory_used_bytes == 1000 * MIB
    assert second[0].memory_total_bytes is None
    assert second[0].temperature_c is None


@pytest.mark.parametrize(
    "blank",
    [
        *range(0x7FFFFFF0, 0x7FFFFFF4),
        *(140737488355328.0 + more for more in range(4)),
        *(float(0x7FFFFFFFFFFFFFF0 + more) for more in range(4)),
        9223372036854775794.0,
        float("inf"),
        float("-inf"),
        float("nan"),
        1e300,
    ],
)
def test_each_blank_is_dropped(blank: float) -> None:
    report = parse_devices([one("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", blank)], source="s", now=7.0)
    assert report == []


def test_value_just_below_blank_is_a_number() -> None:
    for number in (0x7FFFFFEF, 0x80000000, 2.0**47 - 1, 2.0**47 + 16):
        assert row(one("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", number)).energy_j == number * 1e-3


def test_unknown_differs_from_absent() -> None:
    assert parse_devices(series("vllm_1"), source="s", now=7.0) is None
    assert parse_devices([], source="s", now=7.0) is None
    assert parse_devices([one("DCGM_FI_DEV_GPU_UTIL", 2.0**63)], source="s", now=7.0) == []
    assert parse_devices([one("DCGM_FI_DEV_XID_ERRORS", 31.0)], source="s", now=7.0) == [], (
        "an error alone is no reading"
    )


def test_device_of_several_pods_is_one_row() -> None:
    lines = [one("DCGM_FI_DEV_GPU_UTIL", 40.0, pod=pod) for pod in ("a", "b")]
    report = parse_devices(lines, source="s", now=7.0)
    assert report is not None
    assert [found[0].utilization_pct for found in report] == [40.0]


def test_row_without_device_is_skipped() -> None:
    lines = [
        Series("DCGM_FI_DEV_GPU_TEMP", {"nvswitch": "nvswitch0", "gpu": "0"}, 40.0),
        Series("DCGM_FI_DEV_GPU_TEMP", {"cpu": "0", "device": "x"}, 40.0),
        Series("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "n"}, 40.0),
    ]
    assert parse_devices(lines, source="s", now=7.0) == []


def test_device_without_labels_gets_a_name() -> None:
    lines = [Series("DCGM_FI_DEV_GPU_TEMP", {"gpu": number}, 40.0) for number in ("3", "x", "\u0663")]
    report = parse_devices(lines, source="s", now=7.0, host="h:9400")
    assert report is not None
    assert [(found[0].device, found[0].index) for found in report] == [
        ("3", 3),
        ("x", 1),
        ("\u0663", 2),
    ]
    assert {found[0].host for found in report} == {"h:9400"}


def test_old_labels_are_known() -> None:
    found = row(Series("DCGM_FI_DEV_GPU_TEMP", {"uuid": "GPU-b", "hostname": "n", "gpu": "1"}, 40.0))
    assert (found.device, found.host) == ("GPU-b", "n")


def test_configured_limit_replaces_missing_enforced_limit() -> None:
    assert row(one("DCGM_FI_DEV_POWER_MGMT_LIMIT", 600.0)).power_limit_w == 600.0
    both = (one("DCGM_FI_DEV_POWER_MGMT_LIMIT", 600.0), one("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 500.0))
    assert row(*both).power_limit_w == 500.0


def test_default_power_limit_is_read() -> None:
    for name in ("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS"):
        lowered = row(one(name, 700.0), one("DCGM_FI_DEV_POWER_MGMT_LIMIT", 400.0))
        assert (lowered.power_limit_w, lowered.power_limit_default_w) == (400.0, 700.0)


def test_the_newest_stamp_of_a_row_is_its_own() -> None:
    lines = [one("DCGM_FI_DEV_GPU_UTIL", 1.0, 5.0), one("DCGM_FI_DEV_GPU_TEMP", 1.0, 8.0)]
    lines.append(one("DCGM_FI_DEV_SM_CLOCK", 1.0, float("inf")))
    report = parse_devices(lines, source="s", now=7.0)
    assert report is not None
    assert report[0][2] == 8.0


def test_every_field_named_is_one_that_is_checked() -> None:
    assert {*ALIASES, *SUMS, *dcgm.WHOLE_DEVICE_FIELDS} <= RANGES.keys()
    assert SCALES.keys() <= NAMES


LINES = st.lists(
    st.builds(
        one,
        st.sampled_from(sorted(NAMES)),
        st.floats(),
        st.none() | st.floats(),
        gpu=st.sampled_from(["0", "1", "x"]),
        GPU_I_ID=st.sampled_from(["", "1", "x"]),
    ),
    max_size=20,
)


@given(LINES)
def test_any_numbers_make_rows_that_can_be_checked(lines: list[Series]) -> None:
    for report in parse_devices(lines, source="s", now=7.0) or []:
        drop_implausible(report[0])


@given(LINES)
def test_the_order_of_the_names_does_not_matter(lines: list[Series]) -> None:
    once = {(line.name, line.labels["gpu"], line.labels["GPU_I_ID"]): line for line in lines}.values()
    forth = parse_devices(once, source="s", now=7.0) or []
    back = parse_devices(reversed(list(once)), source="s", now=7.0) or []
    assert {report[0].device for report in forth} == {report[0].device for report in back}


@pytest.mark.parametrize("label", ["UUID", "Hostname", "GPU_I_ID"])
def test_a_name_longer_than_any_is_no_name(label: str) -> None:
    """It would be stored for five minutes, in each of sixty metrics."""
    labels = {"UUID": "GPU-a", "Hostname": "node", "GPU_I_ID": "1"}
    for length, count in ((255, 1), (256, 0)):
        line = one("DCGM_FI_DEV_GPU_TEMP", 40.0, None, **{**labels, label: "x" * length})
        assert len(parse_devices([line], source="dcgm", now=1.0) or []) == count


def test_a_long_title_is_cut() -> None:
    assert len(row(one("DCGM_FI_DEV_GPU_TEMP", 40.0, UUID="GPU-a", modelName="x" * 999)).name) == 255
