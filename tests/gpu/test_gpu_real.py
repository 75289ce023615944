"""The NVML provider on the GPUs of this machine, if it has any."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from autoglm_throttle.gpu.nvml.gpm import GAP_S
from autoglm_throttle.gpu.nvml.provider import NvmlProvider
from autoglm_throttle.types import GpuSample
from autoglm_throttle.types.errors import NotPresentError, PackageMissingError

pytestmark = pytest.mark.gpu


@pytest.fixture
def provider() -> Iterator[NvmlProvider]:
    provider = NvmlProvider()
    try:
        provider.read()
    except (NotPresentError, PackageMissingError) as error:
        pytest.skip(f"no real GPU: {error}")
    yield provider
    provider.close()


def later(provider: NvmlProvider) -> Sequence[GpuSample]:
    """Read late enough after the last reading for differences."""
    time.sleep(2 * GAP_S)
    return provider.read()


def within(value: float | None, low: float, high: float) -> bool:
    return value is None or low <= value <= high


def test_every_device_reports_plausible_values(provider: NvmlProvider) -> None:
    rows = later(provider)
    assert len({row.device for row in rows}) == len(rows) > 0
    for row in rows:
        assert row.health in {"ok", "degraded"}, row.notes
        assert within(row.utilization_pct, 0, 100)
        assert within(row.memory_busy_pct, 0, 100)
        assert within(row.power_w, 0, 2_000)
        assert within(row.power_limit_w, 10, 2_000)
        assert within(row.power_limit_default_w, 10, 2_000)
        assert within(row.temperature_c, 1, 130)
        assert within(row.temperature_margin_c, -50, 130)
        assert within(row.sm_clock_mhz, 0, 5_000)


def test_device_reports_fields_needed_for_control(provider: NvmlProvider) -> None:
    for row in later(provider):
        assert row.memory_used_bytes is not None
        assert row.memory_total_bytes is not None
        assert 0 <= row.memory_used_bytes <= row.memory_total_bytes
        assert row.memory_total_bytes > 1 << 29, "a card, or an instance of one, has more than half a GiB"
        assert row.temperature_c is not None
        if row.kind == "gpu":
            assert row.utilization_pct is not None
            assert row.name


def test_recent_whole_device_reports_power_and_energy(provider: NvmlProvider) -> None:
    rows = [row for row in later(provider) if row.kind == "gpu" and row.energy_j is not None]
    if not rows:
        pytest.skip("no real GPU: none of Volta or later, which count their energy")
    before = {row.device: row for row in rows}
    time.sleep(1.0)
    for row in provider.read():
        first = before[row.device]
        assert row.power_w is not None
        assert row.energy_j is not None
        assert first.energy_j is not None
        mean_w = (row.energy_j - first.energy_j) / (row.taken_at_s - first.taken_at_s)
        assert 0.3 < mean_w / row.power_w < 3.0, f"{mean_w:.0f} W by energy, {row.power_w:.0f} W told"


def test_counters_never_fall(provider: NvmlProvider) -> None:
    names = ("energy_j", "throttled_ns", "nvlink_rx_bytes", "nvlink_tx_bytes", "nvlink_errors")
    before = later(provider)
    for first, second in zip(before, later(provider), strict=True):
        for name in names:
            old, new = getattr(first, name), getattr(second, name)
            assert (old is None) == (new is None), name
            assert old is None or old <= new, name


def test_hopper_device_reports_gpm_activity(provider: NvmlProvider) -> None:
    rows = later(provider)
    if any("Hopper" in note or "root" in note for row in rows for note in row.notes):
        pytest.skip(f"no real GPU that tells its parts: {rows[0].notes}")
    for row in rows:
        for name in ("graphics_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active"):
            ratio = getattr(row, f"{name}_ratio")
            assert ratio is not None, name
            assert 0.0 <= ratio <= 1.0, name


def test_later_reading_has_same_devices_and_is_newer(provider: NvmlProvider) -> None:
    first, second = provider.read(), provider.read()
    assert [row.device for row in first] == [row.device for row in second]
    assert all(later.taken_at_s >= row.taken_at_s for row, later in zip(first, second, strict=True))


def test_it_opens_again_after_a_close(provider: NvmlProvider) -> None:
    first = [row.device for row in provider.read()]
    provider.close()
    assert [row.device for row in provider.read()] == first


def test_device_is_selected_by_uuid(provider: NvmlProvider) -> None:
    device = provider.read()[-1].device
    chosen = NvmlProvider([device])
    try:
        assert [row.device for row in chosen.read()] == [device]
    finally:
        chosen.close()
