"""Adaptive load shedding and per-user rate limiting for ASGI services on GPUs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.asgi import EXPOSED_FIELDS, Caller, ThrottleMiddleware, exempt, mark
from autoglm_throttle.limiting.gate import ConcurrencyView, Ticket
from autoglm_throttle.model import (
    BreakerCause,
    BreakerState,
    BreakerTransition,
    ControlCause,
    ControlState,
    Criticality,
    Decision,
    DegradationLevel,
    Demand,
    FallbackKind,
    GpuProvider,
    GpuSample,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    LimitStatus,
    Outcome,
    Policy,
    Priority,
    ProviderMisconfigured,
    ProviderUnavailable,
    Reason,
    Rejected,
    ResourceAdvice,
    Signal,
    TelemetryState,
    ThrottleError,
    UserLimit,
    WebSocketMode,
)
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.settings import (
    BreakerSettings,
    ConfigError,
    GuardPolicy,
    PlanPolicy,
    Problem,
    RoutePolicy,
    Settings,
)
from autoglm_throttle.snapshot import Snapshot
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.version import __version__

if TYPE_CHECKING:
    from autoglm_throttle.model.breaker_view import BreakerView
    from autoglm_throttle.model.fallback_context import FallbackContext
    from autoglm_throttle.resilience.feature import Fallback

__all__ = [
    "EXPOSED_FIELDS",
    "BreakerSettings",
    "BreakerView",
    "Caller",
    "BreakerCause",
    "ConfigError",
    "Criticality",
    "Decision",
    "Demand",
    "Fallback",
    "FallbackContext",
    "ConcurrencyView",
    "GpuProvider",
    "GpuSample",
    "GuardPolicy",
    "GuardRejected",
    "ResourceAdvice",
    "DegradationLevel",
    "Outcome",
    "GuardPermit",
    "Permit",
    "PlanPolicy",
    "Policy",
    "Priority",
    "Problem",
    "ProviderMisconfigured",
    "ProviderUnavailable",
    "Reason",
    "GuardRejection",
    "Rejected",
    "ControlState",
    "Rejection",
    "RoutePolicy",
    "FallbackKind",
    "Settings",
    "Signal",
    "Snapshot",
    "BreakerState",
    "TelemetryState",
    "Throttle",
    "ThrottleError",
    "ThrottleMiddleware",
    "Ticket",
    "BreakerTransition",
    "UserLimit",
    "WebSocketMode",
    "ControlCause",
    "LimitStatus",
    "__version__",
    "exempt",
    "mark",
]

_LAZY: Final = {
    "BreakerView": "types.breaker_view",
    "Fallback": "resilience.feature",
    "FallbackContext": "types.fallback_context",
}
"""Names that only guards need: the import of the package does not load their modules."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
