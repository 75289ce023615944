"""The GPUs that fail on request."""

import threading
from dataclasses import fields
from typing import Any
from unittest.mock import Mock

import pytest

from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.testing.gpu import ENGINE_READINGS, READINGS, TIMING
from autoglm_throttle.types import GpuProvider, GpuSample, ProviderUnavailable


def one(gpu: FakeGpu) -> GpuSample:
    (row,) = gpu.read()
    return row


def test_is_a_provider() -> None:
    assert isinstance(FakeGpu(), GpuProvider)


@pytest.mark.parametrize("name", READINGS)
def test_each_reading_of_a_sample_is_an_attribute_for_all_devices(name: str) -> None:
    gpu = FakeGpu(devices=3)
    setattr(gpu, name, 7)
    assert [getattr(row, name) for row in gpu.read()] == [7, 7, 7]
    setattr(gpu, name, None)
    assert [getattr(row, name) for row in gpu.read()] == [None, None, None]


def test_every_field_that_a_source_may_know_is_an_attribute() -> None:
    optional = {field.name for field in fields(GpuSample) if field.default is None} | {"age_s"}
    assert optional == {*READINGS, *ENGINE_READINGS}
    assert all(hasattr(FakeGpu, name) for name in optional)


@pytest.mark.parametrize("name", [*ENGINE_READINGS, *TIMING])
def test_each_reading_of_an_engine_is_an_attribute_for_all_engines(name: str) -> None:
    gpu = FakeGpu(devices=0, engines=2)
    setattr(gpu, name, 7)
    assert [getattr(row, name) for row in gpu.read()] == [7, 7]


def test_engines_stand_beside_the_devices() -> None:
    gpu = FakeGpu(devices=1, engines=2)
    gpu.queued = 3
    gpu.set_engine(1, queued=9, kv_used_ratio=None)
    card, first, second = gpu.read()
    assert (card.kind, card.queued, card.utilization_pct) == ("gpu", None, 0.0)
    assert [(row.kind, row.device, row.queued, row.kv_used_ratio) for row in (first, second)] == [
        ("engine", "FAKE-ENGINE-0", 3, 0.0),
        ("engine", "FAKE-ENGINE-1", 9, None),
    ]
    assert (first.utilization_pct, first.memory_total_bytes) == (None, None)
    assert repr(gpu) == "FakeGpu(1 devices, 2 engines, 0.0 %)"
    gpu.engines = 0
    assert [row.kind for row in gpu.read()] == ["gpu"]


def test_a_device_may_be_an_instance_and_say_why_it_is_slow() -> None:
    gpu = FakeGpu()
    gpu.kind, gpu.throttle, gpu.age_s, gpu.period_s = "mig", frozenset({"sw_thermal"}), 12.0, 30.0
    row = one(gpu)
    assert (row.kind, row.throttle, row.age_s, row.period_s) == ("mig", frozenset({"sw_thermal"}), 12.0, 30.0)
    gpu.set(0, throttle=frozenset())
    assert one(gpu).throttle == frozenset()


def test_samples_carry_the_time_of_the_reading() -> None:
    clock = ManualClock(10.0)
    gpu = FakeGpu(clock=clock)
    clock.advance(2.0)
    assert one(gpu).taken_at_s == 12.0


def test_devices_are_distinct() -> None:
    rows = FakeGpu(devices=2).read()
    assert [(row.device, row.index) for row in rows] == [("FAKE-0", 0), ("FAKE-1", 1)]


def test_one_device_may_have_readings_of_its_own() -> None:
    gpu = FakeGpu(devices=2)
    gpu.set(1, utilization_pct=92.0)
    gpu.utilization_pct = 10.0
    assert [row.utilization_pct for row in gpu.read()] == [10.0, 92.0]


def test_lost_device_is_listed_without_readings() -> None:
    gpu = FakeGpu(devices=2)
    gpu.utilization_pct = 50.0
    gpu.lose(1)
    kept, lost = gpu.read()
    assert (kept.health, kept.utilization_pct) == ("ok", 50.0)
    assert (lost.health, lost.device, lost.utilization_pct, lost.memory_used_bytes) == (
        *("lost", "FAKE-1", None),
        None,
    )
    gpu.recover()
    assert [row.health for row in gpu.read()] == ["ok", "ok"]


def test_a_hang_gives_no_rows_until_it_ends() -> None:
    clock = ManualClock()
    gpu = FakeGpu(clock=clock)
    gpu.hang(2.0)
    assert not gpu.read()
    clock.advance(1.9)
    assert not gpu.read()
    clock.advance(0.1)
    assert gpu.read()


def test_a_hang_without_an_end_lasts_until_it_recovers() -> None:
    clock = ManualClock()
    gpu = FakeGpu(clock=clock)
    gpu.hang()
    clock.advance(1e9)
    assert not gpu.read()
    gpu.recover()
    assert gpu.read()


def test_a_blocking_hang_holds_the_reader_until_it_recovers() -> None:
    gpu = FakeGpu(blocks=True)
    got = threading.Event()
    gpu.hang()
    sampler = Sampler(gpu, lambda _: got.set(), interval_s=1.0)
    sampler.start()
    try:
        assert not got.wait(0.1)
        gpu.recover()
        assert got.wait(60)
    finally:
        gpu.recover()
        sampler.stop()


def test_a_blocking_hang_may_end_by_itself() -> None:
    gpu = FakeGpu(blocks=True)
    gpu.hang(0.01)
    assert gpu.read()
    assert gpu.read()


@pytest.mark.parametrize("hangs", [True, False])
def test_a_fork_leaves_the_lock_of_the_hang_behind(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(blocks=True)
    if hangs:
        gpu.hang(0.0)
    made = Mock(wraps=threading.Event)
    monkeypatch.setattr(threading, "Event", made)
    gpu.reset_after_fork()
    made.assert_called_once()
    assert gpu.is_hanging is hangs


def test_stale_rows_keep_their_old_time() -> None:
    clock = ManualClock(0.0)
    gpu = FakeGpu(clock=clock)
    gpu.stale()
    first = one(gpu)
    clock.advance(5.0)
    gpu.utilization_pct = 99.0
    assert one(gpu) is first
    gpu.recover()
    assert (one(gpu).taken_at_s, one(gpu).utilization_pct) == (5.0, 99.0)


def test_raises_the_configured_error() -> None:
    gpu = FakeGpu()
    gpu.fail_with(ProviderUnavailable("driver gone"))
    with pytest.raises(ProviderUnavailable, match="driver gone"):
        gpu.read()
    gpu.recover()
    assert gpu.read()


def test_rejects_unknown_devices() -> None:
    gpu = FakeGpu(devices=2)
    with pytest.raises(ValueError, match="at least one"):
        FakeGpu(devices=0)
    with pytest.raises(ValueError, match="not 1 and -1"):
        FakeGpu(engines=-1)
    for index in (-1, 2):
        with pytest.raises(IndexError, match="no device"):
            gpu.lose(index)
        with pytest.raises(IndexError, match="no device"):
            gpu.set(index, utilization_pct=1.0)
    for index in (-1, 0):
        with pytest.raises(IndexError, match="no engine"):
            gpu.set_engine(index, queued=1)
    with pytest.raises(AttributeError, match="utilisation_pct"):
        gpu.set(0, utilisation_pct=1.0)
    with pytest.raises(AttributeError, match="utilization_pct"):
        FakeGpu(engines=1).set_engine(0, utilization_pct=1.0)


def test_repr_shows_the_state() -> None:
    gpu = FakeGpu(devices=2)
    gpu.close()
    assert repr(gpu) == "FakeGpu(2 devices, 0.0 %)"


def test_misspelt_reading_error_lists_the_known_ones() -> None:
    gpu: Any = FakeGpu()
    with pytest.raises(AttributeError, match=r"no reading is called utilisation_pct; there are age_s, "):
        gpu.utilisation_pct = 5
    with pytest.raises(AttributeError, match=r"no reading is called queue; there are age_s, "):
        FakeGpu(engines=1).set_engine(0, queue=5)
    gpu.devices, gpu.kind, gpu.utilization_pct = 2, "mig", 5.0
    assert [(row.kind, row.utilization_pct) for row in gpu.read()] == [("mig", 5.0)] * 2
