"""Shared types: values, enums and protocols.

Nothing here does I/O, reads a clock or knows HTTP.
Times ending in ``_s`` are monotonic seconds unless their name says ``wall``;
ratios are floats 0..1, percentages end in ``_pct``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.model.breaker import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    Criticality,
    DegradationLevel,
    FallbackKind,
    SlowCallMode,
    StreamSettleMode,
    TooManyRequestsMode,
    TripRule,
)
from autoglm_throttle.model.clock import STALL_S, Clock
from autoglm_throttle.model.decision import Decision, Rejected
from autoglm_throttle.model.demand import Demand
from autoglm_throttle.model.errors import ProviderMisconfigured, ProviderUnavailable, ThrottleError
from autoglm_throttle.model.gpu import DeviceKey, GpuProvider, GpuSample, GpuView, ThrottleBit
from autoglm_throttle.model.guard import (
    BreakerTransition,
    GuardPermit,
    GuardRejected,
    GuardRejection,
)
from autoglm_throttle.model.hint import ResourceAdvice
from autoglm_throttle.model.priority import Priority
from autoglm_throttle.model.regime import ControlState, LimiterReport, ServiceStats
from autoglm_throttle.model.user_limit import (
    EXACT_AT_MOST,
    SUB_BUCKETS,
    UNITS_AT_MOST,
    LimitStatus,
    UserLimit,
)
from autoglm_throttle.model.verdict import GpuCondition, GpuVerdict
from autoglm_throttle.model.words import (
    AggregateMode,
    BorrowMode,
    ControlCause,
    MissingTelemetryMode,
    Outcome,
    Policy,
    Reason,
    Signal,
    StoreFailureMode,
    TelemetryState,
    WebSocketMode,
)

if TYPE_CHECKING:
    from autoglm_throttle.model.breaker_view import BreakerView
    from autoglm_throttle.model.fallback_context import FallbackContext

__all__ = [
    "EXACT_AT_MOST",
    "STALL_S",
    "SUB_BUCKETS",
    "UNITS_AT_MOST",
    "AggregateMode",
    "BorrowMode",
    "BreakerView",
    "BreakerCause",
    "Clock",
    "Criticality",
    "Decision",
    "Demand",
    "DeviceKey",
    "LimiterReport",
    "FallbackContext",
    "GpuCondition",
    "GpuProvider",
    "GpuSample",
    "GpuView",
    "GuardRejected",
    "ResourceAdvice",
    "DegradationLevel",
    "BreakerMode",
    "TooManyRequestsMode",
    "StoreFailureMode",
    "Outcome",
    "GuardPermit",
    "Policy",
    "Priority",
    "ProviderMisconfigured",
    "ProviderUnavailable",
    "Reason",
    "GuardRejection",
    "Rejected",
    "ControlState",
    "FallbackKind",
    "Signal",
    "SlowCallMode",
    "BreakerState",
    "StreamSettleMode",
    "TelemetryState",
    "ThrottleBit",
    "ThrottleError",
    "BreakerTransition",
    "TripRule",
    "MissingTelemetryMode",
    "UserLimit",
    "GpuVerdict",
    "WebSocketMode",
    "ControlCause",
    "LimitStatus",
    "ServiceStats",
]

_LAZY: Final = {"BreakerView": "breaker_view", "FallbackContext": "fallback_context"}
"""Names that only guards need: the import of the package does not load their modules."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
