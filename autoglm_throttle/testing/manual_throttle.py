"""A throttle without threads: the test moves its clock and its GPUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autoglm_throttle.admission.controller import AdmissionController
from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi.middleware import ThrottleMiddleware
from autoglm_throttle.limiting.user_limits import NO_LIMIT
from autoglm_throttle.limiting.work_class import NO_SLOT
from autoglm_throttle.settings import Settings
from autoglm_throttle.testing.gpu import FakeGpu
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import ControlState, Demand

if TYPE_CHECKING:
    from typing import Unpack

    import autoglm_throttle.settings.values as v


class ManualClock:
    """Monotonic seconds that stand still until `advance` is called.

    Args:
        start_s: the first reading. It is not 0, so that a forgotten zero shows in a test.
    """

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        """The time now, in seconds."""
        return self._now_s

    def advance(self, by_s: float) -> float:
        """Advance the clock.

        Args:
            by_s: seconds, 0 or more.

        Returns:
            The time afterwards.

        Raises:
            ValueError: ``by_s`` is negative or not finite: a monotonic clock never goes back.
        """
        if not 0.0 <= by_s < math.inf:
            raise ValueError(f"by_s must be a finite number of seconds, 0 or more, not {by_s!r}")
        self._now_s += by_s
        return self._now_s

    def __repr__(self) -> str:
        return f"ManualClock({self._now_s:g} s)"


class ManualThrottle(Throttle):
    """A real `Throttle` on a `ManualClock` and a `FakeGpu`; no thread, no waiting.

    A `FakeGpu` without a clock gets that of the throttle.

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
    *, clock: ManualClock | None = None, gpu: FakeGpu | None = None, **settings: Unpack[v.ValuesBesideGpu]
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
    values: v.ValuesBesideGpu = {"policy": "tiers", "retry_jitter": 0.0, **settings}
    return ManualThrottle(Settings(**values), clock, gpu)


class ThrottledApp(ThrottleMiddleware):
    """A `ThrottleMiddleware` with a `ManualThrottle`."""

    throttle: ManualThrottle


def admit_all(admission: AdmissionController, demand: Demand, work_class_name: str = "") -> Permit:
    """Replaces ``AdmissionController.try_admit``: no limit is checked, and no tokens or units are taken."""
    settlement = admission.parts.settlement
    limiter, now = settlement.limiter, settlement.clock()
    with settlement.lock:
        work_class = limiter.work_classes[work_class_name or demand.work_class]
        settlement.rows[demand.rank].admitted += 1
        slot = limiter.occupy_over_limit(demand, work_class) if demand.holds_slot else NO_SLOT
    return Permit.of(settlement, demand, NO_LIMIT, now, now, work_class, slot)
