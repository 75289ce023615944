"""The pytest plugin. Each fixture imports its dependencies on first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

from autoglm_throttle import testing

if TYPE_CHECKING:
    from typing import Unpack

    from starlette.types import ASGIApp

    import autoglm_throttle.settings.values as v
    from autoglm_throttle.testing.manual_throttle import ThrottledApp


class ThrottleApp(Protocol):
    """Type of the fixture ``throttle_app``: wraps an ASGI app in a throttle of its own."""

    def __call__(self, app: ASGIApp, **settings: Unpack[v.ValuesBesideGpu]) -> ThrottledApp:
        """Protect ``app`` with ``settings``; its throttle is the attribute ``throttle``."""
        ...


@pytest.fixture
def fake_clock() -> testing.ManualClock:
    """A `ManualClock`, shared by the fixtures of one test."""
    return testing.ManualClock()


@pytest.fixture
def fake_gpu(fake_clock: testing.ManualClock) -> Iterator[testing.FakeGpu]:
    """A `FakeGpu` on ``fake_clock``, shared by the fixtures of one test."""
    gpu = testing.FakeGpu(clock=fake_clock)
    yield gpu
    gpu.recover()


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[testing.FakeNvml]:
    """A `FakeNvml` with one device in place of NVIDIA's library, for one test."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with testing.FakeNvml().installed() as library:
        yield library


@pytest.fixture
def throttle_app(fake_clock: testing.ManualClock, fake_gpu: testing.FakeGpu) -> ThrottleApp:
    """Wraps an ASGI app in a throttle on ``fake_clock`` and ``fake_gpu``."""
    from autoglm_throttle.testing.manual_throttle import ThrottledApp

    def wrap(app: ASGIApp, **settings: Unpack[v.ValuesBesideGpu]) -> ThrottledApp:
        throttle = testing.throttle_for_tests(clock=fake_clock, gpu=fake_gpu, **settings)
        return ThrottledApp(app, throttle=throttle)

    return wrap


@pytest.fixture
def no_throttle(monkeypatch: pytest.MonkeyPatch) -> testing.ManualThrottle:
    """Makes every throttle of the process admit everything, for one test; they still count.

    The value is a throttle for tests that may be handed to an app that takes one.
    """
    from autoglm_throttle.admission.controller import AdmissionController
    from autoglm_throttle.testing.manual_throttle import admit_all

    monkeypatch.setattr(AdmissionController, "try_admit", admit_all)
    return testing.throttle_for_tests()
