"""Test doubles for services protected by this library; the fixtures are in `plugin`."""

from autoglm_throttle.testing.assertions import assert_admitted, assert_limited, assert_shed
from autoglm_throttle.testing.clock import ManualClock
from autoglm_throttle.testing.gpu import FakeGpu
from autoglm_throttle.testing.manual_throttle import ManualThrottle, throttle_for_tests
from autoglm_throttle.testing.nvml import FakeNvml

__all__ = [
    "FakeGpu",
    "FakeNvml",
    "ManualClock",
    "ManualThrottle",
    "assert_admitted",
    "assert_limited",
    "assert_shed",
    "throttle_for_tests",
]
