"""Selection of a provider by a setting, without a driver call in the caller."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from autoglm_throttle.gpu.nvml.provider import NvmlProvider
from autoglm_throttle.gpu.recorded import RecordedProvider
from autoglm_throttle.gpu.scrape.provider import ScrapeProvider
from autoglm_throttle.gpu.select import AutoProvider, providers
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import Clock, GpuProvider, GpuSample, ProviderMisconfigured, ProviderUnavailable
from autoglm_throttle.types.errors import NoSourceError, NotPresentError, PackageMissingError
from tests.gpu.sampler_doubles import StepClock

ROW = GpuSample(device="GPU-a", index=0, taken_at_s=1.0, source="test")


class Candidate:
    """A provider that replays a list of results."""

    min_interval_s = 0.2

    def __init__(self, *answers: Exception | None, name: str = "first") -> None:
        self.name = name
        self.answers = list(answers)
        self.calls: list[str] = []

    def read(self) -> Sequence[GpuSample]:
        self.calls.append("read")
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return [ROW]

    def close(self) -> None:
        self.calls.append("close")

    def reset_after_fork(self) -> None:
        self.calls.append("forget")


def made(*items: str, clock: Clock = time.monotonic) -> tuple[GpuProvider, ...]:
    return providers(GpuSettings(gpu=items), clock=clock, manual=True)


def test_none_is_no_provider() -> None:
    assert made("none") == ()


@pytest.mark.parametrize("spec", ["auto", " AUTO ", "Auto"])
def test_auto_provider_does_not_read_at_creation(spec: str) -> None:
    (provider,) = made(spec)
    assert isinstance(provider, AutoProvider)
    assert repr(provider) == "AutoProvider(not tried yet)"


def test_nvml_is_its_provider() -> None:
    (provider,) = providers(GpuSettings(gpu=("nvml",), gpu_devices=("0", "GPU-1a2b", "MIG-GPU-1a/1/0")))
    assert isinstance(provider, NvmlProvider)


def test_nvml_without_its_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install 'nvidia-ml-py>="):
        made("nvml")


def test_fake_plays_a_file_and_hangs_only_on_a_thread(tmp_path: Path, clock: StepClock) -> None:
    path = tmp_path / "a b:c.csv"
    path.write_text("utilization_pct,event\n1,hang:3\n")
    (provider,) = made(f"fake: {path}", clock=clock)
    assert isinstance(provider, RecordedProvider)
    assert provider.read() == []


def test_each_item_is_a_provider_with_a_name_of_its_own(tmp_path: Path) -> None:
    items = [
        "nvml",
        "dcgm:http://me:secret@[::1]:9400/x?token=1",
        "vllm:http://gateway/one/metrics",
        "vllm:http://gateway/two/metrics",
        "prometheus:https://prom/api",
        f"fake:{tmp_path}/a.csv",
        f"fake:{tmp_path}/b.csv",
    ]
    sources = made(*items)
    names = ["nvml", "dcgm:[::1]:9400", "vllm:gateway:80", "vllm:gateway:80#2", "prometheus:prom:443"]
    assert [one.name for one in sources] == [*names, "fake", "fake#2"]
    assert all(isinstance(one, GpuProvider) for one in sources)
    assert isinstance(sources[1], ScrapeProvider)
    assert [one.min_interval_s for one in sources[1:5]] == [1.0, 0.2, 0.2, 1.0]
    assert "secret" not in repr(sources)


def test_automatic_choice_may_stand_beside_engine() -> None:
    assert made("auto", "sglang:http://h")[0].name == "auto"


def test_auto_keeps_the_source_that_it_found() -> None:
    gone = [ProviderUnavailable("gone"), NotPresentError("gone")]
    source = Candidate(NotPresentError("no driver"), None, *gone, None)
    auto = AutoProvider(source)
    assert isinstance(auto, GpuProvider)
    assert auto.min_interval_s == 0.2
    with pytest.raises(NoSourceError):
        auto.read()
    assert auto.name == "auto"
    assert source.calls == ["read", "close"]
    assert auto.read() == [ROW]
    assert auto.name == "first"
    for error in (ProviderUnavailable, NotPresentError):
        with pytest.raises(error, match="gone") as caught:
            auto.read()
        assert not isinstance(caught.value, NoSourceError)
    assert auto.read() == [ROW]
    assert source.calls.count("close") == 1


@pytest.mark.parametrize("error", [NotPresentError("no driver"), PackageMissingError("no package")])
def test_auto_without_source_lists_attempts_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    auto = AutoProvider(Candidate(error, error))
    with caplog.at_level(logging.INFO, "autoglm_throttle"):
        for _ in range(2):
            with pytest.raises(NoSourceError, match=f"first: {error}"):
                auto.read()
    assert caplog.messages == [f"GPU telemetry: no source found (first: {error})"]
    assert repr(auto) == f"AutoProvider(first: {error})"


@pytest.mark.parametrize(("driver", "level"), [(True, "WARNING"), (False, "INFO")])
def test_a_missing_package_beside_a_driver_is_a_warning(
    driver: bool,
    level: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = tmp_path / "nvidiactl"
    if driver:
        device.touch()
    monkeypatch.setattr("autoglm_throttle.gpu.select.DRIVER", device)
    with caplog.at_level(logging.INFO, "autoglm_throttle"), pytest.raises(NoSourceError):
        AutoProvider(Candidate(PackageMissingError("install it"))).read()
    assert [record.levelname for record in caplog.records] == [level]


@pytest.mark.parametrize("error", [ProviderUnavailable("999"), ProviderMisconfigured("no such GPU")])
def test_auto_that_finds_a_broken_driver_is_not_nothing(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)) as caught:
        AutoProvider(Candidate(error)).read()
    assert caught.value is error


def test_auto_passes_close_and_forget_on() -> None:
    source = Candidate()
    auto = AutoProvider(source)
    auto.close()
    auto.reset_after_fork()
    assert source.calls == ["close", "forget"]
