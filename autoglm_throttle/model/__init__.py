"""Shared types: values, enums and protocols.

Nothing here does I/O, reads a clock or knows HTTP.
Times ending in ``_s`` are monotonic seconds unless their name says ``wall``;
ratios are floats 0..1, percentages end in ``_pct``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.model.breaker import (
    Cause,
    Criticality,
    Level,
    Mode,
    On429,
    Rung,
    SlowIs,
    State,
    StreamSettle,
    Trip,
)
from autoglm_throttle.model.clock import STALL_S, Clock
from autoglm_throttle.model.decision import Decision, Refused
from autoglm_throttle.model.demand import Demand
from autoglm_throttle.model.errors import ProviderMisconfigured, ProviderUnavailable, ThrottleError
from autoglm_throttle.model.gpu import DeviceKey, GpuProvider, GpuSample, GpuView, ThrottleBit
from autoglm_throttle.model.guard import (
    GuardRefused,
    Pass,
    Refusal,
    Transition,
)
from autoglm_throttle.model.hint import Hint
from autoglm_throttle.model.priority import Priority
from autoglm_throttle.model.regime import Evidence, Regime, Work
from autoglm_throttle.model.user_limit import (
    EXACT_AT_MOST,
    SUB_BUCKETS,
    UNITS_AT_MOST,
    UserLimit,
    WindowState,
)
from autoglm_throttle.model.verdict import Finding, Verdict
from autoglm_throttle.model.words import (
    Aggregate,
    Borrow,
    OnError,
    Outcome,
    Policy,
    Reason,
    Signal,
    Telemetry,
    Unknown,
    WebSockets,
    Why,
)

if TYPE_CHECKING:
    from autoglm_throttle.model.breaker_view import BreakerView
    from autoglm_throttle.model.fallback_context import FallbackContext

__all__ = [
    "EXACT_AT_MOST",
    "STALL_S",
    "SUB_BUCKETS",
    "UNITS_AT_MOST",
    "Aggregate",
    "Borrow",
    "BreakerView",
    "Cause",
    "Clock",
    "Criticality",
    "Decision",
    "Demand",
    "DeviceKey",
    "Evidence",
    "FallbackContext",
    "Finding",
    "GpuProvider",
    "GpuSample",
    "GpuView",
    "GuardRefused",
    "Hint",
    "Level",
    "Mode",
    "On429",
    "OnError",
    "Outcome",
    "Pass",
    "Policy",
    "Priority",
    "ProviderMisconfigured",
    "ProviderUnavailable",
    "Reason",
    "Refusal",
    "Refused",
    "Regime",
    "Rung",
    "Signal",
    "SlowIs",
    "State",
    "StreamSettle",
    "Telemetry",
    "ThrottleBit",
    "ThrottleError",
    "Transition",
    "Trip",
    "Unknown",
    "UserLimit",
    "Verdict",
    "WebSockets",
    "Why",
    "WindowState",
    "Work",
]

_LATER: Final = {"BreakerView": "breaker_view", "FallbackContext": "fallback_context"}
"""Names that only guards need: the import of the package does not load their modules."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
