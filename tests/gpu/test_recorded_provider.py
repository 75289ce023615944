"""Samples played back from a file."""

import os
from pathlib import Path

import pytest

from autoglm_throttle.gpu.recorded import RecordedProvider
from autoglm_throttle.types import GpuProvider, GpuSample, ProviderMisconfigured, ProviderUnavailable
from tests.gpu.sampler_doubles import StepClock


def percents(provider: RecordedProvider) -> list[float | None]:
    return [row.utilization_pct for row in provider.read()]


def write(path: Path, text: str) -> None:
    """Replace a file atomically, with a different modification time."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.utime(fresh, ns=(before + 10**9, before + 10**9))
    fresh.replace(path)


def test_it_is_a_provider(tmp_path: Path, clock: StepClock) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("utilization_pct\n50\n")
    provider = RecordedProvider(path, clock=clock)
    assert isinstance(provider, GpuProvider)
    provider.reset_after_fork()
    provider.close()
    (row,) = provider.read()
    assert row == GpuSample(
        device="FAKE-0", index=0, taken_at_s=clock.now, source="fake", utilization_pct=50.0
    )


def test_a_row_has_a_name_and_a_number_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("utilization_pct,device,index\n10,,\n20,B,\n,,9\n")
    rows = RecordedProvider(path).read()
    assert [(row.device, row.index) for row in rows] == [("FAKE-0", 0), ("B", 1), ("FAKE-9", 9)]


def test_a_recording_plays_by_the_clock(tmp_path: Path, clock: StepClock) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("t_s,utilization_pct,event\n0,50,\n2,92,\n4,,error\n5,10,lost\n6,70,\n7,1,stale\n8,80,\n")
    provider = RecordedProvider(path, clock=clock)
    assert percents(provider) == [50.0]
    clock.now += 2.5
    assert percents(provider) == [92.0]
    clock.now += 1.5
    with pytest.raises(ProviderUnavailable, match="says error"):
        provider.read()
    clock.now += 1.0
    (row,) = provider.read()
    assert (row.health, row.utilization_pct, row.device) == ("lost", None, "FAKE-0")
    clock.now += 1.0
    fresh = provider.read()
    clock.now += 1.0
    assert provider.read() == fresh
    clock.now += 100.0
    assert percents(provider) == [80.0]


def test_recording_has_engines_and_measurement_age(tmp_path: Path, clock: StepClock) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(
        "t_s,kind,device,utilization_pct,queued,throttle,age_s,period_s,event\n"
        "0,gpu,GPU-a,90,,sw_thermal,12,30,\n0,engine,h:1#0,,4,,,,\n"
        "5,gpu,GPU-a,,,,,,lost\n5,engine,h:1#0,,,,,,lost\n"
    )
    provider = RecordedProvider(path, clock=clock)
    device, engine = provider.read()
    assert (device.age_s, device.period_s, device.throttle, device.queued) == (
        12.0,
        30.0,
        frozenset({"sw_thermal"}),
        None,
    )
    assert (engine.kind, engine.queued, engine.utilization_pct, engine.throttle) == ("engine", 4, None, None)
    clock.now += 5.0
    assert [(row.kind, row.health, row.queued) for row in provider.read()] == [
        ("gpu", "lost", None),
        ("engine", "lost", None),
    ]


def test_a_recording_that_has_not_begun_is_unavailable(tmp_path: Path, clock: StepClock) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("t_s,utilization_pct\n3,50\n")
    provider = RecordedProvider(path, clock=clock)
    with pytest.raises(ProviderUnavailable, match="not begun"):
        provider.read()
    clock.now += 3.0
    assert percents(provider) == [50.0]


def test_a_stale_row_without_a_former_one_is_none(tmp_path: Path, clock: StepClock) -> None:
    path = tmp_path / "gpu.jsonl"
    path.write_text('{"utilization_pct": 1, "event": "stale"}\n{"utilization_pct": 2}\n')
    assert percents(RecordedProvider(path, clock=clock)) == [2.0]


def test_a_hang_waits_once_and_then_gives_the_rows_of_its_end(tmp_path: Path, clock: StepClock) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("t_s,utilization_pct,event\n0,50,\n1,60,hang:3\n4,70,\n")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.now += seconds

    provider = RecordedProvider(path, clock=clock, hang=wait)
    provider.read()
    clock.now += 1.0
    assert percents(provider) == [70.0]
    assert percents(provider) == [70.0]
    assert waits == [3.0]


def test_without_a_thread_a_hang_gives_no_rows_for_its_time(tmp_path: Path, clock: StepClock) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("t_s,utilization_pct,event\n0,60,hang:3\n")
    provider = RecordedProvider(path, clock=clock, hang=None)
    assert provider.read() == []
    clock.now += 2.9
    assert provider.read() == []
    clock.now += 0.2
    assert percents(provider) == [60.0]


def test_a_live_state_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    write(path, "utilization_pct\n50\n")
    provider = RecordedProvider(str(path))
    assert percents(provider) == percents(provider) == [50.0]
    write(path, "utilization_pct\n60\n")
    assert percents(provider) == [60.0]


def test_a_live_state_hangs_once_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    waits: list[float] = []
    provider = RecordedProvider(path, hang=waits.append)
    for seconds in (1, 2):
        write(path, f"utilization_pct,event\n50,hang:{seconds}\n")
        provider.read()
        provider.read()
    assert waits == [1.0, 2.0]


def test_a_live_state_that_breaks_later_is_only_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    write(path, '{"utilization_pct": 50}\n')
    provider = RecordedProvider(path)
    provider.read()
    write(path, '{"utilization_pct": 5')
    for _ in range(2):
        with pytest.raises(ProviderUnavailable, match="no JSON"):
            provider.read()
    write(path, '{"utilization_pct": 55}\n')
    assert percents(provider) == [55.0]


def test_initially_invalid_file_is_misconfigured(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_bytes(b"utilization\xff\n1\n")
    with pytest.raises(ProviderMisconfigured, match=r"gpu\.csv: column"):
        RecordedProvider(path).read()


def test_a_file_that_is_not_there_is_unavailable_until_it_is(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    provider = RecordedProvider(path)
    with pytest.raises(ProviderUnavailable, match="No such file"):
        provider.read()
    path.write_text("utilization_pct\n7\n")
    assert percents(provider) == [7.0]
