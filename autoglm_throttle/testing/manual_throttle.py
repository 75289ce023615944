"""A throttle without threads: the test moves its clock and its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoglm_throttle.settings import Settings
from autoglm_throttle.testing.clock import ManualClock
from autoglm_throttle.testing.gpu import FakeGpu
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import ControlState

if TYPE_CHECKING:
    from typing import Unpack

    from autoglm_throttle.settings.values import ValuesBesideGpu


class ManualThrottle(Throttle):
    """A real `Throttle` on a `ManualClock` and a `FakeGpu`; no thread, no waiting.

    Args:
        settings: settings to enforce.
        clock: its clock.
        gpu: its GPUs; a `FakeGpu` without a clock gets ``clock``.

    Raises:
        TypeError: ``gpu`` has no ``read``, such as the name of a source.
    """

    def __init__(self, settings: Settings, clock: ManualClock, gpu: FakeGpu) -> None:
        if not callable(getattr(gpu, "read", None)):
            raise TypeError(
                f"gpu must be a FakeGpu, not {gpu!r}: a test reads no driver; to read a simulated driver, "
                "give Throttle the settings gpu='nvml' and use FakeNvml"
            )
        if isinstance(gpu, FakeGpu):
            gpu.default_clock(clock)
        super().__init__(settings, gpu=gpu, sampling="manual", clock=clock)
        self.clock = clock
        self.gpu = gpu

    def tick(self, samples: int = 1) -> ControlState:
        """Advance one sampling interval and read the GPUs, ``samples`` times.

        Args:
            samples: number of samples. The tier table needs three before it acts.

        Returns:
            The ControlState in force afterwards.

        Raises:
            ValueError: ``samples`` is less than 1.
        """
        if samples < 1:
            raise ValueError(f"samples must be 1 or more, not {samples}")
        for _ in range(samples):
            self.clock.advance(self.settings.gpu.sample_interval_s)
            super().tick()
        return self.control_state()


def throttle_for_tests(
    *, clock: ManualClock | None = None, gpu: FakeGpu | None = None, **settings: Unpack[ValuesBesideGpu]
) -> ManualThrottle:
    """Make a throttle with time and GPUs controlled by the test.

    The policy is ``tiers``, so that a busy GPU acts without any traffic, and ``retry_jitter`` is 0,
    so that a Retry-After is exactly the wait. The environment is not read.

    Args:
        clock: its clock; None: a new one.
        gpu: its GPUs, which get ``clock`` unless they have one; None: one new device.
        settings: settings by lower-case name, such as ``user_limit="2/minute"``.

    Raises:
        ConfigError: with one problem for each setting that is not allowed.
        TypeError: ``gpu`` is no `FakeGpu`.
    """
    clock = clock if clock is not None else ManualClock()
    gpu = gpu if gpu is not None else FakeGpu(clock=clock)
    values: ValuesBesideGpu = {"policy": "tiers", "retry_jitter": 0.0, **settings}
    return ManualThrottle(Settings(**values), clock, gpu)
