"""The public stand-in for NVIDIA's library, as a test of a user meets it."""

import doctest
import inspect
import re
import sys

import pynvml
import pytest

from autoglm_throttle.testing import FakeNvml, nvml


def test_the_example_of_its_docstring_is_true() -> None:
    assert doctest.testmod(nvml) == (0, 7)


def fail_to_count() -> None:
    with FakeNvml().installed() as library:
        pynvml.nvmlInitWithFlags(0)
        library.fail(-1, "count", 999)
        pynvml.nvmlDeviceGetCount()


def test_the_binding_gets_its_own_library_back() -> None:
    before, cached = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    with pytest.raises(pynvml.NVMLError_Unknown):
        fail_to_count()
    assert pynvml.nvmlLib is before
    assert pynvml._nvmlGetFunctionPointer_cache == cached


def test_values_and_errors_by_device(fake_nvml: FakeNvml) -> None:
    fake_nvml.set(-1, count=2)
    fake_nvml.set(1, gpu=92, temp=71)
    fake_nvml.fail(1, "clock", 999)
    pynvml.nvmlInitWithFlags(0)
    assert repr(fake_nvml) == "FakeNvml(2 devices, opened 1 times)"
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    assert pynvml.nvmlDeviceGetUtilizationRates(first).gpu == 0
    assert pynvml.nvmlDeviceGetUtilizationRates(second).gpu == 92
    assert pynvml.nvmlDeviceGetTemperatureV(second, pynvml.NVML_TEMPERATURE_GPU) == 71
    assert pynvml.nvmlDeviceGetClockInfo(first, pynvml.NVML_CLOCK_SM) == 1500
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetClockInfo(second, pynvml.NVML_CLOCK_SM)
    fake_nvml.fail(1, "clock", 0)
    assert pynvml.nvmlDeviceGetClockInfo(second, pynvml.NVML_CLOCK_SM) == 1500
    fake_nvml.fail(0, "any", 15)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetName(first)
    assert fake_nvml.calls[-3:] == ["clock", "clock", "name"]
    pynvml.nvmlShutdown()
    assert fake_nvml.references == 0


def test_misspelt_name_error_lists_the_known_ones() -> None:
    library = FakeNvml()
    with pytest.raises(AttributeError, match=r"no value is called utilisation; there are bus, .* gpu, "):
        library.set(0, utilisation=1)
    with pytest.raises(AttributeError, match=r"no call is called nvmlDeviceGetPowerUsag; there are any, "):
        library.fail(0, "nvmlDeviceGetPowerUsag", 15)
    library.set(0, field_74=1, gpm_2=3)
    library.fail(0, "gpm_2", 3)


def test_every_call_that_can_fail_has_its_name_listed() -> None:
    source = inspect.getsource(nvml)
    named = set(re.findall(r"""_(?:begin_call|failure|reply|reading)\([^"]*?"(\w+)\"""", source))
    assert named - {"err"} | {"any"} == nvml.CALLS


def test_every_reported_value_has_its_name_listed() -> None:
    source = inspect.getsource(nvml)
    reported = set(re.findall(r"""_get\([^"'(]*?["'](\w+)["']""", source))
    reported |= set(re.findall(r"""_(?:reply|reading)\([^"]*?"\w+", "(\w+)\"""", source))
    assert reported - {"err"} == nvml.VALUES


def test_missing_device_and_a_single_link_are_errors(fake_nvml: FakeNvml) -> None:
    pynvml.nvmlInitWithFlags(0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(1)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    fake_nvml.set(0, field_138=7)
    one, every = pynvml.nvmlDeviceGetFieldValues(device, [(138, 0), (138, 0xFFFFFFFF)])
    assert (one.nvmlReturn, every.nvmlReturn, every.value.ullVal) == (2, 0, 7)


def test_metrics_want_two_samples_in_their_order(fake_nvml: FakeNvml) -> None:
    pynvml.nvmlInitWithFlags(0)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    old, new = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(device, old)
    pynvml.nvmlGpmSampleGet(device, new)
    wanted = pynvml.c_nvmlGpmMetricsGet_t(pynvml.NVML_GPM_METRICS_GET_VERSION, 1, new, old)
    wanted.metrics[0].metricId = 2
    fake_nvml.set(0, gpm_2=4_250)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpmMetricsGet(wanted)
    wanted.sample1, wanted.sample2 = old, new
    assert pynvml.nvmlGpmMetricsGet(wanted).metrics[0].value == 42.5


def test_calls_that_block_on_real_devices_are_recorded(fake_nvml: FakeNvml) -> None:
    pynvml.nvmlInitWithFlags(0)
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceGetPcieThroughput(device, 0)
    pynvml.nvmlDeviceGetNvLinkUtilizationCounter(device, 0, 0)
    pynvml.nvmlDeviceGetViolationStatus(device, 0)
    assert fake_nvml.calls[-3:] == ["pcie", "nvlink", "violation"]


@pytest.mark.usefixtures("fake_nvml")
def test_what_it_does_not_have_is_a_missing_function() -> None:
    pynvml.nvmlInitWithFlags(0)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_the_fixture_hides_what_the_machine_hides(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autoglm_throttle.gpu.nvml.provider import NvmlProvider

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    request.getfixturevalue("fake_nvml")
    assert len(NvmlProvider().read()) == 1


def test_without_the_binding_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ImportError, match="nvidia-ml-py"), FakeNvml().installed():
        pass
