"""Shared types: values, enums and protocols.

Nothing here does I/O, reads a clock or knows HTTP.
Times ending in ``_s`` are monotonic seconds unless their name says ``wall``;
ratios are floats 0..1, percentages end in ``_pct``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from autoglm_throttle.types.advice import ResourceAdvice
from autoglm_throttle.types.breaker import (
    BreakerCause,
    BreakerMode,
    BreakerModeName,
    BreakerState,
    Criticality,
    CriticalityName,
    DegradationLevel,
    FallbackKind,
    SlowCallMode,
    SlowCallName,
    StreamSettleMode,
    StreamSettleName,
    TooManyRequestsMode,
    TooManyRequestsName,
    TripName,
    TripRule,
)
from autoglm_throttle.types.clock import STALL_S, Clock
from autoglm_throttle.types.control import (
    ConcurrencyView,
    ControlState,
    LimiterReport,
    ServiceStats,
    WorkClassView,
)
from autoglm_throttle.types.decision import LIMITED, Decision, DecisionLabel, Rejected, decision_label
from autoglm_throttle.types.demand import Demand
from autoglm_throttle.types.enums import (
    AggregateMode,
    AggregateName,
    BorrowMode,
    BorrowName,
    ControlCause,
    Fairness,
    FairnessName,
    LimitedReason,
    MissingTelemetryMode,
    MissingTelemetryName,
    Outcome,
    Policy,
    PolicyName,
    Reason,
    ShedReason,
    Signal,
    SignalName,
    SlotName,
    SlotUse,
    StoreFailureMode,
    StoreFailureName,
    TelemetryState,
    WebSocketMode,
    WebSocketName,
)
from autoglm_throttle.types.errors import ProviderMisconfigured, ProviderUnavailable, ThrottleError
from autoglm_throttle.types.gpu import DeviceKey, GpuProvider, GpuSample, GpuView, ThrottleBit
from autoglm_throttle.types.guard import (
    BreakerTransition,
    GuardPermit,
    GuardRejected,
    GuardRejection,
)
from autoglm_throttle.types.priority import Priority, PriorityName
from autoglm_throttle.types.user_limit import (
    EXACT_AT_MOST,
    SUB_BUCKETS,
    UNITS_AT_MOST,
    LimitStatus,
    UserLimit,
)
from autoglm_throttle.types.verdict import GpuCondition, GpuVerdict

if TYPE_CHECKING:
    from autoglm_throttle.types.breaker_view import BreakerView
    from autoglm_throttle.types.fallback_context import FallbackContext

__all__ = [
    "EXACT_AT_MOST",
    "LIMITED",
    "STALL_S",
    "SUB_BUCKETS",
    "UNITS_AT_MOST",
    "AggregateMode",
    "AggregateName",
    "BorrowMode",
    "BorrowName",
    "BreakerCause",
    "BreakerMode",
    "BreakerModeName",
    "BreakerState",
    "BreakerTransition",
    "BreakerView",
    "Clock",
    "ConcurrencyView",
    "ControlCause",
    "ControlState",
    "Criticality",
    "CriticalityName",
    "Decision",
    "DecisionLabel",
    "DegradationLevel",
    "Demand",
    "DeviceKey",
    "Fairness",
    "FairnessName",
    "FallbackContext",
    "FallbackKind",
    "GpuCondition",
    "GpuProvider",
    "GpuSample",
    "GpuVerdict",
    "GpuView",
    "GuardPermit",
    "GuardRejected",
    "GuardRejection",
    "LimitStatus",
    "LimitedReason",
    "LimiterReport",
    "MissingTelemetryMode",
    "MissingTelemetryName",
    "Outcome",
    "Policy",
    "PolicyName",
    "Priority",
    "PriorityName",
    "ProviderMisconfigured",
    "ProviderUnavailable",
    "Reason",
    "Rejected",
    "ResourceAdvice",
    "ServiceStats",
    "ShedReason",
    "Signal",
    "SignalName",
    "SlotName",
    "SlotUse",
    "SlowCallMode",
    "SlowCallName",
    "StoreFailureMode",
    "StoreFailureName",
    "StreamSettleMode",
    "StreamSettleName",
    "TelemetryState",
    "ThrottleBit",
    "ThrottleError",
    "TooManyRequestsMode",
    "TooManyRequestsName",
    "TripName",
    "TripRule",
    "UserLimit",
    "WebSocketMode",
    "WebSocketName",
    "WorkClassView",
    "decision_label",
]

_LAZY: Final = {"BreakerView": "breaker_view", "FallbackContext": "fallback_context"}
"""Names that only guards need: the import of the package does not load their modules."""


if not TYPE_CHECKING:  # a type checker reports an unknown name

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
