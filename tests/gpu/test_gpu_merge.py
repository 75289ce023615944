"""One device of several sources: precedence, field by field."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.aggregate import FieldReport, identity, load_pct, merge
from autoglm_throttle.gpu.sanity import MEASURED, lost
from autoglm_throttle.types import GpuSample

UUID = "GPU-4f0c2a3e-9b1d-4c57-8a66-012345678900"
NOW = 100.0


def row(source: str, **values: Any) -> GpuSample:
    return GpuSample(**{"device": UUID, "index": 0, "taken_at_s": NOW, "source": source, **values})


def report(
    source: str, *, until: float = NOW, interval_s: float | None = 1.0, vanished: bool = False, **values: Any
) -> FieldReport:
    message = row(source, **values)
    if vanished:
        message = lost(message, f"{source} no longer lists it")
    measured_s = message.taken_at_s - message.age_s
    total_bytes = values.get("memory_total_bytes")
    return FieldReport(
        message, identity(message), measured_s, until, interval_s, total_bytes, NOW if vanished else None
    )


def join(*sources: FieldReport) -> FieldReport:
    return merge(sources, NOW)


def test_one_source_is_itself() -> None:
    alone = report("nvml", utilization_pct=50.0)
    assert join(alone) == alone
    assert not join(alone).is_lost


@pytest.mark.parametrize("name", [name for name in MEASURED if name != "period_s"])
def test_the_first_that_knows_a_field_counts(name: str) -> None:
    values: tuple[Any, Any] = (frozenset({"sw_thermal"}), frozenset()) if name == "throttle" else (1, 2)
    one: dict[str, Any] = {name: values[0]}
    two: dict[str, Any] = {name: values[1]}
    assert getattr(join(report("nvml", **one), report("dcgm", **two)).row, name) == values[0]
    assert getattr(join(report("nvml"), report("dcgm"), report("other", **two)).row, name) == values[1]
    assert getattr(join(report("nvml"), report("a", **one), report("b", **two)).row, name) == values[0]
    assert getattr(join(report("nvml"), report("dcgm")).row, name) is None, "never 0"


def test_it_keeps_the_name_that_the_first_source_gave_it() -> None:
    first = report("nvml", index=3, until=NOW - 1.0, utilization_pct=1.0)
    second = report("dcgm", index=1, host="node", name="H100", utilization_pct=70.0)
    both = join(first, second).row
    assert (both.device, both.index, both.host, both.source) == (UUID, 3, "", "nvml")
    assert (both.name, both.utilization_pct) == ("H100", 70.0)


def test_stale_rows_are_left_out_unless_all_are_stale() -> None:
    old = report("nvml", until=NOW - 1.0, utilization_pct=1.0, power_w=5.0)
    new = report("dcgm", utilization_pct=90.0)
    both = join(old, new)
    assert (both.row.utilization_pct, both.row.power_w, both.believed_until_s >= NOW) == (90.0, None, True)
    older = report("dcgm", until=NOW - 2.0, utilization_pct=90.0)
    both = join(old, older)
    assert (both.row.utilization_pct, both.believed_until_s >= NOW) == (1.0, False)


def test_times_are_those_of_the_load_measurement() -> None:
    quick = report("nvml", power_w=300.0, interval_s=1.0)
    slow = report("dcgm", taken_at_s=99.0, age_s=20.0, period_s=30.0, utilization_pct=90.0, interval_s=5.0)
    both = join(quick, slow)
    assert (both.measured_s, both.interval_s) == (79.0, 5.0)
    assert (both.row.taken_at_s, both.row.age_s, both.row.period_s) == (99.0, 20.0, 30.0)
    assert (both.row.utilization_pct, both.row.power_w) == (90.0, 300.0)
    assert join(quick, report("dcgm", taken_at_s=50.0)).measured_s == NOW, "nobody tells it: the first"


def test_memory_is_kept_from_any_source() -> None:
    both = join(report("nvml", health="lost"), report("dcgm", memory_total_bytes=80))
    assert (both.total_bytes, both.row.memory_total_bytes) == (80, None)
    assert (
        join(report("nvml", memory_total_bytes=81), report("dcgm", memory_total_bytes=80)).total_bytes == 81
    )


def test_it_is_lost_as_soon_as_one_source_says_so() -> None:
    message = report("nvml", health="lost", notes=("fell off the bus",))
    for both in (
        join(message, report("dcgm", power_w=1.0)),
        join(report("dcgm", power_w=1.0, index=4), message),
    ):
        assert both.is_lost
        assert (both.row.power_w, both.row.notes) == (None, ("fell off the bus",))


def test_device_unlisted_by_driver_is_lost_despite_scrape() -> None:
    assert join(report("nvml", vanished=True), report("dcgm", utilization_pct=5.0)).is_lost


def test_device_unlisted_by_scrape_only_is_not_lost() -> None:
    for name in ("dcgm", "prometheus:host:9090"):
        both = join(report(name, vanished=True), report("nvml", utilization_pct=5.0))
        assert (both.is_lost, both.row.utilization_pct, both.row.source) == (False, 5.0, name)
    assert join(report("dcgm", vanished=True), report("prometheus:h:1", vanished=True)).is_lost


def test_health_and_notes_are_those_of_all() -> None:
    both = join(report("nvml", notes=("a", "b")), report("dcgm", health="degraded", notes=("b", "c")))
    assert (both.row.health, both.row.notes) == ("degraded", ("a", "b", "c"))
    assert join(report("nvml"), report("dcgm")).row.health == "ok"


def test_load_of_device_and_instance() -> None:
    assert load_pct(row("nvml", utilization_pct=7.0, graphics_active_ratio=0.9)) == 7.0
    assert load_pct(row("nvml", graphics_active_ratio=0.5)) == 50.0
    assert load_pct(row("nvml")) is None


@pytest.mark.parametrize(
    ("device", "full"),
    [
        (UUID, True),
        (UUID.upper(), True),
        (UUID.replace("GPU", "MIG"), True),
        (UUID[:-1], False),
        (f"{UUID}0", False),
        (f"{UUID}/7", False),
        (f"host/{UUID}", False),
        ("GPU-0", False),
    ],
)
def test_full_uuid_is_one_device_on_any_host(device: str, full: bool) -> None:
    near, far = row("nvml", device=device), row("dcgm", device=device, host="node")
    assert (identity(near) == identity(far)) is full
    assert (identity(near) == identity(row("dcgm", device=device.swapcase()))) is full


@pytest.mark.parametrize(
    ("part", "joined"),
    [
        (f"{UUID}/7", True),
        (f"{UUID.upper()}/7", True),
        (f"{UUID}/8", False),
        (f"{UUID}/", False),
        ("GPU-0/7", False),
        ("", False),
    ],
)
def test_mig_instance_is_identified_by_its_part(part: str, joined: bool) -> None:
    instance = row("nvml", device=UUID.replace("GPU", "MIG"), kind="mig", gpu_instance=f"{UUID}/7")
    scraped = row("dcgm", device=f"{UUID}/7", host="node", kind="mig", gpu_instance=part)
    assert (identity(instance) == identity(scraped)) is joined
    assert identity(replace(instance, gpu_instance="")) == instance.device.lower()


VALUES = st.fixed_dictionaries(
    {
        "utilization_pct": st.none() | st.floats(0.0, 100.0),
        "power_w": st.none() | st.floats(0.0, 700.0),
        "sm_active_ratio": st.none() | st.floats(0.0, 1.0),
    }
)


@given(st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=4))
def test_every_value_comes_from_a_source(sources: list[tuple[dict[str, Any], bool]]) -> None:
    both = join(
        *(report(f"s{n}", until=NOW if fresh else NOW - 1.0, **v) for n, (v, fresh) in enumerate(sources))
    )
    live = [values for values, fresh in sources if fresh] or [values for values, _ in sources]
    for name in sources[0][0]:
        known = [values[name] for values in live if values[name] is not None]
        assert getattr(both.row, name) == (known[0] if known else None)
