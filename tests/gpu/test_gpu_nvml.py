"""The NVML provider over a Python object instead of the library: no compiler, no GPU."""

import logging
import os
import sys
import types
from collections.abc import Callable

import pytest

from autoglm_throttle.gpu.nvml.provider import NvmlProvider
from autoglm_throttle.testing import FakeNvml
from autoglm_throttle.types import GpuProvider
from autoglm_throttle.types.errors import PackageMissingError
from tests.fake_nvml.cases import World, provider, state_key
from tests.fake_nvml.every import CASES


class Plain:
    """A fake library as a Python object."""

    def __init__(self, driver: FakeNvml) -> None:
        self.driver = driver
        self.now = 1000.0

    def set(self, **keys: int) -> None:
        for name, value in keys.items():
            device, key = state_key(name)
            if key == "err" or key.startswith("err_"):
                self.driver.fail(device, key.removeprefix("err_") if key != "err" else "any", value)
            else:
                self.driver.set(device, **{key: value})

    def opened(self) -> int:
        return self.driver.opened

    def references(self) -> int:
        return self.driver.references

    def samples(self) -> int:
        return self.driver.samples


@pytest.fixture
def world(fake_nvml: FakeNvml) -> Plain:
    return Plain(fake_nvml)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_case(case: Callable[[World], None], world: Plain) -> None:
    case(world)


def test_it_is_a_provider() -> None:
    assert isinstance(NvmlProvider(), GpuProvider)


def test_missing_symbol_or_older_binding_gives_unknown(world: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetTotalEnergyConsumption")
    monkeypatch.delattr("pynvml.nvmlDeviceGetTemperatureV")
    (row,) = provider(world).read()
    assert (row.energy_j, row.temperature_c, row.health) == (None, 40, "ok")
    assert [note.split(":")[0] for note in row.notes] == ["nvmlDeviceGetTotalEnergyConsumption"]


@pytest.mark.parametrize("name", ["nvmlMemory_v2", "c_nvmlGpmMetricsGet_t", "nvmlGpmSampleGet"])
def test_a_binding_without_a_structure_is_an_unknown_number(
    world: Plain, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(f"pynvml.{name}")
    source = provider(world)
    source.read()
    world.now += 1.0
    (row,) = source.read()
    assert (row.memory_used_bytes, row.health) == (0, "ok")
    assert (row.sm_active_ratio is None) == ("pm" in name)


def test_unpaired_sample_is_released(world: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = FakeNvml.nvmlGpmSampleAlloc

    def one_only(library: FakeNvml, out: object) -> int:
        return allocate(library, out) if not library.samples else 20

    with monkeypatch.context() as patch:
        patch.setattr(FakeNvml, "nvmlGpmSampleAlloc", one_only)
        (row,) = provider(world).read()
    assert (row.sm_active_ratio, row.health, world.samples()) == (None, "degraded", 0)


def test_no_blocking_function_is_called(world: Plain) -> None:
    source = provider(world)
    for _ in range(3):
        world.now += 1.0
        source.read()
    requested = set(world.driver.calls)
    assert {"util", "fields", "gpm_metrics", "margin", "energy_mj", "reasons"} <= requested
    assert not requested & {"pcie", "nvlink", "violation"}


def test_texts_of_an_older_binding_are_bytes(world: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pynvml.nvmlDeviceGetName", lambda handle: b"H100")
    assert provider(world).read()[0].name == "H100"


def test_missing_device_feature_is_logged_once(world: Plain, caplog: pytest.LogCaptureFixture) -> None:
    world.set(d0_err_util=3)
    source = provider(world)
    with caplog.at_level(logging.INFO, "autoglm_throttle"):
        source.read()
        source.read()
    assert len(caplog.messages) == 1
    assert "nvmlDeviceGetUtilizationRates" in caplog.messages[0]


def test_a_guessed_index_is_warned_of(world: Plain, caplog: pytest.LogCaptureFixture) -> None:
    world.set(g_count=2, d1_model=1)
    provider(world, environ={"CUDA_VISIBLE_DEVICES": "1"}).read()
    assert "use UUIDs" in caplog.messages[0]


def test_lost_device_costs_no_call(world: Plain) -> None:
    source = provider(world)
    source.read()
    world.set(d0_err=15)
    source.read()
    world.driver.calls.clear()
    source.read()
    assert world.driver.calls == []


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(PackageMissingError, match="pip install 'nvidia-ml-py>="):
        NvmlProvider().read()


def test_another_package_of_that_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))
    with pytest.raises(
        PackageMissingError,
        match=r"remove the packages pynvml and nvidia-ml-py3.*pip install 'nvidia-ml-py>=",
    ):
        NvmlProvider().read()


def test_after_a_fork_the_first_call_is_an_opening(world: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    source = provider(world)
    source.read()
    world.driver.calls.clear()
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    source.read()
    assert world.driver.calls[0] == "driver", "the parent's handles were used"
    assert world.opened() == 2
