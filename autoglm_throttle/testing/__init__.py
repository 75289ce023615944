"""Test doubles for services that are protected by this library; `plugin` provides the fixtures."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autoglm_throttle.testing.assertions import (
        assert_admitted,
        assert_limited,
        assert_rejected,
        assert_shed,
    )
    from autoglm_throttle.testing.gpu import FakeGpu
    from autoglm_throttle.testing.manual_throttle import ManualClock, ManualThrottle, throttle_for_tests
    from autoglm_throttle.testing.nvml import FakeNvml
    from autoglm_throttle.testing.simulated_llm import LlmEngineSpec
    from autoglm_throttle.testing.simulated_llm_server import SimulatedLlm

__all__ = [
    "FakeGpu",
    "FakeNvml",
    "LlmEngineSpec",
    "ManualClock",
    "ManualThrottle",
    "SimulatedLlm",
    "assert_admitted",
    "assert_limited",
    "assert_rejected",
    "assert_shed",
    "throttle_for_tests",
]

# The public names by module, imported on first use: pytest loads `plugin` and this package in every run.
_MODULES: Final = {
    "assertions": "assert_admitted assert_limited assert_rejected assert_shed",
    "gpu": "FakeGpu",
    "manual_throttle": "ManualClock ManualThrottle throttle_for_tests",
    "nvml": "FakeNvml",
    "simulated_llm": "LlmEngineSpec",
    "simulated_llm_server": "SimulatedLlm",
}


if not TYPE_CHECKING:  # a type checker reports an unknown name

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
